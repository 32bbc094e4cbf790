"""A dataset with an index that has grown or shrunk is refused when the next epoch begins."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, Subset, WeightedRandomSampler

import torch_distinput as tdi
from tests.distribute.street import one
from torch_distinput.testing import simulate

NUMBERS: Any = range(100)


class ByEpoch(Dataset):
    """Its length depends on the epoch."""

    def __init__(self, more):
        self.more = more
        self.count = 4
        self.asked = 0
        self.told: list[int] = []

    def set_epoch(self, epoch):
        """The usual name."""
        self.told.append(epoch)
        self.count = 4 + self.more * epoch

    def __len__(self):
        self.asked += 1
        return self.count

    def __getitem__(self, index):
        return index % self.count


def loaded(source):
    """The same in a DataLoader."""
    return DataLoader(source, batch_size=2, shuffle=True), {}


def bare(source):
    """By itself."""
    return source, {"global_batch_size": 2}


@pytest.mark.parametrize("wrap", [loaded, bare])
@pytest.mark.parametrize("more", [4, -2])
def test_a_length_that_depends_on_the_epoch(wrap, more):
    """In the epoch that would be played with another one."""

    def work(strategy):
        source, keywords = wrap(ByEpoch(more))
        dataset = strategy.distribute_dataset(source, **keywords)
        first = [x for batch in dataset for x in batch.tolist()]
        words = f"Expected 4 examples in ByEpoch, .* got {4 + more} at .* epoch 1.* Distribute it"
        with pytest.raises(tdi.ConfigurationError, match=words):
            iter(dataset)
        return first

    assert [0, 1, 2, 3] == sorted(x for own in simulate(work, num_workers=2) for x in own)


@pytest.mark.parametrize("wrap", [loaded, bare])
@pytest.mark.parametrize("make", [lambda rows: rows, lambda rows: Subset(NUMBERS, rows)])
def test_a_list_that_grows(wrap, make):
    """Also the indices of a Subset; told to the workers whose list has not."""

    def work(strategy):
        rows = [0, 1, 2, 3]
        source, keywords = wrap(make(rows))
        dataset = strategy.distribute_dataset(source, **keywords)
        assert 2 == len(list(dataset))
        if strategy.worker_index == 1:
            rows += [4, 5]
        with pytest.raises((tdi.ConfigurationError, tdi.PeerFailedError), match="got 6 at"):
            iter(dataset)

    simulate(work, num_workers=2)


def test_an_order_of_the_users_own():
    """A sampler says which examples there are."""
    rows = [0, 1, 2, 3]
    loader = DataLoader(rows, batch_size=2, sampler=WeightedRandomSampler([1.0] * 4, 4))
    dataset = one().distribute_dataset(loader)
    assert 2 == len(list(dataset))
    rows.append(4)
    assert 2 == len(list(dataset))


def test_a_length_is_asked_for_once_an_epoch():
    """It may be slow."""
    source = ByEpoch(0)
    dataset = one().distribute_dataset(source, global_batch_size=2)
    asked = []
    for _ in range(3):
        before = source.asked
        list(dataset)
        asked.append(source.asked - before)
    assert [1, 1, 1] == asked


@pytest.mark.parametrize(("num_workers", "num_threads"), [(0, 0), (0, 2), (1, 0)])
@pytest.mark.parametrize("sampler", [None, RandomSampler(NUMBERS[:4], replacement=True)])
def test_an_epoch_is_told_once(sampler, num_workers, num_threads):
    """Telling may be slow, too."""
    source = ByEpoch(0)
    loader = DataLoader(source, batch_size=2, sampler=sampler, num_workers=num_workers)
    dataset = one().distribute_dataset(loader, num_threads=num_threads)
    assert [2, 2, 2] == [len(list(dataset)) for _ in range(3)]
    assert [0, 1, 2] == source.told


DOCUMENTS: Any = [torch.tensor(row) for row in ([1, 2], [3], [4, 5, 6], [7])]


def numbered(examples):
    """A batch of any examples."""
    return torch.arange(len(examples))


def mixed(source):
    """Beside another source with an index."""
    return tdi.mix({"a": source, "b": DOCUMENTS}, weights={"a": 1, "b": 1})


def mixed_with_a_stream(source):
    """All are read in order."""
    return tdi.mix({"a": source, "b": lambda: iter(DOCUMENTS)}, weights={"a": 1, "b": 1})


def packed(source):
    """In rows of four tokens."""
    return tdi.pack(source, length=4, tokens=None)


def bucketed(source):
    """By length."""
    return tdi.bucket(source, length=len, boundaries=[2], window=4)


@pytest.mark.parametrize("whole", [None, packed, bucketed])
@pytest.mark.parametrize("part", [None, mixed, mixed_with_a_stream])
def test_in_what_is_made_of_it(part, whole):
    """A mixture, rows that documents are packed into, buckets; and one in another."""
    source = documents = DOCUMENTS[:]
    for make in filter(None, (part, whole)):
        source = make(source)
    dataset = one().distribute_dataset(source, global_batch_size=2, collate_fn=numbered)
    assert list(dataset)
    documents.append(DOCUMENTS[0])
    with pytest.raises((tdi.ConfigurationError, tdi.SourceError), match="got 5 at the beginning"):
        list(dataset)


def test_on_one_worker():
    """The others hear of it."""

    def work(strategy):
        documents = DOCUMENTS[:]
        dataset = strategy.distribute_dataset(
            mixed(documents), global_batch_size=2, collate_fn=numbered
        )
        list(dataset)
        if strategy.worker_index == 1:
            documents.append(DOCUMENTS[0])
        with pytest.raises((tdi.ConfigurationError, tdi.PeerFailedError), match="got 5 at"):
            iter(dataset)

    simulate(work, num_workers=2)
