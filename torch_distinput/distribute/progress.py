"""What has been delivered of an epoch: written where steps are handed out, read for a state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch_distinput.plan.position import Position


class Progress:
    """Outlives its iterator, so that a loop that was left can still be saved."""

    def __init__(self, before: Position) -> None:
        """Start where the iterator starts."""
        self.before = before
        self._where: Callable[[], Position] | None = None
        self.steps = before.steps
        self.examples = before.examples

    def deliver(self, num_examples: int, where: Callable[[], Position]) -> None:
        """Note a step; ``where`` tells the position after it, if anybody asks."""
        self.steps += 1
        self.examples += num_examples
        self._where = where

    @property
    def position(self) -> Position:
        """Where the epoch stands after the last step; as it was given before the first."""
        if self._where is None:
            return self.before
        return replace(self._where(), steps=self.steps, examples=self.examples)
