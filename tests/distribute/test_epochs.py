"""Sources that shuffle by an epoch are told which one is played, wherever they are."""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ChainDataset,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    Sampler,
    Subset,
)
from torchdata import nodes

import torch_distinput as tdi
from tests.conftest import LONG
from tests.distribute.street import Shards, options, shown
from torch_distinput.data.user_sources import epochs
from torch_distinput.data.user_sources.epochs import tell_epoch
from torch_distinput.testing import simulate

COUNT = 12
ROWS: Any = range(COUNT)


def order_of(epoch):
    """Another one in each epoch."""
    return torch.randperm(COUNT, generator=torch.Generator().manual_seed(epoch)).tolist()


class Keyed(IterableDataset):
    """It plays the order of the epoch that it was told."""

    epoch = -1

    def set_epoch(self, epoch):
        """The usual name."""
        self.epoch = epoch

    def __iter__(self):
        return iter(order_of(self.epoch))


class KeyedSampler(Keyed, Sampler):
    """The same, of indices."""

    def __len__(self):
        return COUNT


@dataclass(slots=True)
class Slotted:
    """A dataset of the user's without a ``__dict__``, and a class among what it keeps."""

    inner: Any
    kind: type = KeyedSampler

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return list(self.inner)[index]


class KeyedShards(Shards):
    """A dealable source whose shards forget the epoch, as those of Hugging Face do."""

    epoch = 0

    def set_epoch(self, epoch):
        """Backwards in odd ones."""
        self.epoch = epoch

    def shard(self, num_shards, index):
        """Every num_shards-th list."""
        return KeyedShards(self.shards[index::num_shards])

    def __iter__(self):
        rows = [x for shard in self.shards for x in shard]
        return iter(rows[:: -1 if self.epoch % 2 else 1])


def ready():
    """A stream of global batches."""
    return DataLoader(Keyed(), batch_size=4)


def play(make, num_workers, policy="auto", size=4, processes=0):
    """Per epoch the steps of each worker: of 0, 1 and 5; then of 6, resumed, and of 7."""

    def distribute(strategy):
        return strategy.distribute_dataset(
            make(), global_batch_size=size, num_workers=processes,
            options=options(auto_shard_policy=policy),
        )  # fmt: skip

    def work(strategy):
        dataset = distribute(strategy)
        played = [[shown(strategy, step) for step in dataset] for _ in range(2)]
        dataset.set_epoch(5)
        played.append([shown(strategy, step) for step in dataset])
        head = [shown(strategy, step) for step in itertools.islice(iter(dataset), 1)]
        other = distribute(strategy)
        other.load_state_dict(dataset.state_dict())
        played.append([*head, *(shown(strategy, step) for step in other)])
        played.append([shown(strategy, step) for step in other])
        return played

    return list(zip(*simulate(work, num_workers=num_workers), strict=True))


def examples(steps):
    """Those of one worker."""
    return [x for step in steps for batch in step for x in batch]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [0, 1, 2])
@pytest.mark.parametrize(
    ("make", "size", "policy"),
    [(Keyed, 4, "auto"), (Keyed, 4, "data"), (Keyed, 4, "off"), (ready, None, "auto")],
)
@pytest.mark.parametrize("num_workers", [1, 2])
def test_streams(num_workers, make, size, policy, processes):
    """It is our number, also after set_epoch and a restart, and the same on all ranks."""
    if processes and size is None:
        return  # a DataLoader has processes of its own
    if processes > 1 and policy != "auto" and not LONG:
        return  # the second one collates only, and no policy knows of it
    played = play(make, num_workers, policy, size=size, processes=processes)
    for epoch, workers in zip((0, 1, 5, 6, 7), played, strict=True):
        if policy == "off":
            assert [order_of(epoch)] * num_workers == list(map(examples, workers))
        else:
            steps = zip(*workers, strict=True)
            assert order_of(epoch) == [x for step in steps for own in step for x in own[0]]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.parametrize("policy", ["file", "data", "off"])
def test_shards(policy, processes):
    """The parts of a source are told as the source is."""
    make = partial(KeyedShards, [[1, 2, 3], [4, 5], [6], [7, 8, 9]])
    even, odd, *more = play(make, 2, policy, size=2, processes=processes)
    assert [odd, even, odd] == more  # the epochs 5, 6, 7
    forth = {
        "file": [[1, 2, 3, 6], [4, 5, 7, 8, 9]],
        "data": [[1, 3, 5, 7, 9], [2, 4, 6, 8]],
        "off": [[*range(1, 10)]] * 2,
    }[policy]
    back = [[9, 7, 5, 3, 1], [8, 6, 4, 2]] if policy == "data" else [own[::-1] for own in forth]
    assert (forth, back) == (list(map(examples, even)), list(map(examples, odd)))


