"""How long a worker waits for another."""

from __future__ import annotations

import time

_LONGEST_LOOK = 2.0
"""Seconds between two looks; what is more was no waiting."""


class WaitLimit:
    """Seconds that a wait may take while this process runs; to be asked several times a second.

    A process that was stopped, or its machine suspended, has not waited meanwhile: when it goes on,
    the others may need a moment, too.
    """

    def __init__(self, seconds: float) -> None:
        """Begin to wait."""
        self._left = seconds
        self._looked_at = time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        now = time.monotonic()
        self._left -= min(now - self._looked_at, _LONGEST_LOOK)
        self._looked_at = now
        return self._left <= 0
