"""What a bar shows of an iterator, read at the moment at which it is drawn.

A step moves the bar by one and costs nothing else: examples and waiting are counted by the iterator
anyway, and a bar is drawn ten times a second at most.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, final

from torch_distinput.rendering.units import show_count

if TYPE_CHECKING:
    from torch_distinput import DistributedDataset, DistributedIterator


@final
class EpochReading:
    """Reads one iterator.

    Attributes:
        title: what stands before the bar.
        first_step: steps of the epoch that were delivered before this iterator was made.
        num_steps: steps of the whole epoch; None where they are not known.
    """

    def __init__(
        self,
        dataset: DistributedDataset,
        iterator: DistributedIterator,
        *,
        desc: str | None,
        total: int | None,
    ) -> None:
        """Look at an iterator that has just been made."""
        # There is no public way to ask an iterator what it counts for its dataset.
        self._iterator = iterator
        self._record = iterator._run.record  # noqa: SLF001
        before = self._record.before
        self.title = f"Epoch {before.epoch}" if desc is None else desc
        self.first_step = before.steps
        # Asked after iter(), which has counted the files.
        known = dataset._input.num_steps(before) if total is None else total  # noqa: SLF001
        self.num_steps = known
        self._started = time.perf_counter()

    @property
    def steps(self) -> int:
        """Steps of the epoch delivered until now, those before a resumed position included."""
        return self._record.steps

    @property
    def text(self) -> str:
        """The examples in sync, counted as the steps are, and this rank's share of waiting."""
        seconds = time.perf_counter() - self._started
        waited = self._iterator._waited  # noqa: SLF001 - stats() would copy all counters
        examples = show_count(self._record.examples, "example")
        return f"{examples}, waiting {waited / max(seconds, 1e-9):.0%}"
