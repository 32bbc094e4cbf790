"""Wrappers that hand on what they have not, by ``__getattr__``: what they do themselves counts."""

from __future__ import annotations

from collections import deque

import pytest
from torch.utils.data import IterableDataset, Subset

import torch_distinput as tdi
from tests.distribute.example_sources import Squares, first, flat
from tests.distribute.street import Shards, options, shown
from torch_distinput.testing import simulate


class Wrapper:
    """Examples of another source, made into others."""

    def __init__(self, source):
        self.source = source

    def __iter__(self):
        return (-example for example in self.source)

    def __getattr__(self, name):
        return getattr(self.source, name)


@pytest.mark.parametrize("policy", ["auto", "data"])
def test_of_shards(policy):
    """What would be dealt out is what it wraps."""

    def work(strategy):
        source = Wrapper(Shards([[1, 2], [3, 4]]))
        dataset = strategy.distribute_dataset(
            source, global_batch_size=2, options=options(auto_shard_policy=policy)
        )
        return [shown(strategy, step) for step in dataset]

    assert [-4, -3, -2, -1] == sorted(flat(simulate(work, num_workers=2)))


def test_of_what_has_a_length():
    """It can only be iterated, whatever it hands on."""
    assert [-1, -2] == first(Wrapper([1, 2, 3]), 2).tolist()
    assert [-1, -2] == first(tdi.mix({"a": Wrapper([1, 2, 3])}, weights=(1,)), 2).tolist()


class Registry(type):
    """The kind of classes that know their instances."""

    def __len__(cls):
        return 0

    def __getitem__(cls, name):
        raise KeyError(name)

    def __next__(cls):
        raise StopIteration


def test_what_the_class_of_a_class_has_is_not_of_its_objects():
    class Listed(metaclass=Registry):
        def __iter__(self):
            return iter([1, 2, 3])

    assert [1, 2] == first(Listed(), 2).tolist()


class IndexedWrapper(Wrapper):
    """The same by index."""

    def __len__(self):
        return len(self.source)

    def __getitem__(self, index):
        return -self.source[index]


@pytest.mark.parametrize("wraps", [Squares(5, many=True), Subset(Squares(5), range(5))])
def test_of_what_gives_many_examples_at_once(wraps):
    """These are of what it wraps; so they are in a subset of the wrapper."""
    assert [0, -1, -4] == first(IndexedWrapper(wraps), 3).tolist()
    assert [-4, -9] == first(Subset(IndexedWrapper(wraps), [2, 3]), 2).tolist()


class Counted(IterableDataset):
    """A stream that tells where it is."""

    at = 0

    def __iter__(self):
        while self.at < 20:
            self.at += 1
            yield self.at
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Buffering(Wrapper):
    """It is behind what it wraps."""

    def __iter__(self):
        waiting = deque()
        for example in self.source:
            waiting.append(-example)
            if len(waiting) > 3:
                yield waiting.popleft()
        yield from waiting


@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_of_what_has_a_state(num_steps):
    """That is not where the wrapper is: an epoch that goes on by it would lose what waits."""

    def distributed():
        strategy = tdi.OneDeviceStrategy("cpu")
        return strategy.distribute_dataset(Buffering(Counted()), global_batch_size=4)

    with iter(distributed()) as iterator:
        seen = [next(iterator).tolist() for _ in range(num_steps)]
        state = iterator.state_dict()
    resumed = distributed()
    resumed.load_state_dict(state)
    seen += [step.tolist() for step in resumed]
    assert [*range(-1, -21, -1)] == [example for step in seen for example in step]


class SometimesStateful(IterableDataset):
    """It has a state where what it wraps has one, as libraries do it."""

    def __init__(self, source):
        self.source = source

    @property
    def state_dict(self):
        return self.source.state_dict

    @property
    def load_state_dict(self):
        return self.source.load_state_dict

    def __iter__(self):
        return iter(self.source)


@pytest.mark.parametrize("make", [Counted, lambda: range(1, 21)])
def test_a_state_that_only_some_objects_of_a_class_have(make):
    def distributed():
        strategy = tdi.OneDeviceStrategy("cpu")
        return strategy.distribute_dataset(SometimesStateful(make()), global_batch_size=4)

    with iter(distributed()) as iterator:
        assert [1, 2, 3, 4] == next(iterator).tolist()
        state = iterator.state_dict()
    resumed = distributed()
    resumed.load_state_dict(state)
    assert [*range(5, 21)] == [example for step in resumed for example in step.tolist()]


class Anything(Squares):
    """It has whatever it is asked for, as a mock."""

    def __getattr__(self, name):
        return self if not name.startswith("__") else super().__getattribute__(name)


def test_a_source_that_has_every_attribute():
    assert [0, 1, 4] == first(Anything(5), 3).tolist()
