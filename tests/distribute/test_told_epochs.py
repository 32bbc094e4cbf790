"""Whatever a stream is hidden in, it is told the epoch."""

from __future__ import annotations

import multiprocessing
import threading
import time

import datasets
import pytest
import torch
from torch.utils.data import ChainDataset, DataLoader, Dataset, IterableDataset, Subset
from torchdata import nodes
from torchdata.stateful_dataloader import StatefulDataLoader

import torch_distinput as tdi
from tests.distribute.street import stream_of
from torch_distinput.data.user_sources import epochs
from torch_distinput.data.user_sources.epochs import AtEpoch, tell_epoch
from torch_distinput.data.user_sources.run import SourceRun


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


class Shifted(Dataset):
    """Numbers that tell the epoch of which they are."""

    epoch = -1

    def set_epoch(self, epoch):
        """The usual name."""
        self.epoch = epoch

    def __len__(self):
        return 30

    def __getitem__(self, index):
        return 1000 * self.epoch + index


SHARED = {
    "here": (lambda part: part, {}),
    "in threads": (lambda part: part, {"num_threads": 2}),
    "in a process": (lambda part: part, {"num_workers": 1}),
    "beside a stream": (
        lambda part: tdi.mix({"part": part, "more": stream_of([9] * 20)}, weights=(1, 1)), {}
    ),
    "in buckets": (lambda part: tdi.bucket(part, length=int, boundaries=(2000,), window=1), {}),
}  # fmt: skip


@pytest.mark.parametrize("how", SHARED)
def test_parts_of_one_dataset_are_at_epochs_of_their_own(how):
    """One is evaluated while the other is trained: each has the examples of its own epoch."""
    make, keywords = SHARED[how]
    whole, strategy = Shifted(), tdi.OneDeviceStrategy("cpu")
    train, test = (
        strategy.distribute_dataset(make(Subset(whole, part)), global_batch_size=2, **keywords)
        for part in (range(20), range(20, 30))
    )
    train.set_epoch(3)
    trained, tested = [], []
    for number, batch in enumerate(train):
        trained += batch.tolist()
        if number in (2, 3):
            test.set_epoch(0)
            tested.append([example for one in test for example in one.tolist()])
    assert list(range(3000, 3020)) == [example for example in trained if example != 9]
    assert [list(range(20, 30))] * 2 == [[x for x in each if x != 9] for each in tested]


def test_two_iterators_of_one_dataset_take_turns():
    """Distributed twice, as one does who needs two."""
    whole, strategy = Shifted(), tdi.OneDeviceStrategy("cpu")
    one, two = (strategy.distribute_dataset(whole, global_batch_size=10) for _ in range(2))
    two.set_epoch(1)
    for first, second in zip(one, two, strict=True):
        assert (first + 1000).tolist() == second.tolist()
    assert 1000 + 29 == second[-1]


def test_who_is_at_another_epoch_waits():
    """For what is fetched in another thread; who is at the same epoch does not, nor a child."""
    whole, seen = Shifted(), []

    def fetch(epoch):
        with AtEpoch(Subset(whole, [0]), epoch):
            seen.append(whole.epoch)

    with AtEpoch(whole, 3):
        other, same = (threading.Thread(target=fetch, args=(epoch,)) for epoch in (0, 3))
        same.start()
        same.join(60)
        other.start()
        child = multiprocessing.get_context("fork").Process(target=fetch, args=(0,))
        child.start()
        child.join(60)
        assert (0, [3]) == (child.exitcode, seen)
    other.join(60)
    assert [3, 0] == seen


def test_who_waits_is_next():
    """A training that fetches in other threads all the time does not keep it out."""
    whole, seen = Shifted(), []

    def fetch(epoch):
        with AtEpoch(whole, epoch):
            seen.append(whole.epoch)

    with AtEpoch(whole, 3):
        other, same = (threading.Thread(target=fetch, args=(epoch,)) for epoch in (0, 3))
        other.start()
        is_over = time.monotonic() + 60
        while not epochs._told[id(whole)].waiting and time.monotonic() < is_over:
            pass
        same.start()
        with AtEpoch(whole, 0):  # a fetch within a fetch does not wait behind itself
            assert 0 == whole.epoch
        assert (3, []) == (whole.epoch, seen)
    other.join(60)
    same.join(60)
    assert [0, 3] == seen


