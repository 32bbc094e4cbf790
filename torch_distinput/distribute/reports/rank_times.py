"""From the times of a rank's steps to the few numbers that the ranks show each other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING

from torch_distinput.meter import (
    AGREEMENT,
    COLLATE,
    COPY,
    DECODE,
    INPUT_STATIONS,
    SOURCE,
    YOUR_STEP,
    divide_own,
    split_wait,
)

if TYPE_CHECKING:
    from torch_distinput.distribute.reports.step_log import StepLog
    from torch_distinput.meter import StepMark

_LONGEST = 100
"""Of so many waits the longest one is left out, and of fewer too: a stall is not the rule."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankTimes:
    """Where the time of one rank's steps went, from :class:`RunReport`. All times are in seconds.

    The first step is left out, since everything starts in it, and of each 100 steps the one that
    was waited for longest.

    Attributes:
        rank: the worker's index.
        num_steps: steps measured.
        waits: by station what the training loop waited for it, on average over the steps.
        own_step: from one step handed over to the next one asked for: the median, so that a
            checkpoint now and then changes nothing.
        work: what making a step took at source, decode and collate, on average, wherever it was
            made. More than the wait where it overlaps your step, or where several processes work.
        has_device: the steps go to an accelerator, whose work the times of the host do not show.
    """

    rank: int
    num_steps: int
    waits: Mapping[str, float]
    own_step: float
    work: Mapping[str, float]
    has_device: bool = False

    @property
    def step(self) -> float:
        """A step: what is waited for it, and your own."""
        return sum(self.waits.values()) + self.own_step

    @property
    def input_wait(self) -> float:
        """What a step waits for this rank's own input: not for other ranks."""
        return sum(self.waits[station] for station in INPUT_STATIONS)

    def share(self, station: str) -> float:
        """What part of a step goes to a station, from 0 to 1."""
        seconds = self.own_step if station == YOUR_STEP else self.waits[station]
        return seconds / self.step if self.step else 0.0


def sum_up(log: StepLog, rank: int, *, has_device: bool) -> RankTimes:
    """Sum up the steps of a log."""
    marks = log.marks
    waits = [split_wait(mark, is_shared=log.is_shared) for mark in marks]
    kept = sorted(waits, key=sum)[: len(waits) - math.ceil(len(waits) / _LONGEST)]
    own = _mean([wait.own for wait in kept])
    own_steps = [after.asked - mark.had for mark, after in itertools.pairwise(marks)]
    return RankTimes(
        rank=rank,
        num_steps=len(own_steps),
        waits={
            **divide_own(own, (mark.work for mark in marks)),
            AGREEMENT: _mean([wait.agreement for wait in kept]),
            COPY: _mean([wait.copy for wait in kept]),
        },
        own_step=median(own_steps) if own_steps else 0.0,
        work=_mean_work(marks),
        has_device=has_device,
    )


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


def _mean_work(marks: Sequence[StepMark]) -> dict[str, float]:
    known = [mark.work for mark in marks if mark.work is not None]
    return {
        SOURCE: _mean([work.source for work in known]),
        DECODE: _mean([work.decode for work in known]),
        COLLATE: _mean([work.collate for work in known]),
    }
