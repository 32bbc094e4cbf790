"""Steps of streams with known lengths, on all small clusters."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from tests.conftest import LONG
from torch_distinput.options import Rebatch
from torch_distinput.plan.assignment.batching import Idle, Splitter
from torch_distinput.plan.assignment.topology import Topology
from torch_distinput.plan.progress.schedule import Schedule


def plans(lengths, size, replicas, rebatch, *, shared, drop_last):
    """The plan of each worker."""
    num_workers = 3 if shared else len(lengths)
    topologies = [
        Topology(num_workers=num_workers, worker_index=worker, replicas_per_worker=replicas)
        for worker in range(num_workers)
    ]
    splitter = Splitter(
        topology=topologies[0], rebatch=rebatch, global_batch_size=size, shared=shared
    )
    return [
        Schedule(
            splitter=replace(splitter, topology=topology), lengths=lengths, drop_last=drop_last
        )
        for topology in topologies
    ]


def rows_of(pieces):
    """The rows of the stream that are in pieces, in order."""
    return [
        row for piece in pieces for row in range(piece.start, piece.start + sum(piece.sizes))
    ]


def check_what_is_left(plan):
    """From every step of the layout on, also those that nobody has an example in."""
    for steps_done in range(max((step.steps_done for step in plan.iterate_steps()), default=0) + 1):
        left = replace(plan, steps_done=steps_done)
        assert sum(1 for _ in left.iterate_steps()) == left.num_left


@pytest.mark.parametrize("rebatch", Rebatch)
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("replicas", [1, 2])
def test_streams_of_their_own(rebatch, drop_last, replicas):
    """Each worker plays its own stream in order; all have the same steps."""
    for lengths in itertools.product(range(6) if LONG else (0, 1, 2, 5), repeat=3):
        for size in range(1, 5):
            workers = plans(lengths, size, replicas, rebatch, shared=False, drop_last=drop_last)
            pieces = [list(worker.iterate_steps()) for worker in workers]
            assert {len(own) for own in pieces} == {workers[0].num_left}
            check_what_is_left(workers[0])
            for own, length in zip(pieces, lengths, strict=True):
                kept = length - length % size if drop_last else length
                assert rows_of(own) == list(range(kept))
            for step in zip(*pieces, strict=True):
                assert len({piece.num_examples for piece in step}) == 1
                assert step[0].num_examples == sum(sum(piece.sizes) for piece in step) > 0


@pytest.mark.parametrize("rebatch", Rebatch)
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_shared_stream(rebatch, drop_last):
    """The pieces of all workers in a step are one global batch."""
    for length, size in itertools.product(range(14), range(1, 6)):
        workers = plans((length,), size, 2, rebatch, shared=True, drop_last=drop_last)
        steps = list(zip(*(worker.iterate_steps() for worker in workers), strict=True))
        assert len(steps) == workers[0].num_left == length // size + (
            bool(length % size) and not drop_last
        )
        check_what_is_left(workers[0])
        for number, step in enumerate(steps):
            stop = min(length, (number + 1) * size)
            assert rows_of(step) == list(range(number * size, stop))
            assert {piece.num_examples for piece in step} == {stop - number * size}


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_idle_replicas_are_counted_for_all_steps(drop_last, shared):
    """As in the steps themselves; those in which nobody has an example are none."""
    for lengths in itertools.product(range(6), repeat=1 if shared else 3):
        workers = plans(lengths, 4, 2, Rebatch.SPLIT, shared=shared, drop_last=drop_last)
        steps = zip(*(worker.iterate_steps() for worker in workers), strict=True)
        idle = [sum(step_of.sizes.count(0) for step_of in step) for step in steps]
        expected = Idle(sum(count > 0 for count in idle), sum(idle))
        assert expected == workers[0].idle


@pytest.mark.parametrize("rebatch", Rebatch)
@pytest.mark.parametrize("drop_last", [False, True])
def test_steps_go_on_from_any_step(drop_last, rebatch):
    """Those that are left are the same; and the rows delivered are those of the steps before."""
    for lengths in itertools.product((0, 2, 3, 5), repeat=2):
        workers = plans(lengths, 3, 2, rebatch, shared=False, drop_last=drop_last)
        steps = [list(worker.iterate_steps()) for worker in workers]
        rows = [0] * len(lengths)
        for number, parts in enumerate(zip(*steps, strict=True), 1):
            done = parts[0].steps_done
            rows = [before + sum(part.sizes) for before, part in zip(rows, parts, strict=True)]
            for worker, own in zip(workers, steps, strict=True):
                assert tuple(rows) == worker.count_delivered(done)
                assert own[number:] == list(replace(worker, steps_done=done).iterate_steps())


def test_what_is_dropped():
    """Each stream's own partial batch."""
    (plan, *_) = plans((5, 0, 7), 3, 1, Rebatch.SPLIT, shared=False, drop_last=True)
    assert plan.num_dropped == 3
    assert replace(plan, drop_last=False).num_dropped == 0
    assert plan.own_length == 5
