"""A loop is left while a thread is in a slow read: the next epoch does not read beside it."""

from __future__ import annotations

import threading

import pytest

import torch_distinput as tdi
from torch_distinput.device import prefetch
from torch_distinput.device.backend import CpuBackend


@pytest.fixture
def strategy(monkeypatch):
    """One replica on a device that is not the CPU."""
    monkeypatch.setattr(prefetch, "backend_for", lambda device: CpuBackend())
    return tdi.MirroredStrategy(["meta:0"])


class SlowOnce:
    """Counts who is inside of it; the first time it is slow at example 2."""

    def __init__(self, size):
        self.size, self.inside, self.most = size, [], 0
        self.is_slow, self.gate = threading.Event(), threading.Event()

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        self.inside.append(index)
        self.most = max(self.most, len(self.inside))
        if index == 2 and not self.is_slow.is_set():
            self.is_slow.set()
            assert self.gate.wait(20)
        self.inside.remove(index)
        return index


def test_a_slow_read_is_not_overlapped_by_the_next_epoch(strategy, monkeypatch):
    """Also one that takes longer than whoever leaves the loop waits for it."""
    monkeypatch.setattr(prefetch, "_LEAVE_SECONDS", 0.0)
    source = SlowOnce(20)
    dataset = strategy.distribute_dataset(source, global_batch_size=2)
    with iter(dataset) as steps:
        next(steps)
        assert source.is_slow.wait(20)
    opener = threading.Timer(0.2, source.gate.set)
    opener.start()
    assert list(range(20)) == [example for step in dataset for example in step.tolist()]
    assert 1 == source.most
    opener.join(60)


def test_a_read_that_does_not_return_is_named_when_the_next_epoch_begins(
    strategy, monkeypatch
):
    monkeypatch.setattr(prefetch, "_LEAVE_SECONDS", 0.0)
    source = SlowOnce(20)
    dataset = strategy.distribute_dataset(
        source, global_batch_size=2, options=tdi.InputOptions(timeout=0.1)
    )
    with iter(dataset) as steps:
        next(steps)
        assert source.is_slow.wait(20)
    with pytest.raises(tdi.SourceError, match="not returned from reading a step"):
        iter(dataset)
    source.gate.set()
    for thread in threading.enumerate():
        if thread.name == "torch_distinput-prefetch":
            thread.join(60)
    assert 10 == len(list(dataset))
