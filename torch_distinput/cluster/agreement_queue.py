"""Where the threads of an agreement meet: piles of ready and agreed steps, and how it ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from torch_distinput.plan.progress.delivered import Progress
from torch_distinput.plan.progress.end_of_data import WINDOW, Outcome, State
from torch_distinput.plan.progress.position import ResumePoint
from torch_distinput.threads import new_condition, new_rlock


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
    def resume_point(self) -> ResumePoint | None:
        """A place at or before the step from which the worker's stream can be read again."""

    @property
    def num_touched(self) -> int:
        """How many of the files dealt to the worker the rows up to here are from."""


S = TypeVar("S", bound=Votable)

_HELD_BYTES = 64 << 20
"""Host memory for steps ahead of use; one ready step is always allowed."""
_HELD_STEPS = 2 * WINDOW
"""Steps ahead of use: while some are played, as many can be read to be voted on."""
_LOW_WATER = 32
"""Agreed steps at which the voter asks for more: enough to hide a vote behind the steps."""
_BURST = 32
"""Steps for which there is room again before a reader is woken: to wake it costs some steps."""


class Ready(NamedTuple, Generic[S]):
    """A step that this worker could play, and its bytes."""

    step: S
    num_bytes: int


class Agreed(NamedTuple, Generic[S]):
    """A step that all workers play.

    Attributes:
        step: this worker's part; None if it has ended.
        num_bytes: what it holds.
        num_examples: examples over all replicas in sync.
        progress: where all workers stand after it.
    """

    step: S | None
    num_bytes: int
    num_examples: int
    progress: Progress


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


class Desk(Generic[S]):
    """What the three threads share. Each waits for a condition of its own, under one lock.

    The consumer takes a step without the lock, since a deque's ends are safe by themselves, and
    wakes the others only where that lets them go on: a lock and a switch of threads for each step
    would cost more than the votes.
    """

    def __init__(self) -> None:
        """Nothing is read yet."""
        self.lock = new_rlock()  # a collection of garbage, at any moment, may call close()
        self.room = new_condition(self.lock)  # the reader's
        self.votable = new_condition(self.lock)  # the voter's
        self.news_for_consumer = new_condition(self.lock)
        self.ready: deque[Ready[S]] = deque()
        self.agreed: deque[Agreed[S]] = deque()
        self.state = State.RUNNING
        self.failure: BaseException | None = None
        self.introduced: list[Any] | None = None
        self.ending: Ending | None = None
        self.told: ResumePoint | None = None
        self._reader_waits = False
        self._kept_bytes = 0  # by ready and agreed steps, written under the lock, and
        self._taken_bytes = 0  # by those taken since, written by the consumer

    # ------------------------------------------------------------------ the reader

    def wait_for_room(self) -> bool:
        """Return True as soon as another step may be read; False when nobody will play it."""
        if not self.has_room() and not self.is_over():
            with self.lock:
                self._reader_waits = True  # before it looks: the consumer looks after it took
                self.room.wait_for(lambda: self.has_room() or self.is_over())
                self._reader_waits = False
        return not self.is_over()

    def lay(self, step: S, num_bytes: int) -> None:
        """Add a ready step."""
        with self.lock:
            self.ready.append(Ready(step, num_bytes))
            self._kept_bytes += num_bytes
            if self.introduced is None or self.may_vote():
                self.votable.notify()

    # ------------------------------------------------------------------ the voter

    def news(self) -> tuple[ResumePoint, ...]:
        """The last bookmark among the steps that can be voted on, if the others do not know it.

        At first also the first one, so that a state of an early step has one.
        """
        steps = list(self.ready)[:WINDOW]
        known = [step.resume_point for step, _ in steps if step.resume_point]
        told = [known[0], known[-1]] if known and self.told is None else known[-1:]
        return tuple(
            dict.fromkeys(resume_point for resume_point in told if resume_point != self.told)
        )

    def can_introduce(self) -> bool:
        """A step with examples is there, or none will come soon."""
        if self.state is not State.RUNNING or len(self.ready) >= WINDOW:
            return True
        return any(step.count for step, _ in self.ready)

    def may_vote(self) -> bool:
        """Not while many agreed steps wait, or a vote could wait for a worker that is busy."""
        if self.state is State.CLOSED:
            return True
        news = bool(self.ready) or self.state is not State.RUNNING
        return news and len(self.agreed) <= _LOW_WATER

    def move(self, totals: Sequence[int], after_steps: Sequence[Progress]) -> None:
        """Move agreed steps on; one without any example in sync is not delivered."""
        for total, progress in zip(totals, after_steps, strict=True):
            step, num_bytes = self.ready.popleft() if self.ready else (None, 0)
            if total:
                self.agreed.append(Agreed(step, num_bytes, total, progress))
            else:
                self._kept_bytes -= num_bytes
        self.room.notify()
        self.news_for_consumer.notify_all()

    def end(self, ending: Ending) -> None:
        """Say why there are no more steps."""
        with self.lock:
            self.ending = ending
            self._wake_all()

    # ------------------------------------------------------------------ the consumer

    def take(self, timeout: float) -> Agreed[S] | Ending | None:
        """Take the next agreed step, or learn why there is none; None after ``timeout`` seconds."""
        if not self.agreed:
            with self.lock:
                self.news_for_consumer.wait_for(lambda: self.agreed or self.ending, timeout)
                if not self.agreed:
                    return self.ending
        taken = self.agreed.popleft()
        self._taken_bytes += taken.num_bytes
        if len(self.agreed) == _LOW_WATER or (self._reader_waits and self._may_read_on()):
            with self.lock:
                self.votable.notify()
                self.room.notify()
        return taken

    # ------------------------------------------------------------------ all

    def has_room(self) -> bool:
        """Something is always read ahead; more only within the limits."""
        held = len(self.ready) + len(self.agreed)
        return not held or (held < _HELD_STEPS and self._held_bytes < _HELD_BYTES)

    def is_over(self) -> bool:
        """Nobody will play what is read from now on."""
        return self.state is State.CLOSED or self.ending is not None

    def close(self) -> None:
        """Let both threads leave; the other workers hear of it in the next vote."""
        self.leave(State.CLOSED)

    def leave(self, state: State, failure: BaseException | None = None) -> None:
        """Say what follows the ready steps; closing overrules the rest."""
        with self.lock:
            if self.state is not State.CLOSED:
                self.state, self.failure = state, failure
            self._wake_all()

    @property
    def _held_bytes(self) -> int:
        return self._kept_bytes - self._taken_bytes

    def _may_read_on(self) -> bool:
        held = len(self.ready) + len(self.agreed)
        return self.has_room() and (held <= _HELD_STEPS - _BURST or not self.agreed)

    def _wake_all(self) -> None:
        for condition in (self.room, self.votable, self.news_for_consumer):
            condition.notify_all()
