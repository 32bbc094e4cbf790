"""Streams whose steps know what making them took, and fetches that can tell it.

Nothing of this runs where nobody asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, final

from torch.utils.data import IterableDataset

from torch_distinput import meter
from torch_distinput.data.files.stream import FileStream
from torch_distinput.data.sources.examples import CollatedStream
from torch_distinput.data.sources.indexed import ExampleFetch
from torch_distinput.data.sources.mixing.mixed_rows import MixedFetch
from torch_distinput.data.steps.local_step import LocalStep, with_work
from torch_distinput.data.steps.rebatch import CutRows
from torch_distinput.data.stream.bad_records import ReadReport
from torch_distinput.data.stream.protocols import Stream
from torch_distinput.meter import Work, WorkClock


def time_stream(stream: Stream, clock: WorkClock) -> Stream:
    """A stream that counts its decoding apart, if it can tell it apart."""
    return replace(stream, clock=clock) if isinstance(stream, FileStream) else stream


@final
class TimedCuts(IterableDataset[Any]):
    """Cut rows with what reading them took. Picklable, for loader processes."""

    def __init__(self, cuts: IterableDataset[Any], clock: WorkClock) -> None:
        """Take the steps of a stream, before they are mapped and collated."""
        self._cuts = cuts
        self._clock = clock

    def __iter__(self) -> Iterator[CutRows | ReadReport]:
        """Yield them; notes pass."""
        cuts, clock, now = iter(self._cuts), self._clock, meter.now
        clock.take()
        while True:
            started = now()
            cut = next(cuts, None)
            if cut is None:
                return
            if isinstance(cut, CutRows):
                seconds = now() - started
                decode, _ = clock.take()
                work = Work(seconds - decode, decode)
                cut = CutRows(cut.chunk, cut.sizes, cut.mark, with_work(cut.facts, work))
            yield cut


@final
@dataclass(frozen=True, slots=True)
class CountedFinish:
    """Maps and collates the rows of a step, and counts what that takes. Picklable as ``finish`` is.

    Attributes:
        finish: does it.
        clock: counts it, where what is not decoding is collating.
    """

    finish: Callable[[Any], Any]
    clock: WorkClock

    def __call__(self, item: CutRows | ReadReport) -> LocalStep | ReadReport:
        """Make the step."""
        clock = self.clock
        decoded, started = clock.decode, meter.now()
        step = self.finish(item)
        clock.collate += meter.now() - started - (clock.decode - decoded)
        return step  # type: ignore[no-any-return]


def count_finish(finish: Callable[[Any], Any], stream: Stream, clock: WorkClock) -> Any:
    """What finishes the rows of a stream, and counts it, unless there may be reading in it."""
    tells = isinstance(stream, (FileStream, CollatedStream))
    return CountedFinish(finish, clock) if tells else finish


@final
@dataclass(frozen=True, slots=True)
class TimedFinish:
    """Finishes steps elsewhere, where :class:`TimedCuts` come from. Picklable as ``finish`` is."""

    finish: Callable[[Any], Any]
    clock: WorkClock

    def __call__(self, item: CutRows | ReadReport) -> LocalStep | ReadReport:
        """Make the step; notes pass."""
        work = None if isinstance(item, ReadReport) else item.facts.work
        self.clock.take()
        started = meter.now()
        step = self.finish(item)
        seconds = meter.now() - started
        decode, collate = self.clock.take()
        if work is not None:
            work.decode += decode
            work.collate += collate
            work.source += seconds - decode - collate
        return step  # type: ignore[no-any-return]


def time_steps(steps: Iterator[LocalStep], clock: WorkClock) -> Iterator[LocalStep]:
    """Steps that are read ahead of an agreement, with what they took."""
    clock.take()
    while True:
        started = meter.now()
        step = next(steps, None)
        if step is None:
            return
        if step.facts.work is None:
            seconds = meter.now() - started
            decode, collate = clock.take()
            work = Work(seconds - decode - collate, decode, collate)
            step = step._replace(facts=with_work(step.facts, work))
        yield step


def note_vote(steps: list[LocalStep]) -> None:
    """Keep when this rank votes on steps: from then on it waits for the others."""
    voted = meter.now()
    for step in steps:
        if step.facts.work is not None:
            step.facts.work.voted = voted


def time_fetch(fetch: Any, clock: WorkClock) -> Any:
    """What fetches examples by index, and counts collating them apart, if it can tell it apart."""
    if isinstance(fetch, ExampleFetch):
        return replace(fetch, clock=clock)
    if isinstance(fetch, MixedFetch):
        inner = tuple(time_fetch(own, clock) for own in fetch.fetches)
        return replace(fetch, fetches=inner, clock=clock)
    return fetch
