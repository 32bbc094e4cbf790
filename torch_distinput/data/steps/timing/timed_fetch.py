"""Examples by index that are fetched elsewhere, and come home with what that took."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from torch_distinput import meter
from torch_distinput.data.sources.spot_check import SpotCheck
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
