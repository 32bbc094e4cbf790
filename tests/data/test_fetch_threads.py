"""Threads that fetch, by themselves; with sources in tests/distribute/test_fetch_threads.py."""

from __future__ import annotations

import pytest

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
