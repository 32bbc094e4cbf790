"""Datasets over real gloo ranks: uneven data, unknown lengths, and what can go wrong."""

from __future__ import annotations

import time
from functools import partial

import pytest
import torch

import torch_distinput as tdi
from tests.distribute.street import shown, write_files
from tests.gloo.jobs import LONG_TIMEOUT, described, numbers
from torch_distinput.testing import run_ranks, run_ranks_outcomes


def play_stream(count, size, strategy):
    """All steps of two epochs of a stream."""
    dataset = strategy.distribute_dataset(partial(numbers, count), global_batch_size=size)
    return [[shown(strategy, step) for step in dataset] for _ in range(2)]


@pytest.mark.parametrize(("ranks", "replicas"), [(2, 1), (3, 1), (4, 1), (2, 2)])
def test_streams_of_unknown_length(ranks, replicas):
    """All ranks make the same steps and get every example once, in each epoch."""
    workers = run_ranks(partial(play_stream, 11, 4), ranks, replicas_per_worker=replicas)
    for epoch in range(2):
        steps = [worker[epoch] for worker in workers]
        assert 1 == len({len(worker) for worker in steps})
        assert list(range(11)) == sorted(x for w in steps for s in w for b in s for x in b)


def play_files(pattern, strategy):
    """Steps, counts and ids of a FileDataset."""
    files = tdi.FileDataset(pattern).map(int)
    iterator = iter(strategy.distribute_dataset(files, global_batch_size=4))
    steps = [(shown(strategy, step), iterator.last_step.num_examples) for step in iterator]
    return steps, iterator.element_spec


def test_uneven_files_and_empty_ranks(tmp_path):
    """A rank whose files are empty goes on with zero rows until the longest ends."""
    pattern = write_files(tmp_path, [range(9), [], range(20, 23)])
    workers = run_ranks(partial(play_files, pattern), 3)
    steps = [[step for step, _ in worker] for worker, _ in workers]
    assert 1 == len({len(worker) for worker in steps})
    assert [[] for _ in steps[1]] == [batch for (batch,) in steps[1]]
    seen = sorted(x for worker in steps for step in worker for b in step for x in b)
    assert [*range(9), 20, 21, 22] == seen
    totals = [[total for _, total in worker] for worker, _ in workers]
    assert totals[0] == totals[1] == totals[2]
    assert 12 == sum(totals[0])
    assert {tdi.TensorSpec((None,), torch.int64)} == {spec for _, spec in workers}


def play_too_few(pattern, strategy):
    """FILE with fewer files than ranks."""
    list(strategy.distribute_dataset(tdi.FileDataset(pattern), global_batch_size=4))


def test_too_few_files_fail_on_every_rank(tmp_path):
    """Before the first step, with the counts."""
    pattern = write_files(tmp_path, [range(4), range(4)])
    for outcome in run_ranks_outcomes(partial(play_too_few, pattern), 3):
        assert "TooFewFilesError" in described(outcome)
        assert "2 for 3 workers" in described(outcome)


def missing_on_one(folder, strategy):
    """The last rank looks for a file that is not there."""
    name = "nothing.txt" if strategy.worker_index == 1 else "f0000.txt"
    files = tdi.FileDataset(f"{folder}/{name}")
    list(
        strategy.distribute_dataset(
            files, global_batch_size=4, options=tdi.InputOptions(auto_shard_policy="data")
        )
    )


@pytest.mark.slow
def test_a_file_missing_on_one_rank_is_told_to_all(tmp_path):
    """Instead of a hang, the others hear what the rank could not open."""
    write_files(tmp_path, [range(4)])
    first, second = run_ranks_outcomes(partial(missing_on_one, str(tmp_path)), 2)
    assert "PeerFailedError" in described(first)
    assert "worker 1: FileNotFoundError" in described(first)
    assert "FileNotFoundError" in described(second)


