"""A stream that is distributed twice: each of them reads it at its own epoch."""

from __future__ import annotations

import pytest
from torch.utils.data import DataLoader, IterableDataset

from tests.distribute.street import one
from torch_distinput.data.user_sources.epochs import AtEpoch
from torch_distinput.testing import simulate


class Lazy(IterableDataset):
    """It looks at its epoch when it yields."""

    epoch = -1

    def __init__(self):
        self.told = []

    def set_epoch(self, epoch):
        self.epoch = epoch
        self.told.append(epoch)

    def __iter__(self):
        for _ in range(12):
            yield self.epoch


def bare(stream):
    """By itself."""
    return stream, {"global_batch_size": 2}


def loaded(stream):
    """In a DataLoader."""
    return DataLoader(stream, batch_size=2), {}


def epochs_in(steps):
    """What is in some steps."""
    return {x for step in steps for x in step.tolist()}


def play(strategy, wrap):
    """Evaluate after each step of the second epoch."""
    source, keywords = wrap(Lazy())
    train, evaluate = (strategy.distribute_dataset(source, **keywords) for _ in range(2))
    assert {0} == epochs_in(train)
    trained = set()
    for step in train:
        trained |= epochs_in([step])
        evaluate.set_epoch(5)
        assert {5} == epochs_in(evaluate)
    return trained


@pytest.mark.parametrize("wrap", [bare, loaded])
def test_at_two_epochs(wrap):
    assert {1} == play(one(), wrap)


@pytest.mark.parametrize("wrap", [bare, loaded])
def test_at_two_epochs_by_two_workers(wrap):
    """Which read it ahead, in threads of their own."""
    assert [{1}, {1}] == simulate(lambda strategy: play(strategy, wrap), num_workers=2)


def test_an_epoch_is_told_once():
    """Telling may be slow, or begin something."""
    stream = Lazy()
    dataset = one().distribute_dataset(stream, global_batch_size=2)
    assert [{0}, {1}] == [epochs_in(dataset) for _ in range(2)]
    assert [0, 1] == stream.told


def test_passing_over_many_examples_lets_others_read(monkeypatch):
    """A resume may take minutes, and whoever is at another epoch waits for two at most."""

    class Long(Lazy):
        def __iter__(self):
            yield from range(4_000)

    def distribute():
        return one().distribute_dataset(Long(), global_batch_size=500)

    first = distribute()
    steps = iter(first)
    for _ in range(6):
        next(steps)
    resumed = distribute()
    resumed.load_state_dict(first.state_dict())
    entered = []
    whole = AtEpoch.__enter__
    monkeypatch.setattr(AtEpoch, "__enter__", lambda self: entered.append(self) or whole(self))
    assert 3_000 == next(iter(resumed))[0]
    assert 5 == len(entered)  # its start, 3,000 that are passed over, and the next 500
