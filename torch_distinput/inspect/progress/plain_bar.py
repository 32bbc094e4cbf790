"""A bar without tqdm: one line of a terminal, written again and again."""

from __future__ import annotations

import sys
import time
from typing import final

from torch_distinput.inspect.progress.reading import EpochReading
from torch_distinput.rendering.units import show_count

_SECONDS_BETWEEN = 0.1


@final
class PlainBar:
    """Draws a reading on stderr, at most ten times a second."""

    def __init__(self, reading: EpochReading) -> None:
        """Draw it for the first time."""
        self._reading = reading
        self._file = sys.stderr
        self._width = 0
        self._is_open = True
        self._draw()

    def show_steps(self) -> None:
        """Draw again if it is time to."""
        if time.perf_counter() >= self._due:
            self._draw()

    def close(self) -> None:
        """Draw for the last time, and end the line."""
        if self._is_open:
            self._is_open = False
            self._draw()
            self._file.write("\n")

    def _draw(self) -> None:
        reading = self._reading
        steps = show_count(reading.steps, "step")
        if reading.num_steps is not None:
            steps = f"{reading.steps:,}/{show_count(reading.num_steps, 'step')}"
        line = f"{reading.title}: {steps}, {reading.text}"
        self._file.write(f"\r{line:{self._width}}")
        self._file.flush()
        self._width = len(line)
        self._due = time.perf_counter() + _SECONDS_BETWEEN
