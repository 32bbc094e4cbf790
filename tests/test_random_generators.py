"""The generators of a process: whose turn it is, and in which order locks are taken."""

from __future__ import annotations

import random
import threading
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, RandomSampler

from torch_distinput import random_generators
from torch_distinput.data.sources.mixing.mixed_rows import MixedFetch
from torch_distinput.data.user_sources import epochs
from torch_distinput.data.user_sources.epochs import AtEpoch
from torch_distinput.data.user_sources.sampler import sample_batches
from torch_distinput.random_generators import (
    forked_generators,
    put_back_generators,
    seed_generators,
)

SECONDS = 100
"""A watchdog."""


def draw():
    return torch.rand(1).item(), np.random.rand(), random.random()


@pytest.mark.parametrize("context", [forked_generators, put_back_generators])
def test_they_are_put_back(context):
    seed_generators((0, 0))
    expected = draw()
    seed_generators((0, 0))
    with context():
        seed_generators((1, 1))
        other = draw()
    assert other != expected == draw()


class Told(Dataset):
    """Has an epoch."""

    def set_epoch(self, epoch) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index) -> int:
        return index


def test_who_waits_for_a_dataset_does_not_hold_them(monkeypatch):
    """Two threads with one dataset at different epochs: each had what the other waited for."""
    waiting, dataset = threading.Event(), Told()
    begin = epochs._Told._begin

    def note(told, *args, **options):
        if threading.current_thread() is sampling:
            waiting.set()
        begin(told, *args, **options)

    monkeypatch.setattr(epochs._Told, "_begin", note)
    sampling = threading.Thread(
        target=partial(sample_batches, RandomSampler(dataset), 2, drop_last=False, key=(0, 2))
    )
    with AtEpoch(dataset, 1):
        sampling.start()
        assert waiting.wait(SECONDS)
        with forked_generators(patience=SECONDS):
            assert 1 == dataset.epoch
    sampling.join(SECONDS)
    assert not sampling.is_alive()
    assert 2 == dataset.epoch


class Shuffles:
    """A sampler that draws its order where it is told the epoch, in the place of the last one."""

    def __init__(self) -> None:
        self.order = list(range(10))
        self.told: list[int] = []

    def set_epoch(self, epoch) -> None:
        self.told.append(epoch)
        random.shuffle(self.order)

    def __iter__(self):
        return iter(self.order)

    def __len__(self) -> int:
        return len(self.order)


def test_a_sampler_that_draws_in_set_epoch_is_told_once_and_under_a_seed():
    """A second time, or without the seed of all ranks, it would draw another order on each."""
    orders = []
    for seed in (1, 2):
        random.seed(seed)
        sampler, state = Shuffles(), random.getstate()
        batches = sample_batches(sampler, 10, drop_last=False, key=(0, 3))
        assert ([3], state) == (sampler.told, random.getstate())
        orders.append(sampler.order)
        assert sampler.order == batches.order.sequence.tolist()
    assert orders[0] == orders[1] != list(range(10))


class Busy:
    """A lock that is taken; it notes how long somebody would wait for it."""

    def __init__(self) -> None:
        self.timeouts: list[float] = []

    def acquire(self, timeout):
        self.timeouts.append(timeout)
        return timeout < 0

    def release(self) -> None:
        pass


def test_sources_of_a_mixture_are_compared_however_long_that_takes(monkeypatch):
    """Simulated workers, which are threads, have one turn after another."""
    busy = Busy()
    monkeypatch.setattr(random_generators, "named_lock", lambda _: busy)
    fetches = tuple(lambda indices: {"x": torch.from_numpy(indices)} for _ in range(2))
    MixedFetch(names=("a", "b"), fetches=fetches, firsts=np.array([0, 4])).check()
    assert [-1] == busy.timeouts
