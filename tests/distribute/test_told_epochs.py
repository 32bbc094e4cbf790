"""Whatever a stream is hidden in, it is told the epoch."""

from __future__ import annotations

import datasets
import pytest
import torch
from torch.utils.data import ChainDataset, DataLoader, IterableDataset
from torchdata import nodes
from torchdata.stateful_dataloader import StatefulDataLoader

import torch_distinput as tdi


class Told(IterableDataset):
    """Yields the epoch that it was told."""

    epoch = -1

    def set_epoch(self, epoch):
        """The usual name."""
        self.epoch = epoch

    def __iter__(self):
        return iter([self.epoch] * 4)

    def __getitem__(self, index):
        return self.epoch


class Holder(IterableDataset):
    """A user's own, without ``set_epoch``."""

    def __init__(self):
        self.parts = [Told()]

    def __iter__(self):
        return iter(self.parts[0])


class Plain:
    """The same, of no class of torch's."""

    def __init__(self):
        self.stream = Holder()

    def __iter__(self):
        return iter(self.stream)


def hugging_face():
    """Its rows come in another order in each epoch."""
    rows = datasets.Dataset.from_dict({"row": list(range(40))})
    return rows.to_iterable_dataset(num_shards=8).shuffle(seed=3, buffer_size=4)


HIDDEN = {
    "by itself": Told,
    "joined": lambda: ChainDataset([Told(), Told()]),
    "held by a dataset": Holder,
    "held by an iterable": Plain,
    "held in what is joined": lambda: ChainDataset([Holder()]),
    "a node": lambda: nodes.Mapper(nodes.IterableWrapper(Told()), int),
    "a node over a holder": lambda: nodes.Prefetcher(nodes.IterableWrapper(Holder()), 2),
    "a function of a node": lambda: nodes.MapStyleWrapper(Told(), range(4)),
    "a loader of nodes": lambda: nodes.Loader(nodes.IterableWrapper(Told())),
}


def epochs_of(dataset):
    """What three epochs say, the last one chosen."""
    said = [{x for step in dataset for x in step.tolist()} for _ in range(2)]
    dataset.set_epoch(7)
    return [*said, {x for step in dataset for x in step.tolist()}]


@pytest.mark.parametrize("name", HIDDEN)
def test_streams_of_examples(name):
    """Also inside of nodes and of iterables that a user wrote."""
    one = tdi.OneDeviceStrategy("cpu")
    dataset = one.distribute_dataset(HIDDEN[name](), global_batch_size=2)
    assert [{0}, {1}, {7}] == epochs_of(dataset)


@pytest.mark.parametrize("loader", [DataLoader, StatefulDataLoader])
@pytest.mark.parametrize("name", ["by itself", "joined", "held by a dataset"])
def test_loaders_of_a_function(name, loader):
    """Of ``distribute_datasets_from_function``."""
    one = tdi.OneDeviceStrategy("cpu")
    dataset = one.distribute_datasets_from_function(lambda _: loader(HIDDEN[name](), batch_size=2))
    assert [{0}, {1}, {7}] == epochs_of(dataset)


@pytest.mark.parametrize(
    "make",
    [
        lambda: hugging_face().batch(4).with_format("torch"),
        lambda: DataLoader(hugging_face(), batch_size=4),
        lambda: StatefulDataLoader(hugging_face(), batch_size=4),
        lambda: nodes.Batcher(nodes.IterableWrapper(hugging_face()), 4, drop_last=False),
    ],
)
def test_hugging_face_streams_of_a_function(make):
    """Every epoch has an order of its own, and the same one when it is chosen again."""

    def collated(source):
        return nodes.Mapper(source, torch.utils.data.default_collate)

    def dataset_fn(_):
        source = make()
        return collated(source) if isinstance(source, nodes.Batcher) else source

    dataset = tdi.OneDeviceStrategy("cpu").distribute_datasets_from_function(dataset_fn)
    orders = []
    for epoch in (0, 1, 2, 1):
        dataset.set_epoch(epoch)
        orders.append([row for step in dataset for row in step["row"].tolist()])
    assert [list(range(40))] * 4 == [sorted(order) for order in orders]
    assert 3 == len(set(map(tuple, orders)))
    assert orders[1] == orders[3]