def test_others_do_not_wait_for_a_set_epoch():
    """Of a dataset that takes its time for it; nor is one that raised inside of it."""
    go_on, called = threading.Event(), []

    class Slow(Shifted):
        def set_epoch(self, epoch):
            called.append(epoch)
            assert go_on.wait(60)
            if epoch == 1:
                raise ValueError(epoch)
            super().set_epoch(epoch)

    def fetch(epoch):
        with AtEpoch(slow, epoch):
            assert slow.epoch == epoch

    slow = Slow()
    threads = [threading.Thread(target=fetch, args=(2,)) for _ in range(2)]
    quick = threading.Thread(target=AtEpoch(Shifted(), 1).__enter__)
    threads[0].start()
    quick.start()
    quick.join(60)
    assert not quick.is_alive()
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert [2] == called  # the second one waits until it is told
    with pytest.raises(tdi.SourceError, match=r"set_epoch\(1\) raised ValueError"):
        fetch(1)
    fetch(2)
    assert [2, 1, 2] == called


def test_an_element_spec_is_of_an_epoch():
    """A dataset may have no example before it was told one; another is at its own."""

    class Strict(Shifted):
        def __getitem__(self, index):
            assert self.epoch >= 0
            return super().__getitem__(index)

    whole, strategy = Strict(), tdi.OneDeviceStrategy("cpu")
    assert (None,) == strategy.distribute_dataset(whole, global_batch_size=2).element_spec.shape


class WithNegatives(Subset):
    """Draws beside each example one of a dataset that is distributed, of the same object."""

    def __init__(self, inner, negatives):
        super().__init__(inner, range(4))
        self.negatives, self.drawn = negatives, None

    def __getitems__(self, indices):
        self.drawn = self.drawn or iter(self.negatives)
        return [(next(self.drawn).item(), self.dataset[index]) for index in indices]


def test_a_fetch_within_a_fetch_is_at_its_own_epoch():
    """One thread does not wait for itself, and goes on at the outer epoch."""
    strategy, inner = tdi.OneDeviceStrategy("cpu"), Shifted()
    negatives = strategy.distribute_dataset(inner, global_batch_size=1)
    negatives.set_epoch(3)
    train = strategy.distribute_dataset(WithNegatives(inner, negatives), global_batch_size=4)
    drawn, examples = next(iter(train))
    assert [3000, 3001, 3002, 3003] == drawn.tolist()
    assert [0, 1, 2, 3] == examples.tolist()


def test_nobody_tells_another_epoch_while_a_source_is_started():
    """Processes that its loader forks there would have that one."""

    class Started(Told):
        def __iter__(self):
            teller = threading.Thread(target=tell_epoch, args=(self, 60))
            teller.start()
            teller.join(0.2)  # it waits for the start
            started_at.append(self.epoch)
            tellers.append(teller)
            return iter(range(8))

    started_at, tellers = [], []
    run = SourceRun(Started(), epoch=50)
    tellers[0].join()
    assert [50] == started_at
    assert list(range(8)) == list(run.items)


class Wrapper(Dataset):
    """A transform of examples, which keeps its dataset under a name of its own."""

    def __init__(self, name, dataset):
        self.name = name
        setattr(self, name, dataset)

    def __len__(self):
        return len(getattr(self, self.name))

    def __getitem__(self, index):
        return getattr(self, self.name)[index]


@pytest.mark.parametrize("name", ["dataset", "base", "data", "_inner"])
def test_what_a_dataset_of_the_users_holds(name):
    """It is told the epoch, whatever the attribute is called, and through several of them."""
    source = Wrapper(name, Wrapper("wrapped", Shifted()))
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(source, global_batch_size=30)
    assert [0, 1000, 2000] == [batch[0].item() for _ in range(3) for batch in dataset]
