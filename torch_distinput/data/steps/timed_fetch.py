"""Examples by index, fetched here or elsewhere, with what that took."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from torch_distinput import meter
from torch_distinput.data.sources.spot_check import SpotCheck
from torch_distinput.data.steps.local_step import LocalStep
from torch_distinput.meter import WorkClock


class TimedBatch(NamedTuple):
    """What comes home from where examples were fetched.

    Attributes:
        batch: what was asked for.
        source: seconds of reading.
        collate: seconds of making the batch.
    """

    batch: Any
    source: float
    collate: float


@final
@dataclass(frozen=True, slots=True)
class TimedFetch:
    """Fetches examples elsewhere, and says what it took. Picklable as ``run`` is."""

    run: Callable[[Any], Any]
    clock: WorkClock

    def __call__(self, task: Any) -> Any:
        """Fetch; a check is no step."""
        if isinstance(task, SpotCheck):
            return self.run(task)
        self.clock.take()
        started = meter.now()
        batch = self.run(task)
        seconds = meter.now() - started
        _, collate = self.clock.take()
        return TimedBatch(batch, seconds - collate, collate)


def time_fetched(
    fetched: Iterator[tuple[LocalStep, int]], clock: WorkClock
) -> Iterator[tuple[LocalStep, int]]:
    """Steps that are fetched here, when they are asked for."""
    clock.take()
    while True:
        started = meter.now()
        item = next(fetched, None)
        if item is None:
            return
        seconds = meter.now() - started
        work = item[0].trace.work
        _, collate = clock.take()
        if work is not None:
            work.source, work.collate = seconds - collate, collate
        yield item
