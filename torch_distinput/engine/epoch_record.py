"""What has been delivered of an epoch: written where steps are handed out, read for a state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch_distinput.cluster.handshake import NOT_KNOWN
from torch_distinput.data.user_sources.states import next_epoch
from torch_distinput.plan.progress.position import Position, StreamPosition


class EpochRecord:
    """Outlives its iterator, so that a loop that was left can still be saved."""

    def __init__(self, before: Position) -> None:
        """Start where the iterator starts."""
        self.before = before
        self._where: Callable[[], Position] | None = None
        self.steps = before.steps
        self.examples = before.examples
        self.ended = False  # the end of data was delivered, too
        self.failed = False  # it ended with an error

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

    @property
    def steps_to_compare(self) -> int | str:
        """What other workers must have delivered, too; after an error they may be elsewhere."""
        return NOT_KNOWN if self.failed else self.steps

    def followed_by(self, first: Position) -> Position:
        """The beginning of another epoch: a source that tells where it is goes on from there."""
        known = self.position
        if len(known.streams) != len(first.streams):  # of another cluster, and nothing delivered
            return first
        streams = tuple(
            self._next(new, old) for new, old in zip(first.streams, known.streams, strict=True)
        )
        return replace(first, streams=streams)

    def _next(self, new: StreamPosition, old: StreamPosition) -> StreamPosition:
        place = old.segments[0].start if old.segments else None
        start = next_epoch(place, self.before.epoch, ended=self.ended)
        return replace(new, segments=(replace(new.segments[0], start=start),))
