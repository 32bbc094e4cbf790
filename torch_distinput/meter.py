"""Measures where the time of a step goes, for who asks for it (``InputOptions(trace=...)``).

    where a step is made       Work      seconds at source, decode and collate; it travels with it
    where steps are pulled     Pull      when the step was asked for there, and when it was there
    in the training loop       RawMark   when the loop asked for the step, and when it had it

A step costs a few readings of one clock. What they mean is worked out when a report is asked for:
:func:`split_wait` says what the loop has waited for.

    thread                 writes                        reads     guarded by
    any that makes steps   WorkClock: decode, collate    the same  each thread has its own
    who makes a step       its Work                                one thread or process at a time
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, final

T = TypeVar("T")

now = time.perf_counter
"""The clock of all measurements, in seconds. Called as ``meter.now()``: tests set another one."""

STATIONS = ("source", "decode", "collate", "agreement", "copy", "your step")
"""Where the time of a step goes, in the order of the way.

source: reading, and whatever cannot be told apart from it. decode: a reader's ``decode``, maps and
filters of files. collate: from examples to a batch. agreement: waiting for other ranks' steps, or
for the rank that reads for this one. copy: to the devices, and handing over. your step: from one
step handed over to the next one asked for.
"""
SOURCE, DECODE, COLLATE, AGREEMENT, COPY, YOUR_STEP = STATIONS
INPUT_STATIONS = (SOURCE, DECODE, COLLATE, COPY)
"""Where a rank waits for its own input."""


@final
@dataclass(slots=True)
class Work:
    """Seconds that making one step took, overlapped or not; filled in where it is made.

    Attributes:
        source: reading.
        decode: decoding, mapping and filtering.
        collate: making the batch.
        voted: when this rank voted on the step, the last time before all agreed on it; None where
            nobody votes.
    """

    source: float = 0.0
    decode: float = 0.0
    collate: float = 0.0
    voted: float | None = None


Pull = tuple[float, float, "Work | None", bool, float, float]
"""How a step came to the thread that pulls steps: the loop's own, or one that copies ahead.

When it asked for the step, and when it was there; what making it took, where that came with it;
whether this rank has read something for it; and what the thread has decoded and collated until
then, by its :class:`WorkClock`. A plain tuple, as is the next one: they are made once a step.
"""
RawMark = tuple[int, int, float, float, Pull]
"""How a step came to the training loop.

Its number within the epoch, the examples over all replicas in sync, when the loop asked for it,
when it had it, and how it came to who pulled it.
"""


class StepMark(NamedTuple):
    """The same, with names.

    Attributes:
        step: its number within the epoch.
        num_examples: examples over all replicas in sync.
        asked: when the loop asked for it.
        had: when it had it.
        pull_asked: when who pulled it asked for it.
        pull_had: when it was there.
        work: what making it took.
        is_own: this rank has read something for it.
    """

    step: int
    num_examples: int
    asked: float
    had: float
    pull_asked: float
    pull_had: float
    work: Work | None
    is_own: bool


def read_mark(raw: RawMark, before: RawMark | None) -> StepMark:
    """Give the times of a step their names.

    ``before``: the one before. What was made where it was pulled took all of that time, and of it
    what the clock of that thread has counted in between was decoding and collating.
    """
    step, num_examples, asked, had, (pull_asked, pull_had, work, is_own, *counted) = raw
    if work is None and is_own:
        last = counted if before is None else before[4][4:]
        decode, collate = (max(0.0, own - old) for own, old in zip(counted, last, strict=True))
        source = max(0.0, pull_had - pull_asked - decode - collate)
        work = Work(source, decode, collate)
    return StepMark(step, num_examples, asked, had, pull_asked, pull_had, work, is_own)


@final
class WorkClock(threading.local):
    """Adds up what a thread does inside of its reading and finishing, until that is taken."""

    def __init__(self) -> None:
        """Nothing yet, in each thread."""
        self.decode = 0.0
        self.collate = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        """A loader process counts for itself."""
        return WorkClock, ()

    def take(self) -> tuple[float, float]:
        """Seconds of decode and of collate since the last call."""
        taken = self.decode, self.collate
        self.decode = self.collate = 0.0
        return taken


def time_decode(clock: WorkClock | None, call: Callable[..., T]) -> Callable[..., T]:
    """Count the time of a function as decode; the function itself where nothing is measured."""
    if clock is None:
        return call

    def timed(*args: Any) -> T:
        started = now()
        try:
            return call(*args)
        finally:
            clock.decode += now() - started

    return timed


class Wait(NamedTuple):
    """Seconds that the loop waited for a step, by whom it waited for.

    Attributes:
        own: this rank's own reading and making.
        agreement: other ranks.
        copy: the copy to the devices, and handing over.
    """

    own: float
    agreement: float
    copy: float


def split_wait(mark: StepMark, *, is_shared: bool = False) -> Wait:
    """Return whom the loop waited for.

    ``is_shared``: one rank reads for others, so that it waits for them, and they wait for it.

        loop                    asked |---------------------------| had
        who pulls     asked |-------------------------------| had
        votes                   voted |
                                      | own |   agreement   | copy |

    Without an agreement all of the middle is the rank's own.
    """
    first, last = max(mark.asked, mark.pull_asked), min(mark.had, mark.pull_had)
    pulled = max(0.0, last - first)
    own = _own_part(mark, first, pulled, is_shared=is_shared)
    return Wait(own, pulled - own, max(0.0, mark.had - mark.asked - pulled))


def _own_part(mark: StepMark, first: float, pulled: float, *, is_shared: bool) -> float:
    """Of the time that a step was pulled, what this rank needed for its own part of it."""
    if not mark.is_own:
        return 0.0
    work = mark.work
    if work is not None and work.voted is not None:
        return min(max(0.0, work.voted - first), pulled)
    if is_shared:
        return 0.0 if work is None else min(pulled, work.source + work.decode + work.collate)
    return pulled


def divide_own(seconds: float, works: Iterable[Work | None]) -> dict[str, float]:
    """Divide a rank's wait for itself over source, decode and collate, as the making of steps was.

    Who makes steps in a thread or process that needs 9 ms to read and 1 ms to collate is waited for
    nine tenths for the source, also where it works on several steps at once. What was not measured
    is source.
    """
    known = [work for work in works if work is not None]
    made = {
        SOURCE: sum(work.source for work in known),
        DECODE: sum(work.decode for work in known),
        COLLATE: sum(work.collate for work in known),
    }
    total = sum(made.values())
    if not total > 0.0:
        return {SOURCE: seconds, DECODE: 0.0, COLLATE: 0.0}
    return {station: seconds * part / total for station, part in made.items()}
