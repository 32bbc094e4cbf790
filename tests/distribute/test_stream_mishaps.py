"""User code inside of streams and files: what must be an error there, and what must not matter."""

from __future__ import annotations

import gc

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import torch_distinput as tdi
from tests.distribute.street import shown, stream_of
from torch_distinput.data.user_sources import loader_start as started_loader
from torch_distinput.testing import simulate


class Described(IterableDataset):
    """A stream with attributes that our own datasets have too."""

    element_spec = strategy = "a spec of its own"

    def __iter__(self):
        return iter(range(7))


def test_a_stream_with_an_element_spec():
    """It is a source like any other; our own datasets and iterators are none."""
    one = tdi.OneDeviceStrategy("cpu")
    dataset = one.distribute_dataset(Described(), global_batch_size=4)
    assert [[0, 1, 2, 3], [4, 5, 6]] == [step.tolist() for step in dataset]
    for own in (dataset, iter(dataset)):
        with pytest.raises(TypeError, match="distributed already"):
            one.distribute_dataset(own, global_batch_size=4)


class PartOfAProcess(IterableDataset):
    """It takes its part of a loader process, as torch's documentation teaches."""

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, 12, step))


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
def test_a_dataset_of_processes_in_a_shard_of_data(num_workers):
    """It is cut once: by the shards and their processes."""
    shards = [tdi.DataShardDataset(PartOfAProcess(), 2, index) for index in range(2)]
    loaders = [DataLoader(shard, batch_size=2, num_workers=num_workers) for shard in shards]
    examples = [{x for batch in loader for x in batch.tolist()} for loader in loaders]
    assert [{0, 2, 4, 6, 8, 10}, {1, 3, 5, 7, 9, 11}] == examples


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_a_dataset_of_processes_in_a_stream(num_workers):
    """One process reads all of it, whatever their number."""
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(
        PartOfAProcess(), global_batch_size=5, num_workers=num_workers
    )
    assert list(range(12)) == [x for step in dataset for x in step.tolist()]


class Changing(IterableDataset):
    """What it holds is changed between epochs."""

    def __init__(self):
        self.rows = list(range(5))

    def __iter__(self):
        return iter(self.rows)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_sources_that_change_between_epochs(num_workers):
    """Each epoch plays what is there when it begins."""
    source = Changing()
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(
        source, global_batch_size=2, num_workers=num_workers
    )
    for _ in range(3):
        assert source.rows == [x for step in dataset for x in step.tolist()]
        source.rows = [x + 1 for x in source.rows] + [0]


class Kept(IterableDataset):
    """It returns the iterator that it was given."""

    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return self.rows


class OneIterator(IterableDataset):
    """``__iter__`` returns the same iterator each time: there is one epoch in it."""

    def __init__(self):
        self.rows = iter(range(5))

    def __iter__(self):
        return self.rows


class Itself(OneIterator):
    """It is its own iterator, and does not begin anew."""

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.rows)


@pytest.mark.parametrize("make", [OneIterator, Itself, lambda: Kept(Itself())])
def test_a_source_with_one_iterator(make):
    """Epochs after the first one would be empty: the error says why, on all workers."""

    def work(strategy):
        dataset = strategy.distribute_dataset(make(), global_batch_size=2)
        assert [[0], [2], [4]] == [shown(strategy, step)[0] for step in dataset] or (
            strategy.worker_index
        )
        with pytest.raises(tdi.SourceError, match="start a new epoch, got the iterator"):
            list(dataset)

    simulate(work, num_workers=2)


def test_sources_that_have_nothing():
    """They may return one iterator as often as they like."""
    nothing = Kept(iter(()))
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(nothing, global_batch_size=2)
    assert [[], []] == [list(dataset) for _ in range(2)]


def test_a_generator_function_with_a_closure():
    """What it keeps from epoch to epoch is its own; a state does not know of it."""
    calls = []

    def stream():
        calls.append(None)
        yield from range(5 * len(calls))

    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(stream, global_batch_size=5)
    assert [1, 2, 3] == [len(list(dataset)) for _ in range(3)]
    assert 3 == len(calls)


def test_streams_of_the_docs_still_have_no_length():
    """An IterableDataset with ``__len__`` may be wrong about it."""

    class Sized(Described):
        def __len__(self):
            return 3

    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(Sized(), global_batch_size=4)
    with pytest.raises(TypeError, match="has no length before it is read"):
        len(dataset)
    assert 7 == sum(len(step) for step in dataset)


