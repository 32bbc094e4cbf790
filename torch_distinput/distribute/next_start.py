"""Where the next ``iter()`` of a dataset starts."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch_distinput.engine.epoch_record import EpochRecord
from torch_distinput.options import check_count
from torch_distinput.plan.progress.position import Position
from torch_distinput.plan.progress.state import from_state

_log = logging.getLogger(__name__)


class NextStart:
    """What a dataset remembers between its iterators.

    Attributes:
        epoch: the epoch to come.
        loaded: the state in which it goes on, if one was loaded.
        shown: what was delivered by the last iterator, for a state; None if another epoch was set.
        played: the same; None if a state was loaded.
    """

    def __init__(self, first: Callable[[int], Position]) -> None:
        """Begin with epoch 0; ``first`` tells the beginning of an epoch."""
        self._first = first
        self.epoch = 0
        self.loaded: dict[str, Any] | None = None
        self.shown: EpochRecord | None = None
        self.played: EpochRecord | None = None

    @property
    def position(self) -> Position:
        """Where the next iterator starts."""
        if self.loaded is not None:
            return from_state(self.loaded)
        first = self._first(self.epoch)
        return first if self.played is None else self.played.begin_next(first)

    @property
    def position_shown(self) -> Position:
        """Where the epoch stands, for a state."""
        return self.position if self.shown is None else self.shown.position

    def begin(self, record: EpochRecord) -> None:
        """An iterator has started: the next one plays the epoch after it."""
        if self.played is not None and self.played.gave_up_its_start:
            _log.warning(
                "The position that was loaded, %d steps into epoch %d, was given up: an iterator "
                "began there and was left before its first step, and now another one begins the "
                "next epoch. Load the state again to play the rest of that epoch.",
                self.played.before.steps,
                self.played.before.epoch,
            )
        self.shown = self.played = record
        self.loaded = None
        self.epoch += 1

    def load(self, state: Mapping[str, Any], epoch: int) -> None:
        """Go on inside the epoch of a state; the caller's dict stays the caller's."""
        self.loaded, self.played = copy.deepcopy(dict(state)), None
        self.epoch = epoch

    def set_epoch(self, epoch: int) -> None:
        """Play an epoch from its beginning, unless it is the one that was loaded."""
        self.epoch = check_count("epoch", epoch, minimum=0)
        if self.loaded is not None:
            if self.loaded["epoch"] == self.epoch:
                return
            _log.warning(
                "set_epoch(%d) drops the position that was loaded, %d steps into epoch %d.",
                self.epoch,
                self.loaded["steps"],
                self.loaded["epoch"],
            )
        self.loaded = self.shown = None

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Let an iterator inside play the epoch from its beginning, and still be to come."""
        epoch, loaded = self.epoch, self.loaded
        self.loaded = self.shown = None
        try:
            yield
        finally:
            self.set_epoch(epoch)
            self.loaded = loaded
