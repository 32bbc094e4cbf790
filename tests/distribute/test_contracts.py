"""C1, C2, C3 and C6 as properties over simulated workers."""

from __future__ import annotations

import collections
import gc
import multiprocessing
import threading
import traceback

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset

import torch_distinput as tdi
from tests.conftest import LONG
from tests.distribute.street import Shards, options, play, shown, stream_of
from torch_distinput.engine import voted_feed
from torch_distinput.testing import simulate

pytestmark = pytest.mark.usefixtures("paths")

clusters = st.tuples(st.integers(1, 4), st.integers(1, 3))
rules = st.sampled_from(["split", "even", "cycle"])
some = settings(max_examples=1000 if LONG else 30)  # orders are enumerated in tests/plan


def examples_of(workers):
    """All delivered examples, as a multiset."""
    return collections.Counter(x for worker in workers for step in worker for b in step for x in b)


def global_batches(workers):
    """What all replicas in sync got in each step, in replica order."""
    return [
        [x for worker in step for batch in worker for x in batch]
        for step in zip(*workers, strict=True)
    ]


@given(st.integers(0, 40), st.integers(1, 12), clusters, rules, st.booleans(), st.booleans())
def test_indexed_sources_exactly_once(count, size, cluster, rebatch, shuffle, drop_last):
    """C1 and C2 for sources with an index: arithmetic, no votes."""
    workers = play(
        range(count), size, *cluster, options=options(rebatch=rebatch),
        shuffle=shuffle, drop_last=drop_last,
    )  # fmt: skip
    seen = examples_of(workers)
    assert all(times == 1 for times in seen.values())
    assert (count - count % size if drop_last else count) == sum(seen.values())
    assert all(global_batches(workers))


@given(st.integers(0, 30), st.integers(1, 9), clusters, rules, st.booleans())
def test_streams_exactly_once(count, size, cluster, rebatch, drop_last):
    """C1 and C2 for opaque streams under DATA: all read all, each keeps its own."""
    workers = play(
        stream_of(range(count)), size, *cluster,
        options=options(rebatch=rebatch), drop_last=drop_last,
    )  # fmt: skip
    kept = count - count % size if drop_last else count
    assert dict.fromkeys(range(kept), 1) == examples_of(workers)
    assert all(global_batches(workers))


shard_lengths = st.lists(st.integers(0, 9), min_size=1, max_size=7)