def test_tensors_of_a_stream_are_compared_by_nobody():
    """Items are handed on as they are."""
    rows = [torch.arange(2), torch.arange(2)]
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(stream_of(rows), global_batch_size=1)
    assert [[[0, 1]], [[0, 1]]] == [step.tolist() for step in dataset]


def test_a_stream_that_is_left_is_closed_at_once():
    """Not when garbage is collected: it may hold files and processes."""
    closed = []

    def stream():
        try:
            yield from range(9)
        finally:
            closed.append(True)

    gc.collect()
    gc.disable()
    try:
        dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(stream, global_batch_size=2)
        with iter(dataset) as iterator:
            next(iterator)
        assert [True] == closed
    finally:
        gc.enable()


class Parts(IterableDataset):
    """Takes its part of the numbers in each loader process."""

    def __iter__(self):
        info = get_worker_info()
        return iter(range(6)[info.id :: info.num_workers])


class All(IterableDataset):
    """Plays all of them in each."""

    def __iter__(self):
        return iter(range(6))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "count", "is_said"), [(Parts(), 6, False), (All(), 12, True)], ids=["parts", "all"]
)
def test_a_stream_in_several_processes_of_a_users_loader(caplog, dataset, count, is_said):
    """It is played once by each, as torch does it; the log says so where it seems not meant."""
    started_loader._warn_of_copies.cache_clear()
    loader = DataLoader(dataset, batch_size=3, num_workers=2)
    alone = tdi.OneDeviceStrategy("cpu")
    for played in (
        alone.distribute_dataset(loader),
        alone.distribute_datasets_from_function(lambda _: loader),
    ):
        assert count == sum(len(batch) for batch in played)
    assert is_said == ("every example comes 2 times" in caplog.text)


@pytest.mark.parametrize(("before", "after"), [(0, 2), (1, 3), (2, 0), (3, 2)])
def test_another_number_of_processes_is_refused_by_a_state(before, after):
    """They decide the order of a loader over a stream."""
    one = tdi.OneDeviceStrategy("cpu")

    def distribute(num_workers):
        return one.distribute_dataset(DataLoader(PartOfAProcess(), 2, num_workers=num_workers))

    beginning = distribute(after)
    with iter(distribute(before)) as steps:
        beginning.load_state_dict(steps.state_dict())  # no place in any order
    assert 12 == sum(map(len, beginning))
    with iter(distribute(before)) as steps:
        next(steps)
        state = steps.state_dict()
    dataset = distribute(after)
    dataset.load_state_dict(state)
    with pytest.raises(tdi.ConfigurationError, match="processes that read the stream was"):
        iter(dataset)


def test_ranks_with_other_numbers_of_processes():
    """Each would take its part of another order."""

    def work(strategy):
        loader = DataLoader(PartOfAProcess(), 2, num_workers=2 * strategy.worker_index)
        with pytest.raises(tdi.MismatchError, match="number of processes that read the stream"):
            iter(strategy.distribute_dataset(loader))

    simulate(work, num_workers=2)


def test_one_process_reads_as_none_does():
    one = tdi.OneDeviceStrategy("cpu")
    with iter(one.distribute_dataset(DataLoader(PartOfAProcess(), 2))) as steps:
        next(steps)
        state = steps.state_dict()
    dataset = one.distribute_dataset(DataLoader(PartOfAProcess(), 2, num_workers=1))
    dataset.load_state_dict(state)
    assert list(range(2, 12)) == [x for step in dataset for x in step.tolist()]


class StartsAnother(IterableDataset):
    """Lets another thread start the same loader, as it were, while this one starts it."""

    def __init__(self) -> None:
        self.others = [started_loader.start_source]

    def __iter__(self):
        while self.others:
            next(self.others.pop()(self.loader))
        return iter(range(4))


def test_threads_that_start_one_loader_at_a_time_leave_it_as_it_was():
    """Simulated workers do: each puts a function in the place of ``collate_fn`` for a moment."""
    loader = DataLoader(StartsAnother(), batch_size=2)
    loader.dataset.loader, collate_fn = loader, loader.collate_fn
    own = started_loader._Collate(collate_fn, loader.batch_size)
    loader.collate_fn = own  # another thread has, just now
    assert [[0, 1], [2, 3]] == [batch.tolist() for batch in started_loader.start_source(loader)]
    assert loader.collate_fn is collate_fn
