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
                cut = CutRows(cut.chunk, cut.sizes, cut.mark, with_work(cut.trace, work))
            yield cut


@final
@dataclass(frozen=True, slots=True)
class TimedFinish:
    """Maps and collates the rows of a step, and notes what that took. Picklable as ``finish`` is.

    Attributes:
        finish: does it.
        clock: counts decoding apart.
        tells_collate: what is left is collating; else reading may be in it, and it is source.
    """

    finish: Callable[[Any], Any]
    clock: WorkClock
    tells_collate: bool

    @staticmethod
    def of(finish: Callable[[Any], Any], stream: Stream, clock: WorkClock) -> TimedFinish:
        """Take what finishes rows of a stream."""
        return TimedFinish(finish, clock, isinstance(stream, (FileStream, CollatedStream)))

    def __call__(self, item: CutRows | ReadReport) -> LocalStep | ReadReport:
        """Make the step; notes pass."""
        work = None if isinstance(item, ReadReport) else item.trace.work
        if work is None:
            return self.finish(item)  # type: ignore[no-any-return]
        self.clock.take()
        started = meter.now()
        step = self.finish(item)
        seconds = meter.now() - started
        decode, _ = self.clock.take()
        work.decode += decode
        if self.tells_collate:
            work.collate += seconds - decode
        else:
            work.source += seconds - decode
        return step  # type: ignore[no-any-return]


def time_steps(steps: Iterator[LocalStep]) -> Iterator[LocalStep]:
    """Steps that know what they took, also ready batches, which are the source's own affair."""
    while True:
        started = meter.now()
        step = next(steps, None)
        if step is None:
            return
        if step.trace.work is None:
            work = Work(meter.now() - started)
            step = replace(step, trace=with_work(step.trace, work))
        yield step


def note_vote(steps: list[LocalStep]) -> None:
    """Keep when this rank votes on steps: from then on it waits for the others."""
    voted = meter.now()
    for step in steps:
        if step.trace.work is not None:
            step.trace.work.voted = voted


def time_fetch(fetch: Any, clock: WorkClock) -> Any:
    """What fetches examples by index, and counts collating them apart, if it can tell it apart."""
    if isinstance(fetch, ExampleFetch):
        return replace(fetch, clock=clock)
    if isinstance(fetch, MixedFetch):
        inner = tuple(time_fetch(own, clock) for own in fetch.fetches)
        return replace(fetch, fetches=inner, clock=clock)
    return fetch
