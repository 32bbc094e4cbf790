"""Where the next ``iter()`` of a dataset starts."""

from __future__ import annotations

import copy
import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch_distinput.cluster.handshake import EPOCH, LEFT_AT, PLACE, POSITION
from torch_distinput.engine.epoch_record import EpochRecord
from torch_distinput.options import check_count
from torch_distinput.plan.progress.position import Position
from torch_distinput.plan.progress.state import compact_state, from_state

_log = logging.getLogger(__name__)


class NextStart:
    """What a dataset remembers between its iterators.

    Attributes:
        shown: what was delivered by the last iterator, for a state; None before there was one.
        played: the same; None if a state was loaded.
    """

    def __init__(self, first: Callable[[int], Position]) -> None:
        """Begin with epoch 0; ``first`` tells the beginning of an epoch."""
        self._first = first
        self._epoch = 0
        self._loaded: dict[str, Any] | None = None
        self._resumed: EpochRecord | None = None  # the iterator that went on from what was loaded
        self._hidden_at: int | None = None  # steps of what is shown when another epoch was set
        self._is_aside = False
        self.shown: EpochRecord | None = None
        self.played: EpochRecord | None = None

    @property
    def epoch(self) -> int:
        """The epoch to come."""
        return self._epoch if self.loaded is None else int(self.loaded["epoch"])

    @property
    def loaded(self) -> dict[str, Any] | None:
        """The state from which the next iterator goes on; None if none was loaded.

        An iterator that went on from it and was left before its first step has used nothing up:
        trainers start one more than they read, to look at a loader.
        """
        is_used_up = self._resumed is not None and self._resumed.has_begun
        return None if is_used_up else self._loaded

    @property
    def left(self) -> EpochRecord | None:
        """The epoch that the next iterator follows; None where somebody chose what it plays."""
        return None if self._is_aside or self._hidden_at is not None else self.played

    def copy_loaded(self) -> dict[str, Any]:
        """The state that was loaded, as one to save."""
        assert self.loaded is not None, "asked where a state was loaded"
        return copy.deepcopy(compact_state(self.loaded))

    @property
    def position(self) -> Position:
        """Where the next iterator starts."""
        if self.loaded is not None:
            return from_state(self.loaded)
        first = self._first(self.epoch)
        return first if self.played is None else self.played.begin_next(first)

    @property
    def position_shown(self) -> Position:
        """Where the epoch stands, for a state.

        After set_epoch() the epoch to come; but an iterator that goes on delivering counts again.
        """
        if self.shown is None or self.shown.steps == self._hidden_at:
            return self.position
        return self.shown.position

    def facts(self, position: Position) -> dict[str, object]:
        """What must be equal on all ranks that start at a position."""
        left = {} if self.played is None else {LEFT_AT: self.played.steps_to_compare}
        counted = f"{position.steps} steps, {position.examples} examples"
        return {
            **left,
            EPOCH: position.epoch,
            POSITION: f"{counted} (digest {_digest(replace(position, streams=()))})",
            PLACE: _digest(position.streams),
        }

    def begin(self, record: EpochRecord) -> None:
        """An iterator has started: the next one plays the epoch after it."""
        self._loaded = self.loaded
        self._resumed = None if self._loaded is None else record
        self.shown = self.played = record
        self._hidden_at = None
        self._epoch = record.before.epoch + 1

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on inside the epoch of a state; the caller's dict stays the caller's."""
        self._loaded, self._resumed = copy.deepcopy(dict(state)), None
        self.played = None

    def set_epoch(self, epoch: int) -> None:
        """Play an epoch from its beginning, unless it is the one that was loaded."""
        epoch = check_count("epoch", epoch, minimum=0)
        if self.loaded is not None:
            if self.loaded["epoch"] == epoch:
                return
            _log.warning(
                "set_epoch(%d) drops the position that was loaded, %d steps into epoch %d.",
                epoch,
                self.loaded["steps"],
                self.loaded["epoch"],
            )
        self._epoch = epoch
        self._loaded = None
        self._hidden_at = None if self.shown is None else self.shown.steps

    def leave_at_beginning(self) -> None:
        """Treat the previous epoch as left before its first step.

        Ranks that have read ahead left it at different steps; so all left it at the same one.
        """
        if self.played is not None:
            self.played = EpochRecord(self.played.before, self.played.dataset)

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Let an iterator inside play the epoch from its beginning, and still be to come.

        Afterwards a state shows what it has shown before: an epoch that was left has a rest.
        """
        before = self.epoch, self.loaded, None
        shown = self.shown, self.played, self._hidden_at
        self._epoch, self._loaded, self._resumed, self.shown = self.epoch, None, None, None
        was_aside, self._is_aside = self._is_aside, True
        try:
            yield
        finally:
            self._is_aside = was_aside
            self._epoch, self._loaded, self._resumed = before
            self.shown, self.played, self._hidden_at = shown


def _digest(value: object) -> str:
    """Few letters, for comparison with those of other ranks."""
    return hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()