def differ_in(name, strategy):
    """One argument depends on the rank."""
    rank = strategy.worker_index
    arguments = {"global_batch_size": 4, "seed": 0, "shuffle": True}
    source = range(10)
    if name == "length":
        source = range(10 + rank)
    elif name == "epoch":
        dataset = strategy.distribute_dataset(source, **arguments)
        dataset.set_epoch(rank)
        return list(dataset)
    else:
        arguments[name] += rank
    return list(strategy.distribute_dataset(source, **arguments))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shown_as"),
    [
        ("seed", "seed"),
        ("global_batch_size", "global_batch_size"),
        ("length", "number of examples"),
        ("epoch", "epoch"),
    ],
)
def test_ranks_that_disagree_are_told_what_differs(name, shown_as):
    """On all ranks, before any collective."""
    for outcome in run_ranks_outcomes(partial(differ_in, name), 2):
        assert "MismatchError" in described(outcome)
        assert f"the same {shown_as}" in described(outcome)


def unseeded(strategy):
    """A stream whose order differs between ranks."""

    def stream():
        order = torch.randperm(50, generator=torch.Generator().manual_seed(strategy.worker_index))
        yield from order

    list(strategy.distribute_dataset(stream, global_batch_size=4))


@pytest.mark.slow
def test_streams_that_differ_between_ranks():
    """Under DATA all must read alike; the first global batches are compared."""
    for outcome in run_ranks_outcomes(unseeded, 2):
        assert "MismatchError" in described(outcome)
        assert "read the same stream" in described(outcome)


def raise_at(kind, strategy):
    """Rank 1's data raises at example 9."""

    def checked(k):
        if k == 9 and strategy.worker_index == 1:
            msg = "rotten record"
            raise ArithmeticError(msg)
        return torch.tensor(k)

    class Examples:
        def __len__(self):
            return 40

        def __getitem__(self, index):
            if index >= 40:
                raise IndexError
            return checked(index)

    def stream():
        yield from (checked(k) for k in range(40))

    source = Examples() if kind == "index" else stream
    off = tdi.InputOptions(auto_shard_policy="off", timeout=LONG_TIMEOUT)
    iterator = iter(strategy.distribute_dataset(source, global_batch_size=4, options=off))
    steps = 0
    try:
        for _ in iterator:
            steps += 1
            strategy.reduce("sum", 1)  # in step, as DDP would be
    except Exception as error:  # noqa: BLE001 - whichever comes, it must come again
        again = type(error)
        with pytest.raises(again):
            next(iterator)
        return steps, again.__name__, str(error)
    return steps, None, ""


@pytest.mark.slow
def test_a_rank_that_raises_stops_all_at_the_same_step():
    """Unknown lengths: the failure travels with the votes."""
    first, second = run_ranks(partial(raise_at, "stream"), 2)
    assert first[0] == second[0] == 4
    assert "PeerFailedError" == first[1]
    assert "worker 1: SourceError" in first[2]
    assert "rotten record" in first[2]
    assert "SourceError" == second[1]
    assert "Worker 1, step 4: The source raised ArithmeticError at example 9" in second[2]


def raise_alone(strategy):
    """Rank 1's indexed source raises; rank 0 polls without any collective of its own."""

    class Examples:
        def __len__(self):
            return 100_000

        def __getitem__(self, index):
            if strategy.worker_index == 1 and index > 50:
                msg = "rotten record"
                raise ArithmeticError(msg)
            time.sleep(0.001)
            return index

    dataset = strategy.distribute_dataset(Examples(), global_batch_size=4)
    steps = 0
    for _ in dataset:
        steps += 1
    return steps


@pytest.mark.slow
def test_known_lengths_tell_failures_over_the_store():
    """Without votes the peers hear of it at one of their next calls."""
    first, second = run_ranks_outcomes(raise_alone, 2)
    assert "PeerFailedError" in described(first)
    assert "rotten record" in described(first)
    assert "SourceError" in described(second)


def no_collective_after_iter(strategy):
    """Known lengths: the ranks need no communication between iter() and the end."""
    import torch.distributed as dist

    iterator = iter(strategy.distribute_dataset(range(40), global_batch_size=4))
    dist.destroy_process_group()
    return [step.tolist() for step in iterator]


def test_known_lengths_need_no_group():
    """All process groups are gone after iter(), and every step still comes."""
    first, second = run_ranks(no_collective_after_iter, 2)
    assert list(range(40)) == sorted(x for rank in (first, second) for step in rank for x in step)