@given(shard_lengths, st.integers(1, 9), clusters, rules, st.data())
def test_assigned_shards_exactly_once(lengths, size, cluster, rebatch, data):
    """C1 and C2 under FILE and DATA, shards of any sizes, the empty ones too."""
    num_workers, num_replicas = cluster
    lengths += [0] * (num_workers - len(lengths))
    numbers = iter(range(100))
    shards = Shards([[next(numbers) for _ in range(length)] for length in lengths])
    policy = data.draw(st.sampled_from(["auto", "file", "data"]))
    drop_last = data.draw(st.booleans())
    workers = play(
        shards, size, num_workers, num_replicas, drop_last=drop_last,
        options=options(auto_shard_policy=policy, rebatch=rebatch),
    )  # fmt: skip
    seen = examples_of(workers)
    if not drop_last:
        assert dict.fromkeys(range(sum(lengths)), 1) == seen
    elif policy == "data":
        assert sum(lengths) // size * size == sum(seen.values())
    else:  # each worker's own partial batch
        own = [sum(lengths[w::num_workers]) for w in range(num_workers)]
        assert sum(n // size * size for n in own) == sum(seen.values())
    assert all(times == 1 for times in seen.values())
    assert all(global_batches(workers))


@some
@given(st.integers(1, 30), st.integers(1, 9), clusters, clusters, rules, st.integers(0, 3))
def test_order_does_not_depend_on_the_cluster(count, size, one, other, rebatch, epoch):
    """C3 under DATA: the sequence of global batches is that of one worker with one replica."""
    for source, shuffle in ((range(count), True), (stream_of(range(count)), False)):
        played = [
            global_batches(
                play(source, size, *cluster, shuffle=shuffle, seed=5, epochs=1 + epoch % 2,
                     options=options(rebatch=rebatch))
            )
            for cluster in (one, other)
        ]  # fmt: skip
        assert played[0] == played[1]


@some
@given(st.lists(st.integers(0, 9), min_size=3, max_size=6), st.integers(1, 9), rules)
def test_each_workers_order_does_not_depend_on_replicas(lengths, size, rebatch):
    """C3 under FILE: a worker's examples come in one order, whatever R."""
    numbers = iter(range(100))
    shards = Shards([[next(numbers) for _ in range(length)] for length in lengths])
    orders = [
        [
            [x for step in worker for batch in step for x in batch]
            for worker in play(shards, size, 3, num_replicas, options=options(rebatch=rebatch))
        ]
        for num_replicas in (1, 2)
    ]
    assert orders[0] == orders[1]


@pytest.mark.parametrize("num_workers", [0, 1, 2] if LONG else [0, 2])
def test_order_does_not_depend_on_loader_processes(num_workers, tmp_path):
    """C3 for every kind of source, with and without loader processes."""
    for number in range(3):
        lines = "".join(f"{number * 10 + k}\n" for k in range(3 + number))
        (tmp_path / f"{number}.txt").write_text(lines)
    files = tdi.FileDataset(str(tmp_path / "*.txt")).map(int).shuffle(4)
    packed = tdi.FileDataset(str(tmp_path / "*.txt"), strings="packed").shuffle(4)
    for source, keywords in (
        (range(17), {"shuffle": True}),
        (torch.arange(17), {"shuffle": True}),
        (tdi.PackedStrings.from_list(map(str, range(17))), {"shuffle": True}),
        (files, {}),
        (packed, {}),
        (stream_of(range(17)), {}),
        (Shards([[1, 2], [3], [4, 5]]), {}),
    ):
        expected = play(source, 4, 2, 2, epochs=2, **keywords)
        assert expected == play(source, 4, 2, 2, epochs=2, num_workers=num_workers, **keywords)


def test_ready_batches_in_a_loader_process():
    """Elements that are global batches cross the process border too."""
    batches = stream_of([np.arange(4), np.arange(4, 7)])
    assert play(batches, None, 2) == play(batches, None, 2, num_workers=1)


@given(st.integers(1, 30), st.integers(1, 6), clusters, st.integers(0, 5), st.booleans())
def test_leaving_a_loop_loses_nothing(count, size, cluster, after, indexed):
    """C6: the epoch after a break is whole, on all workers."""
    source = range(count) if indexed else stream_of(range(count))

    def work(strategy):
        dataset = strategy.distribute_dataset(source, global_batch_size=size)
        for number, _ in enumerate(dataset):
            if number == after:
                break
        return [shown(strategy, step) for step in dataset]

    workers = simulate(work, num_workers=cluster[0], replicas_per_worker=cluster[1])
    assert dict.fromkeys(range(count), 1) == examples_of(workers)


def test_no_thread_stays():
    """C6: neither after the end, nor a break, nor close, nor an exception, nor collection."""
    before = set(threading.enumerate())

    def leave(strategy, how):
        dataset = strategy.distribute_dataset(stream_of(range(100)), global_batch_size=4)
        iterator = iter(dataset)
        next(iterator)
        if how == "close":
            iterator.close()
        elif how == "end":
            list(iterator)
        elif how == "again":
            iter(dataset).close()
        return dataset

    for how in ("close", "end", "again", "collected"):
        datasets = simulate(lambda s, how=how: leave(s, how), num_workers=3)
        del datasets
        gc.collect()
        for thread in set(threading.enumerate()) - before:
            thread.join(timeout=60)
        assert set() == set(threading.enumerate()) - before, how


def test_a_source_that_cannot_be_started_is_told_to_all():
    """On one worker only, after the handshake: the first step is where all of them hear of it."""

    def work(strategy):
        class Stream(IterableDataset):
            def __iter__(self):
                if strategy.worker_index == 1:
                    msg = "not today"
                    raise ArithmeticError(msg)
                return iter(range(8))

        iterator = iter(strategy.distribute_dataset(Stream(), global_batch_size=4))
        error = tdi.SourceError if strategy.worker_index == 1 else tdi.PeerFailedError
        with pytest.raises(error, match=r"[wW]orker 1.*ArithmeticError.*not today"):
            next(iterator)

    simulate(work, num_workers=3)


def test_a_source_that_does_not_return_is_named(monkeypatch):
    """The next epoch cannot start while the last one is still read; the others are not blamed."""
    monkeypatch.setattr(voted_feed, "_LEAVE_SECONDS", 0.1)
    leave, both = threading.Event(), threading.Barrier(2, timeout=60)

    def work(strategy):
        inside = threading.Event()

        def stream():
            yield from range(8)
            inside.set()
            assert strategy.worker_index == 0 or leave.wait(60)

        limit = options(timeout=1)  # to leave the epoch before takes worker 1 a tenth of that
        dataset = strategy.distribute_dataset(stream, global_batch_size=4, options=limit)
        iterator = iter(dataset)  # held: a reader stops where its iterator is collected
        next(iterator)
        assert inside.wait(60)
        del iterator
        both.wait()
        if strategy.worker_index == 0:
            return iter(dataset)
        try:
            with pytest.raises(tdi.PeerTimeoutError, match="this worker's source"):
                iter(dataset)
        finally:
            leave.set()
        return None

    simulate(work, num_workers=2)


class Broken(Dataset):
    """Examples of which one raises."""

    def __len__(self):
        """Many."""
        return 40

    def __getitem__(self, index):
        """Fail at one of them."""
        return 1 // (index - 17)


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("kind", ["indexed", "stream", "played"])
def test_loader_processes_end_with_an_error(kind, num_workers):
    """C6: not only when the error, which leads to them, is collected; and its text stays whole."""

    def work(strategy):
        loader = DataLoader(Broken(), batch_size=4, num_workers=1)
        if kind == "played":
            dataset = strategy.distribute_datasets_from_function(lambda _: loader)
        else:
            source = Broken() if kind == "indexed" else stream_of(Broken())
            dataset = strategy.distribute_dataset(source, global_batch_size=4, num_workers=1)
        iterator = iter(dataset)
        with pytest.raises((tdi.DistinputError, StopIteration)) as got:  # or it is through first
            while True:
                next(iterator)
        iterator.close()
        return iterator, "".join(traceback.format_exception(got.value))

    gc.disable()
    before = multiprocessing.active_children()  # ranks of other tests wait for work
    try:
        held = simulate(work, num_workers=num_workers)
        assert set(multiprocessing.active_children()) <= set(before)
    finally:
        gc.enable()
    assert any("return 1 // (index - 17)" in text for _, text in held)


def test_an_exception_in_the_loop_ends_the_threads_of_all_workers():
    """The others hear that the worker left, at their next step."""

    def work(strategy):
        dataset = strategy.distribute_dataset(stream_of(range(400)), global_batch_size=4)
        for number, _ in enumerate(dataset):
            if number == 3 and strategy.worker_index == 1:
                msg = "the model broke"
                raise ArithmeticError(msg)

    with pytest.raises(ArithmeticError, match="the model broke"):
        simulate(work, num_workers=3)
