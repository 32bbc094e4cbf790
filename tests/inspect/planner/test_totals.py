"""What is counted for many workers at once is what the schedule plays for each of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from torch_distinput.inspect.planner.totals.epoch_totals import EpochTotals, Pieces
from torch_distinput.inspect.planner.totals.own_streams import total_own_streams
from torch_distinput.inspect.planner.totals.shared_stream import total_shared_stream
from torch_distinput.options import Rebatch
from torch_distinput.plan.assignment.batching import Idle, Splitter
from torch_distinput.plan.assignment.order import EpochOrder, UniformBatches
from torch_distinput.plan.assignment.topology import Topology
from torch_distinput.plan.progress.schedule import Schedule

CUTS = st.builds(
    Splitter,
    topology=st.builds(
        Topology, num_workers=st.integers(1, 6), replicas_per_worker=st.integers(1, 3)
    ),
    rebatch=st.sampled_from(Rebatch),
    global_batch_size=st.integers(1, 30),
    shared=st.just(False),
)


def pieces_of(splitter: Splitter) -> Pieces:
    assert isinstance(splitter.global_batch_size, int)
    return Pieces(
        num_workers=splitter.topology.num_workers,
        per_worker=splitter.topology.replicas_per_worker,
        rebatch=splitter.rebatch,
        full_size=splitter.global_batch_size,
    )


def schedules(splitter: Splitter, lengths: tuple[int, ...], drop_last: bool) -> list[Schedule]:
    return [
        Schedule(
            splitter=replace(splitter, topology=replace(splitter.topology, worker_index=worker)),
            lengths=lengths,
            drop_last=drop_last,
        )
        for worker in range(splitter.topology.num_workers)
    ]


def check(totals: EpochTotals, played: list[Schedule]) -> None:
    steps = [list(schedule.iterate_steps()) for schedule in played]
    sizes = [[step.sizes for step in own] for own in steps]
    first = [next((i for i, step in enumerate(own) if 0 in step), -1) for own in sizes]
    assert played[0].num_left == totals.steps
    assert played[0].num_dropped == totals.num_dropped
    assert [sum(map(sum, own)) for own in sizes] == totals.examples.tolist()
    assert [sum(step.count(0) for step in own) for own in sizes] == totals.zero_row_batches.tolist()
    assert first == totals.first_zero_row_step.tolist()
    idle = Idle(totals.zero_row_steps, int(totals.zero_row_batches.sum()))
    assert played[0].idle == idle


@given(CUTS, st.data(), st.booleans())
def test_own_streams_are_counted_as_they_are_played(splitter, data, drop_last) -> None:
    workers = splitter.topology.num_workers
    most = data.draw(st.sampled_from((5, 40, 200)))
    lengths = data.draw(st.lists(st.integers(0, most), min_size=workers, max_size=workers))
    totals = total_own_streams(pieces_of(splitter), np.array(lengths), drop_last=drop_last)
    check(totals, schedules(splitter, tuple(lengths), drop_last))


@given(CUTS, st.integers(0, 120), st.booleans())
def test_a_shared_stream_is_counted_as_it_is_played(splitter, num_examples, drop_last) -> None:
    batches = UniformBatches(
        order=EpochOrder(num_examples=num_examples),
        global_batch_size=splitter.global_batch_size,
        drop_last=drop_last,
    )
    totals = total_shared_stream(pieces_of(splitter), batches.runs, batches.num_dropped)
    check(totals, schedules(replace(splitter, shared=True), (num_examples,), drop_last))
