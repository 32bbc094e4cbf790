"""Rows dealt by what they cost where workers read for themselves: streams, files, OFF."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_distinput as tdi
from tests.conftest import LONG
from tests.distribute.balances import (
    COSTS,
    COUNT,
    INDEXED,
    STREAMS,
    cost_of,
    costs_in_steps,
    examples_in_steps,
    play,
    slowness,
)
from tests.distribute.resumes import examples_of, make_of, run
from tests.distribute.street import Shards, options, shown, stream_of, write_files
from torch_distinput.testing import assert_resumes_everywhere, simulate

some = settings(max_examples=300 if LONG else 15)
rules = st.sampled_from(["split", "even"])


@pytest.mark.slow
def test_a_stream_in_a_loader_process():
    """What steps cost travels with them."""
    expected = play(stream_of(range(COUNT)), 9, (2, 1), balance=cost_of)
    assert expected == play(stream_of(range(COUNT)), 9, (2, 1), balance=cost_of, num_workers=1)


@pytest.mark.slow
@some
@given(st.integers(1, 14), st.tuples(st.integers(1, 3), st.just(2)), rules, st.integers(0, 9))
def test_off_deals_to_the_replicas_of_a_worker(size, cluster, rule, steps):
    """Each worker has the rows in a step that it would have, also after a resume within a batch."""
    keywords = {"policy": "off", "rebatch": rule, "shuffle": True}
    make = make_of(torch.arange(COUNT), size, balance=COSTS, **keywords)
    head, state = run(make, cluster, steps=steps)
    tail, _ = run(make, cluster, state=state)
    plain, _ = run(make_of(torch.arange(COUNT), size, **keywords), cluster)
    for worker, first, rest in zip(plain, head, tail, strict=True):
        assert examples_in_steps([worker]) == examples_in_steps([[*first, *rest]])
        before, after = costs_in_steps([worker]), costs_in_steps([[*first, *rest]])
        assert all(max(b) >= max(a) for b, a in zip(before, after, strict=True))


def test_off_plays_data_of_its_own_on_each_worker():
    """Whose costs differ between the workers, and need not be compared."""

    def work(strategy):
        own = torch.arange(8) + 8 * strategy.worker_index
        dataset = strategy.distribute_dataset(
            own, global_batch_size=8, balance=cost_of, options=options(auto_shard_policy="off")
        )
        return [shown(strategy, step) for step in dataset]

    first, second = simulate(work, num_workers=2, replicas_per_worker=2)
    assert dict.fromkeys(range(8), 1) == examples_of([first])
    assert dict.fromkeys(range(8, 16), 1) == examples_of([second])


def files_of(folder):
    """Files of numbers; their lengths are not known beforehand."""
    numbers = [list(range(start, min(start + 7, COUNT))) for start in range(0, COUNT, 7)]
    return tdi.FileDataset(write_files(folder, numbers)).map(int)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["files", "shards"])
@pytest.mark.parametrize("policy", ["file", "data"])
def test_files_and_shards(tmp_path, kind, policy):
    """FILE deals the rows that a worker has in a step to its replicas; DATA to all."""
    shards = [list(range(start, min(start + 7, COUNT))) for start in range(0, COUNT, 7)]
    source = files_of(tmp_path) if kind == "files" else Shards(shards)
    keywords = {"options": options(auto_shard_policy=policy)}
    plain, _ = play(source, 8, (2, 2), **keywords)
    dealt, told = play(source, 8, (2, 2), balance=cost_of, **keywords)
    before, after = costs_in_steps(plain), costs_in_steps(dealt)
    if policy == "file":  # each worker for itself
        assert [examples_in_steps([worker]) for worker in plain] == [
            examples_in_steps([worker]) for worker in dealt
        ]
        before, after = ([costs_in_steps([worker]) for worker in all_] for all_ in (plain, dealt))
    else:
        assert examples_in_steps(plain) == examples_in_steps(dealt)
        before, after = [before] * 2, [after] * 2
    for stats, own_before, own_after in zip(told, before, after, strict=True):
        assert pytest.approx((slowness(own_before), slowness(own_after))) == (
            stats.before, stats.after,
        )  # fmt: skip
        assert stats.after < stats.before
    assert_resumes_everywhere(
        make_of(source, 16, balance=cost_of, policy=policy), replicas_per_worker=2
    )


def test_counted_files_are_voted_on(tmp_path):
    """Each worker finds costs by itself; planned steps would never be compared."""
    np.save(tmp_path / "n.npy", np.arange(COUNT))
    source = tdi.FileDataset(str(tmp_path / "n.npy"), reader="npy")
    data = options(auto_shard_policy="data")
    plain, _ = play(source, 8, (2, 1), options=data)
    dealt, _ = play(source, 8, (2, 1), options=data, balance=cost_of)
    assert examples_in_steps(plain) == examples_in_steps(dealt)
    assert slowness(costs_in_steps(dealt)) < slowness(costs_in_steps(plain))


@pytest.mark.parametrize("step", [0, 6])
def test_costs_that_differ_between_workers_are_an_error_on_all(step):
    """Of a stream before the step that would lose a row; of examples by index at the start."""

    def work(strategy, source):
        def cost(example):
            return COSTS[int(example)] + strategy.worker_index * (int(example) == 6 * step)

        dataset = strategy.distribute_dataset(source(), global_batch_size=6, balance=cost)
        with pytest.raises(tdi.MismatchError) as caught:
            list(dataset)
        return str(caught.value)

    for said in simulate(partial(work, source=INDEXED["tensor"]), num_workers=2):
        assert "costs of examples" in said
    for said in simulate(partial(work, source=STREAMS["stream"]), num_workers=2):
        assert "the data of worker 1 differs from that of the others" in said
