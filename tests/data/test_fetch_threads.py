"""Threads that fetch, by themselves; with sources in tests/distribute/test_fetch_threads.py."""

from __future__ import annotations

import threading
from functools import partial

import pytest
import torch

from tests.interrupts import interrupt_at
from torch_distinput.data.loader.fetch_threads import FetchThreads


def interrupted_tasks(at):
    """Ctrl-C comes while a task is drawn, once."""
    for number in range(100):
        if number == at:
            raise KeyboardInterrupt
        yield number


def test_nothing_follows_what_an_interruption_may_have_lost():
    """Else a batch would be missing among those that come."""
    results = FetchThreads(str, interrupted_tasks(at=6), num_threads=2)
    assert ["0", "1"] == [next(results), next(results)]
    with pytest.raises(KeyboardInterrupt):
        next(results)
    assert [] == list(results)


def test_an_interruption_while_they_start_leaves_none():
    """Wherever it comes."""

    def start():
        started.append(FetchThreads(str, iter(range(9)), num_threads=2))

    number, started = 1, []
    while interrupt_at(number, start, watches=lambda path: path.endswith("fetch_threads.py")):
        for results in started:
            results.close()
        for thread in threading.enumerate():
            if thread.name.startswith("torch_distinput-fetch"):
                thread.join(10)
                assert not thread.is_alive(), number
        number += 1
    assert number > 10


def test_they_have_the_gpu_of_who_starts_them(monkeypatch):
    """What is current is so in one thread: a ``.cuda()`` in another one is GPU 0 on all ranks."""
    current = threading.local()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: getattr(current, "gpu", 0))
    monkeypatch.setattr(torch.cuda, "set_device", partial(setattr, current, "gpu"))
    torch.cuda.set_device(3)
    results = FetchThreads(lambda _: torch.cuda.current_device(), iter(range(4)), num_threads=2)
    assert [3] * 4 == list(results)
