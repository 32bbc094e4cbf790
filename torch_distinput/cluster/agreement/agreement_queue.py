"""Where the three threads of an agreement meet: steps that are ready, steps agreed on, the end.

    thread     writes                              reads                      waits for
    reader     _ready (right), _state at the end   bytes and steps held       _room
    voter      _ready (left) -> _agreed (right),   _ready, _state             _votable
               _introduced, _told, _ending,
               _num_wanted, _pace
    consumer   _agreed (left), _taken_bytes        _introduced, _ending       _news
    any        _state, _failure, by ``close`` and ``fail``: also a collection of garbage

All under one lock, but for what the consumer does per step: it takes from its end of a deque, which
is safe by itself, and wakes the others only where that lets them go on. To wake a thread costs as
much as some steps, and a vote as much as some more, so steps are handed over in blocks:

    the voter is woken      by the reader at the step that makes a vote due, and by the consumer at
                            the last agreed steps but ``_LOW_WATER``
    the consumer is woken   by the voter, once for all steps that a vote has agreed on
    the reader is woken     by the consumer when there is room for ``_BURST`` steps

How many steps make a vote due: see :mod:`.vote_pace`.

A method with a leading underscore expects the lock to be held, or only reads.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice, repeat
from typing import Any, Generic

from torch_distinput.cluster.agreement.vote_pace import VotePace
from torch_distinput.cluster.agreement.voted_steps import (
    Agreed,
    Ending,
    JoinTallies,
    NoteVote,
    S,
)
from torch_distinput.plan.progress.delivered import Progress
from torch_distinput.plan.progress.end_of_data import WINDOW, Vote, VoterState
from torch_distinput.plan.progress.position import ResumePoint
from torch_distinput.plan.progress.tally import Tally
from torch_distinput.threads import new_condition, new_rlock

_HELD_BYTES = 64 << 20
"""Host memory for steps ahead of use; one ready step is always allowed."""
_HELD_STEPS = 2 * WINDOW
"""Steps ahead of use: while some are played, as many can be read to be voted on."""
_LOW_WATER = 32
"""Agreed steps at which the voter asks for more: enough to hide a vote behind the steps."""
_BURST = 32
"""Steps for which there is room again before a reader is woken: to wake it costs some steps."""
_NEVER = sys.maxsize


class AgreementQueue(Generic[S]):
    """Steps on their way from the reader over the voter to the consumer; bounded by host memory."""

    def __init__(self) -> None:
        """Nothing is read yet."""
        self._lock = new_rlock()  # a collection of garbage, at any moment, may call close()
        self._room = new_condition(self._lock)
        self._votable = new_condition(self._lock)
        self._news = new_condition(self._lock)
        self._ready: deque[tuple[S, int]] = deque()  # with the bytes that a step holds
        self._agreed: deque[Agreed] = deque()
        self._state = VoterState.RUNNING
        self._failure: BaseException | None = None
        self._introduced: list[Any] | None = None
        self._ending: Ending | None = None
        self._told: ResumePoint | None = None
        self._reader_waits = False
        self._num_wanted = _NEVER  # steps that must be ready to wake the voter
        self._pace = VotePace()
        self._kept_bytes = 0  # by ready and agreed steps, written under the lock, and
        self._taken_bytes = 0  # by those taken since, written by the consumer

    # ------------------------------------------------------------------ the reader

    def wait_for_room(self) -> bool:
        """Return True as soon as another step may be read; False when nobody will play it."""
        if not self._has_room() and not self._is_over():
            with self._lock:
                self._reader_waits = True  # before it looks: the consumer looks after it took
                while not self._has_room() and not self._is_over():
                    self._room.wait()
                    self._reader_waits = True  # who woke it took that back
                self._reader_waits = False
        return not self._is_over()

    def put(self, step: S, num_bytes: int) -> None:
        """Add a step that this worker could play."""
        with self._lock:
            self._ready.append((step, num_bytes))
            self._kept_bytes += num_bytes
            if len(self._ready) >= self._num_wanted:
                self._votable.notify()

    def end_reading(self) -> None:
        """Say that this worker's data has ended."""
        self._leave(VoterState.ENDED)

    # ------------------------------------------------------------------ the voter

    def wait_for_first(self) -> S | None:
        """Return the first step with examples; None when none will come soon."""
        with self._lock:
            self._num_wanted = 1  # any step may be the one
            self._votable.wait_for(self._can_introduce)
            self._num_wanted = _NEVER
            return next((step for step, _ in self._ready if step.num_rows), None)

    def introduce(self, introduced: list[Any]) -> None:
        """Leave what the workers' first steps introduced, in worker order."""
        with self._lock:
            self._introduced = introduced
            self._news.notify_all()

    def wait_for_vote(self, note_vote: NoteVote[S] = None) -> Vote:
        """Return what this worker has to say, as soon as it may vote."""
        with self._lock:
            self._wait_until_due()
            if note_vote is not None:
                note_vote(self._first(WINDOW))
            return self._vote()

    def agree(
        self, totals: Sequence[int], after_steps: Sequence[Progress], join: JoinTallies = None
    ) -> None:
        """Move agreed steps on; one without any example in sync is not delivered."""
        tallies: Iterable[Tally | None] = repeat(None)
        if join is not None:
            with self._lock:
                own = [step.tally for step in self._first(len(totals))]
            tallies = join(own)
        with self._lock:
            for total, progress, tally in zip(totals, after_steps, tallies, strict=False):
                step, num_bytes = self._ready.popleft() if self._ready else (None, 0)
                if total:
                    self._agreed.append(Agreed(step, num_bytes, total, progress, tally))
                else:
                    self._kept_bytes -= num_bytes
                    self._room.notify()
            self._pace.note_vote(len(totals))
            self._news.notify_all()

    def end(self, ending: Ending) -> None:
        """Say why there are no more steps."""
        with self._lock:
            self._ending = ending
            self._wake_all()

    @property
    def failure(self) -> BaseException | None:
        """What went wrong with this worker's data."""
        return self._failure

    # ------------------------------------------------------------------ the consumer

    def get(self, timeout: float) -> Agreed | Ending | None:
        """Take the next agreed step, or learn why there is none; None after ``timeout`` seconds."""
        if not self._agreed:
            with self._lock:
                self._news.wait_for(lambda: self._agreed or self._ending, timeout)
                if not self._agreed:
                    return self._ending
        taken = self._agreed.popleft()
        self._taken_bytes += taken.num_bytes
        if len(self._agreed) == _LOW_WATER or (self._reader_waits and self._may_read_on()):
            with self._lock:
                self._votable.notify()
                self._room.notify()
                self._reader_waits = False
        return taken

    def introductions(self, timeout: float) -> list[Any] | None:
        """What :meth:`introduce` left; None if that is not there within ``timeout`` seconds."""
        with self._lock:
            self._news.wait_for(lambda: self._introduced is not None or self._ending, timeout)
            return self._introduced

    @property
    def ending(self) -> Ending | None:
        """Why there will be no more agreed steps; None while there may be."""
        return self._ending

    @property
    def lacks_steps(self) -> bool:
        """Whether this worker itself has nothing to vote on, since its source is still at it."""
        with self._lock:
            is_running = self._state is VoterState.RUNNING and not self._agreed
            return is_running and not (self._ready if self._introduced else self._can_introduce())

    # ------------------------------------------------------------------ any thread

    def close(self) -> None:
        """Let both threads leave; the other workers hear of it in the next vote."""
        self._leave(VoterState.CLOSED)

    def fail(self, error: BaseException) -> None:
        """Take an error for one of this worker's data; all workers hear of it."""
        self._leave(VoterState.FAILED, error)

    # ------------------------------------------------------------------ with the lock

    def _leave(self, state: VoterState, failure: BaseException | None = None) -> None:
        """Say what follows the ready steps; closing overrules a failure, and that an end."""
        with self._lock:
            if state > self._state:
                self._state = state
                self._failure = failure
            self._wake_all()

    def _vote(self) -> Vote:
        steps = self._first(WINDOW)
        # An end is told only when all that comes before it fits into the window.
        known = self._state if len(self._ready) <= WINDOW else VoterState.RUNNING
        return Vote(
            state=VoterState.CLOSED if self._state is VoterState.CLOSED else known,
            counts=tuple(step.num_rows for step in steps),
            marks=tuple(step.mark for step in steps),
            files_touched=tuple(step.num_touched for step in steps),
            resume_points=self._points_to_tell(steps),
        )

    def _points_to_tell(self, steps: list[S]) -> tuple[ResumePoint, ...]:
        """The last resume point among the steps to be voted on, if the others do not know it.

        At first also the first one, so that a state of an early step has one.
        """
        known = [step.resume_point for step in steps if step.resume_point]
        told = [known[0], known[-1]] if known and self._told is None else known[-1:]
        new = tuple(dict.fromkeys(point for point in told if point != self._told))
        self._told = new[-1] if new else self._told
        return new

    def _first(self, num_steps: int) -> list[S]:
        return [step for step, _ in islice(self._ready, num_steps)]

    def _can_introduce(self) -> bool:
        """A step with examples is there, or none will come soon."""
        if self._state is not VoterState.RUNNING or len(self._ready) >= WINDOW:
            return True
        return any(step.num_rows for step, _ in self._ready)

    def _wait_until_due(self) -> None:
        while True:
            self._num_wanted, seconds = self._next_vote()
            if len(self._ready) >= self._num_wanted:
                break
            self._votable.wait(seconds)
        self._num_wanted = _NEVER

    def _next_vote(self) -> tuple[int, float | None]:
        """How many steps must be ready for a vote to be due; seconds until that may change.

        Not while many agreed steps wait, or a vote could wait for a worker that is busy.
        """
        if self._state is VoterState.CLOSED:
            return 0, None
        if len(self._agreed) > _LOW_WATER:
            return _NEVER, None
        if self._state is not VoterState.RUNNING:
            return 0, None
        return self._pace.next_vote()

    def _has_room(self) -> bool:
        """Something is always read ahead; more only within the limits."""
        held = len(self._ready) + len(self._agreed)
        held_bytes = self._kept_bytes - self._taken_bytes
        return not held or (held < _HELD_STEPS and held_bytes < _HELD_BYTES)

    def _may_read_on(self) -> bool:
        held = len(self._ready) + len(self._agreed)
        return self._has_room() and (held <= _HELD_STEPS - _BURST or not self._agreed)

    def _is_over(self) -> bool:
        """Nobody will play what is read from now on."""
        return self._state >= VoterState.FAILED or self._ending is not None

    def _wake_all(self) -> None:
        for condition in (self._room, self._votable, self._news):
            condition.notify_all()
