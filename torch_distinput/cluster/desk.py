"""Where the threads of an agreement meet: piles of ready and agreed steps, and how it ends."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from torch_distinput.plan.end_of_data import WINDOW, Outcome, State
from torch_distinput.plan.ledger import Standing
from torch_distinput.plan.position import Bookmark


class Votable(Protocol):
    """What a vote must know of a step; nothing of its examples."""

    @property
    def count(self) -> int:
        """Examples of this worker in the step."""

    @property
    def mark(self) -> int:
        """Fingerprint of what all workers should have read alike, or 0."""

    @property
    def num_bytes(self) -> int:
        """Host memory that the step holds."""

    @property
    def bookmark(self) -> Bookmark | None:
        """A place at or before the step from which the worker's stream can be read again."""

    @property
    def reach(self) -> int:
        """How many of the files dealt to the worker the rows up to here are from."""


S = TypeVar("S", bound=Votable)

_HELD_BYTES = 64 << 20
"""Host memory for steps ahead of use; one ready step is always allowed."""
_LOW_WATER = 8
"""Agreed steps at which the voter asks for more: enough to hide a vote behind the steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Agreed(Generic[S]):
    """A step that all workers play.

    Attributes:
        step: this worker's part; None if it has ended.
        num_examples: examples over all replicas in sync.
        standing: where all workers stand after it.
    """

    step: S | None
    num_examples: int
    standing: Standing


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """Why there are no more steps.

    Attributes:
        outcome: ``ENDED``, or what went wrong.
        workers: the workers it names.
        words: what failed workers said, by worker; empty where no worker was told.
        error: this worker's own error, or that of the channel.
    """

    outcome: Outcome
    workers: tuple[int, ...] = ()
    words: tuple[str, ...] = ()
    error: BaseException | None = None


@dataclass(kw_only=True)
class Desk(Generic[S]):
    """What the three threads share; every field is guarded by ``changed``."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    ready: deque[S] = field(default_factory=deque)
    agreed: deque[Agreed[S]] = field(default_factory=deque)
    held_bytes: int = 0
    state: State = State.RUNNING
    failure: BaseException | None = None
    introduced: list[Any] | None = None
    ending: Ending | None = None
    told: Bookmark | None = None

    def news(self) -> Bookmark | None:
        """The last bookmark among the steps that can be voted on, if the others do not know it."""
        steps = reversed(list(self.ready)[:WINDOW])
        last = next((step.bookmark for step in steps if step.bookmark), None)
        return None if last == self.told else last

    def has_room(self) -> bool:
        """Something is always read ahead; more only within the limits."""
        held = len(self.ready) + len(self.agreed)
        return not held or (held < WINDOW and self.held_bytes < _HELD_BYTES)

    def is_over(self) -> bool:
        """Nobody will play what is read from now on."""
        return self.state is State.CLOSED or self.ending is not None

    def can_introduce(self) -> bool:
        """A step with examples is there, or none will come soon."""
        if self.state is not State.RUNNING or len(self.ready) >= WINDOW:
            return True
        return any(step.count for step in self.ready)

    def may_vote(self) -> bool:
        """Not while many agreed steps wait, or a vote could wait for a worker that is busy."""
        if self.state is State.CLOSED:
            return True
        news = bool(self.ready) or self.state is not State.RUNNING
        return news and len(self.agreed) <= _LOW_WATER

    def close(self) -> None:
        """Let both threads leave; the other workers hear of it in the next vote."""
        self.leave(State.CLOSED)

    def leave(self, state: State, failure: BaseException | None = None) -> None:
        """Say what follows the ready steps; closing overrules the rest."""
        with self.changed:
            if self.state is not State.CLOSED:
                self.state, self.failure = state, failure
            self.changed.notify_all()