def test_datasets_of_a_function():
    """The classic: a DistributedSampler whose set_epoch is forgotten."""

    def dataset_fn(context):
        sampler = DistributedSampler(
            range(COUNT), context.num_input_pipelines, context.input_pipeline_id
        )
        return DataLoader(range(COUNT), batch_size=2, sampler=sampler)

    def work(strategy):
        dataset = strategy.distribute_datasets_from_function(dataset_fn)
        return [[x for batch in dataset for x in batch.tolist()] for _ in range(3)]

    one, two = simulate(work, num_workers=2)
    for epoch in range(3):
        samplers = [DistributedSampler(range(COUNT), 2, rank) for rank in range(2)]
        for sampler in samplers:
            sampler.set_epoch(epoch)
        assert list(map(list, samplers)) == [one[epoch], two[epoch]]


def test_a_sampler_of_a_function_that_takes_a_part_of_other_workers():
    """As one of all ranks, where data is parallel over fewer."""

    def dataset_fn(context):
        sampler = DistributedSampler(range(COUNT), 4, context.input_pipeline_id)
        return DataLoader(range(COUNT), batch_size=2, sampler=sampler)

    def work(strategy):
        with pytest.raises(tdi.ConfigurationError, match=r"into 2 parts.*into 4 \(DistributedS"):
            strategy.distribute_datasets_from_function(dataset_fn)

    simulate(work, num_workers=2)


@pytest.mark.parametrize(
    "make",
    [
        lambda it: it,
        lambda it: DataLoader(it, batch_size=2),
        lambda it: DataLoader(ChainDataset([Keyed(), it])),
        lambda it: DataLoader(tdi.DataShardDataset(it, 2, 0)),
        lambda it: DataLoader(ROWS, sampler=it),
        lambda it: DataLoader(ROWS, batch_sampler=BatchSampler(it, 2, drop_last=True)),
        lambda it: Subset(it, [1]),
        lambda it: nodes.Loader(nodes.Batcher(nodes.IterableWrapper(it), 2)),
        lambda it: nodes.MapStyleWrapper(range(COUNT), it),
        lambda it: nodes.MultiNodeWeightedSampler(
            {"it": nodes.SamplerWrapper(it)}, {"it": 1.0}, rank=0, world_size=1
        ),
        Slotted,
        lambda it: partial(map, str, it),
        lambda it: partial(Slotted, inner=[it]),
        lambda it: lambda: map(str, it),
        lambda it: partial(lambda make: make(), lambda: iter(Slotted(it))),
    ],
)
def test_whatever_it_is_in(make):
    """Loaders, datasets of datasets, samplers of samplers, nodes, functions."""
    keyed = KeyedSampler()
    source = make(keyed)
    for epoch in (3, 1):
        tell_epoch(source, epoch)
        if hasattr(source, "reset"):
            source.reset()
            next(source)
        assert epoch == keyed.epoch


def test_who_passes_it_on_itself():
    """What is inside of a source with set_epoch is that source's own affair."""

    class Outer(Keyed):
        def __init__(self, dataset):
            self.dataset = dataset

    outer = Outer(Keyed())
    tell_epoch(DataLoader(outer), 3)
    assert (3, -1) == (outer.epoch, outer.dataset.epoch)


def test_a_rule_of_the_users_for_epochs_stays():
    """A SamplerWrapper may count epochs as it likes."""
    keyed = KeyedSampler()
    node = nodes.SamplerWrapper(keyed, initial_epoch=10, epoch_updater=lambda epoch: epoch + 10)
    one = tdi.OneDeviceStrategy("cpu")
    dataset = one.distribute_dataset(node, global_batch_size=4)
    for epoch in (10, 20, 30):
        list(dataset)
        assert epoch == keyed.epoch


def test_a_set_epoch_that_raises():
    """The error names it."""

    class Broken(Keyed):
        def set_epoch(self, epoch):
            raise KeyError(epoch)

    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(Broken(), global_batch_size=4)
    with pytest.raises(tdi.SourceError, match=r"Broken.set_epoch\(0\) raised KeyError: 0"):
        list(dataset)


def test_persistent_processes_do_not_hear(caplog):
    """Said once, as nothing can be done about it here."""
    epochs._warn_of_persistence.cache_clear()
    loader = DataLoader(Keyed(), batch_size=4, num_workers=1, persistent_workers=True)
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(loader)
    with caplog.at_level(logging.WARNING, "torch_distinput"):
        for _ in range(2):
            list(dataset)
    said = [record.getMessage() for record in caplog.records]
    assert ["persistent_workers" in line for line in said] == [True]
    tell_epoch(DataLoader(Keyed()), 1)
    assert 1 == len(caplog.records)


def test_what_finishes_the_rows_tells_no_epoch():
    """Only the process that reads does: the epoch may lie in memory that all of them share."""

    class Shared(IterableDataset):
        def __init__(self):
            self.told = torch.zeros(4, dtype=torch.int64).share_memory_()  # calls for each epoch

        def set_epoch(self, epoch):
            self.told[epoch] += 1

        def __iter__(self):
            return iter(range(8))

    source = Shared()
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(
        source, global_batch_size=2, num_workers=3, collate_fn=torch.tensor
    )
    dataset.set_epoch(3)
    assert 8 == sum(len(batch) for batch in dataset)
    assert [0, 0, 0, 1] == source.told.tolist()
