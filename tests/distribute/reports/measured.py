"""Clocks that stand still until they are told, and logs of steps that were never played."""

from __future__ import annotations

import threading
from collections.abc import Callable

from torch_distinput.distribute.reports.rank_times import sum_up
from torch_distinput.distribute.reports.step_log import Measurement
from torch_distinput.distribute.reports.verdict import judge
from torch_distinput.meter import (
    AGREEMENT,
    COLLATE,
    COPY,
    DECODE,
    SOURCE,
    YOUR_STEP,
    Work,
    WorkClock,
)

Delay = Callable[[int, int, str], float]
"""Seconds that a rank needs in a step at a station."""


class FakeClock(threading.local):
    """Each worker of a simulation has its own time, and the rank that it stands for."""

    def __init__(self):
        self.time, self.rank = 0.0, None

    def __call__(self):
        return self.time


def play(num_ranks: int, num_steps: int, delay: Delay, *, all_reduce: bool, votes: bool = False):
    """The logs of ranks whose steps take as long as ``delay`` says.

    ``all_reduce``: the ranks end each step together. ``votes``: they begin it together.
    """
    logs = [Measurement(WorkClock()).open(0) for _ in range(num_ranks)]
    times = [0.0] * num_ranks
    for step in range(num_steps):
        works = [
            Work(*(delay(rank, step, name) for name in (SOURCE, DECODE, COLLATE)))
            for rank in range(num_ranks)
        ]
        there = [
            time + w.source + w.decode + w.collate for time, w in zip(times, works, strict=True)
        ]
        agreed = [max(there) if votes else own for own in there]
        agreed = [time + delay(rank, step, AGREEMENT) for rank, time in enumerate(agreed)]
        had = [time + delay(rank, step, COPY) for rank, time in enumerate(agreed)]
        for rank, log in enumerate(logs):
            works[rank].voted = there[rank] if votes else None
            pull = (times[rank], agreed[rank], works[rank], True, 0.0, 0.0)
            log.add((step, 8, times[rank], had[rank], pull))
        times = [time + delay(rank, step, YOUR_STEP) for rank, time in enumerate(had)]
        if all_reduce:
            times = [max(times)] * num_ranks
    return logs


def verdict_of(logs, *, has_device=False):
    """What is said of them."""
    return judge([sum_up(log, rank, has_device=has_device) for rank, log in enumerate(logs)])
