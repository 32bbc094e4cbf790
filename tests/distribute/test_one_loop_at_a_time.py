"""A source that keeps its place itself has one: of two loops over it each would lose examples."""

from __future__ import annotations

import copy

import pytest
from torch.utils.data import IterableDataset

import torch_distinput as tdi
from tests.distribute.stateful_sources import Counting

SIZE = 4


class OfIterators(IterableDataset):
    """The same numbers; each iterator has a place of its own."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return OneIterator(self.count)


class OneIterator:
    """Numbers, and where it is."""

    def __init__(self, count):
        self.left, self.place = count, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.place == self.left:
            raise StopIteration
        self.place += 1
        return self.place - 1

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


def distribute(*sources):
    strategy = tdi.OneDeviceStrategy("cpu")
    return [strategy.distribute_dataset(source, global_batch_size=SIZE) for source in sources]


def numbers(steps):
    return [step.tolist() for step in steps]


WHOLE = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_loop_does_not_go_on_behind_a_replay(step):
    """It yielded what the replay had not read: the same examples again, or nothing more."""
    (dataset,) = distribute(Counting(10))
    start = dataset.state_dict()
    iterator = iter(dataset)
    assert WHOLE[0] == next(iterator).tolist()
    assert WHOLE[step] == dataset.replay(start, step).batches[0].tolist()
    with pytest.raises(tdi.SourceError, match=r"Counting .* one loop at a time.*copy.deepcopy"):
        next(iterator)


def test_a_replay_after_a_loop_changes_nothing():
    (dataset,) = distribute(Counting(10))
    start = dataset.state_dict()
    assert WHOLE == numbers(dataset)
    assert WHOLE[1] == dataset.replay(start, 1).batches[0].tolist()
    assert WHOLE == numbers(dataset)


def test_two_loops_over_one_source():
    source = Counting(10)
    first, second = map(iter, distribute(source, source))
    assert WHOLE[0] == next(first).tolist()
    assert WHOLE == numbers(second)
    with pytest.raises(tdi.SourceError, match="one loop at a time"):
        next(first)


def test_one_after_the_other():
    source = Counting(10)
    for dataset in distribute(source, source) * 2:
        assert WHOLE == numbers(dataset)


@pytest.mark.parametrize("kind", [Counting, OfIterators])
def test_two_loops_over_copies_or_iterators(kind):
    source = kind(10)
    other = source if kind is OfIterators else copy.deepcopy(source)
    both = zip(*distribute(source, other), strict=True)
    assert [(step, step) for step in WHOLE] == [tuple(numbers(steps)) for steps in both]
