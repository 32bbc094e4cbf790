"""Signs of life: each worker says once a second where it is, and hears where the others are.

One thread for each strategy, started by its first ``iter()``. It alone talks to the store. No lock:
each attribute has one writer, and what is written is replaced as a whole, never changed in place.

    thread      writes                                      reads
    heartbeat   _heard, _heard_at, _failed_at, _beats,      outside, inside, failed, stop,
                steps_of_left, lost; sets _fresh            _is_closed
    main        outside, failed, _begun, _ended, interval   _heard, _heard_at, _failed_at,
                (before the thread starts)                  steps_of_left, lost; waits for _fresh
    puller      inside, failed: whoever pulls steps, the    _heard, lost
                main thread or one that reads ahead
    any         _is_closed and a word into the queue _wake, also in a signal handler or a finalizer

What a worker shows is one status: how often its heart has beaten, how many steps it has delivered,
its activity, its vote on a stop, and its failure. A worker whose status does not change any more
has been stopped, has lost its machine, or is inside C code that holds the interpreter.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress

from torch_distinput.cluster.coordinated_stop import Stop
from torch_distinput.cluster.process_identity import has_died, identify_process
from torch_distinput.cluster.status import Activity, Status
from torch_distinput.communicator import Board, BoardClosedError, Communicator
from torch_distinput.errors import PEER_ERRORS
from torch_distinput.threads import Thread, new_event, start_thread

_log = logging.getLogger(__name__)

_BEAT_SECONDS = 1.0
_BEATS_PER_TIMEOUT = 8
"""Beats within the shortest ``InputOptions.timeout``: a late one is not yet a stopped heart."""
_PAUSED_BEATS = 3
"""A heart that has missed so many beats of its own was stopped."""
_NOTES_PER_SECOND = 128
"""What one worker may read. One store serves them all: hearts of many workers beat more slowly."""
_STOP_SECONDS = 0.05
"""Time between two looks while the workers agree where to stop."""
_SAYING_SECONDS = 0.1
"""Until a note that was to be left at once is there."""
_LEAVE_SECONDS = 0.5
_FIRST_SECONDS = 1.0
"""Until the first note is there: it takes milliseconds, if the store is well."""
_LONGEST_TEXT = 4000
_OF_PEERS = tuple(f"{kind.__name__}:" for kind in PEER_ERRORS)
"""How the words of errors begin that are about another worker."""
_RETURN_SECONDS = 1.0
"""Time for a worker that failed to come to the next iteration: its script may have expected it."""


class Heartbeat:
    """This worker's signs of life, and what it has heard of the others.

    ``outside`` is what it does outside of a step; while that is None, ``inside`` counts.
    """

    def __init__(self, communicator: Communicator) -> None:
        """Beat nothing yet."""
        self.stop = Stop()
        self.outside: Activity | None = Activity(
            "before the first", "iter()", None, time.monotonic()
        )
        self.inside = self.outside
        self.failed: tuple[str, str] | None = None
        self.lost: BoardClosedError | None = None
        self.interval = max(_BEAT_SECONDS, communicator.size / _NOTES_PER_SECOND)
        self._communicator = communicator
        self._process = identify_process()
        self._thread: Thread | None = None
        self._is_closed = False
        self._warned: Activity | None = None
        # A queue, because putting into it is allowed in a signal handler and in a finalizer.
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._beats = 0
        self._heard: dict[int, tuple[Status, float]] = {}  # with the time when it changed last
        # Of those who have left, how many they delivered: beside the signs, for each step asks.
        self.steps_of_left: dict[int, int] = {}
        self._failed_at: dict[int, float] = {}  # when it was heard that a worker failed
        self._begun = ""  # the iteration that began last here
        self._ended: set[str] = set()  # iterations that ended well here, since the last handshake
        self._heard_at = 0.0
        self._fresh = new_event()

    def start(self, timeout: float) -> None:
        """Beat from now on, fast enough for this timeout; a single worker beats for nobody."""
        self.interval = min(self.interval, max(timeout / _BEATS_PER_TIMEOUT, _STOP_SECONDS))
        if self._thread is None and self._communicator.size > 1:
            self._heard_at = time.monotonic()
            self._thread = start_thread(self._run, name="heartbeat", stop=self._leave_at_exit)
            # Who comes to where all meet has left a note: of others nobody can tell that they died.
            self._fresh.wait(_FIRST_SECONDS)

    def close(self, error: BaseException | None = None) -> None:
        """Say good-bye, and why if it is an error, and end the thread."""
        self._leave(error)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_LEAVE_SECONDS)

    def request_stop(self) -> None:
        """Ask all workers to stop at one step. Safe in a signal handler."""
        if self._communicator.size == 1:
            self.stop.stop_here()
        self.stop.is_requested = True
        self._wake.put(None)

    def tell(self, topic: str, error: BaseException) -> None:
        """Tell the others that this worker failed."""
        self.failed = (topic, f"{type(error).__name__}: {error}"[:_LONGEST_TEXT])
        self._wake.put(None)

    def listen(self) -> None:
        """Hear what the others have said until now, without waiting for the next beat."""
        time.sleep(_SAYING_SECONDS)
        started = time.monotonic()
        self._wake.put(None)
        while self._heard_at < started and time.monotonic() < started + self.interval:
            self._fresh.clear()
            self._fresh.wait(_STOP_SECONDS)

    @property
    def others(self) -> list[int]:
        """All workers but this one."""
        own = self._communicator.rank
        return [worker for worker in range(self._communicator.size) if worker != own]

    def status(self, worker: int) -> Status | None:
        """What was heard of a worker last."""
        heard = self._heard.get(worker)
        return heard[0] if heard else None

    def failures(self, topic: str) -> dict[int, str]:
        """Who else failed in an iteration, and with what words.

        Who has only heard of a failure is named while nothing was heard of the culprit itself.
        """
        statuses = {worker: self.status(worker) for worker in self.others}
        told = {
            worker: status.failed for worker, status in statuses.items() if status and status.failed
        }
        failed = {worker: words for worker, (where, words) in told.items() if where == topic}
        culprits = {w: words for w, words in failed.items() if not words.startswith(_OF_PEERS)}
        return culprits or failed

    def begin(self, topic: str) -> None:
        """Note that an iteration begins here."""
        self._begun = topic

    def end_well(self, topic: str) -> None:
        """Note that an iteration came to its end of data here."""
        self._ended.add(topic)

    def survive(self) -> None:
        """Note that all workers have come to a new iteration, whatever happened before."""
        self._ended.clear()

    def gone(self, wait_limit: float) -> dict[int, str]:
        """Who will not come to where all workers have to come, and why.

        Workers that have left, died, or given no sign of life for ``wait_limit`` seconds; those
        that failed in the iteration that has begun here; and those that failed in one that ended
        well here, and did not come back from it soon.
        """
        why = {worker: self._why_gone(worker, wait_limit) for worker in self.others}
        return {worker: words for worker, words in why.items() if words}

    def _why_gone(self, worker: int, wait_limit: float) -> str:
        status = self.status(worker)
        if status is None:
            return ""
        if status.has_left:
            return self._said_of(worker)
        if self.has_died(worker):
            return f"its process has ended without a word ({self._said_of(worker)})"
        if self.silence(worker) > wait_limit:
            return f"no sign of life within {wait_limit:g} s ({self._said_of(worker)})"
        if status.failed is None:
            return ""
        topic, words = status.failed
        ago = time.monotonic() - self._failed_at[worker]
        is_out = ago > _RETURN_SECONDS if topic in self._ended else topic == self._begun
        return f"it failed in {topic}: {words}" if is_out else ""

    def has_died(self, worker: int) -> bool:
        """Whether a worker of this machine was killed, or crashed."""
        status = self.status(worker)
        return (
            status is not None and not status.has_left and has_died(status.process, self._process)
        )

    def misses_beat(self, worker: int) -> bool:
        """Whether nothing was heard of a worker when something should have been."""
        return self.silence(worker) > 1.5 * self.interval

    def is_alive(self, worker: int, since: float) -> bool:
        """Whether a worker has beaten after a time: it was heard later than one beat after it.

        Sooner, a note may be heard that was left before.
        """
        heard = self._heard.get(worker)
        if heard is None or heard[0].has_left:
            return False
        return heard[1] > since + 1.5 * self.interval

    def silence(self, worker: int) -> float:
        """Seconds without a sign of life, as far as we listened; 0 of who was not heard yet.

        If this process itself was stopped, it has not listened.
        """
        heard = self._heard.get(worker)
        return 0.0 if heard is None or heard[0].has_left else self._heard_at - heard[1]

    def has_silent_store(self, seconds: float) -> bool:
        """Whether the store has not answered for so long, and does not now."""
        if self._thread is None or time.monotonic() - self._heard_at < seconds:
            return False
        if not self._thread.is_alive():
            return False
        # This process itself may have been stopped: give the thread time to hear an answer.
        self._fresh.clear()
        return not self._fresh.wait(2 * self.interval)

    def late(self, place: Activity) -> tuple[int, ...]:
        """The other workers that do not wait where this one waits."""
        statuses = {worker: self.status(worker) for worker in self.others}
        return tuple(
            w for w, status in statuses.items() if status is None or status.activity != place.words
        )

    def describe(self, workers: Iterable[int]) -> str:
        """What was heard of workers last."""
        return "; ".join(f"worker {worker}: {self._said_of(worker)}" for worker in workers)

    def _said_of(self, worker: int) -> str:
        heard = self._heard.get(worker)
        if heard is None:
            return "no sign of life yet"
        status, changed = heard
        if status.has_left:
            failed = status.failed
            words = f": {failed[1]}" if failed and status.activity.endswith(failed[0]) else ""
            return f"left after {status.steps} steps, {status.activity}{words}"
        ago = time.monotonic() - changed
        return (
            f"{status.steps} steps delivered, {status.activity} for {status.seconds:.1f} s, "
            f"last heard of {ago:.1f} s ago"
        )

    def _leave_at_exit(self) -> None:
        self._leave(getattr(sys, "last_value", None))  # what ended the script

    def _leave(self, error: BaseException | None) -> None:
        topic = (self.outside or self.inside).topic
        is_told = self.failed is not None and self.failed[0] == topic
        if error is not None and not is_told:
            self.tell(topic, error)
        self._is_closed = True
        self._wake.put(None)

    def _run(self) -> None:
        """The thread. It holds the heart and the communicator, never the strategy, its owner."""
        board: Board | None = None
        try:
            board = self._communicator.open_board()
            while not self._is_closed:
                self._beat(board)
                votes = self.stop.is_asked and self.stop.at is None
                with suppress(queue.Empty):
                    self._wake.get(timeout=_STOP_SECONDS if votes else self.interval)
        except (BoardClosedError, RuntimeError) as error:
            if not (isinstance(error, BoardClosedError) and error.on_purpose):
                self.lost = BoardClosedError(str(error), on_purpose=False)
        if board is not None:
            with suppress(BoardClosedError):
                self._post(board, has_left=True)

    def _beat(self, board: Board) -> None:
        notes = board.read()
        now = time.monotonic()
        self._forget_pause(now)
        for worker, text in notes.items():
            self._hear(worker, text, now)
        self._heard_at = now
        statuses = [self.status(worker) for worker in self.others]
        votes = [(status.vote, status.has_left) if status else (None, False) for status in statuses]
        self.stop.hear([vote for vote, has_left in votes if vote is not None or not has_left])
        self._post(board)
        self._fresh.set()
        self._warn(now)

    def _forget_pause(self, now: float) -> None:
        """Time in which this process was stopped is no silence of the others.

        Perhaps all of them were stopped: whoever wakes first has not heard the others yet.
        """
        pause = now - self._heard_at - self.interval
        if pause > _PAUSED_BEATS * self.interval:
            self._heard = {w: (status, heard + pause) for w, (status, heard) in self._heard.items()}

    def _hear(self, worker: int, text: str, now: float) -> None:
        status = Status.read(text)
        if status.has_left:
            self.steps_of_left[worker] = status.steps
        before = self.status(worker)
        if status.failed and (before is None or before.failed != status.failed):
            self._failed_at[worker] = now
        if before is None or before.beat != status.beat:
            self._heard[worker] = (status, now)

    def _post(self, board: Board, *, has_left: bool = False) -> None:
        activity = self.outside or self.inside
        status = Status(
            process=self._process,
            beat=self._beats,
            steps=self.stop.delivered,
            activity=activity.words,
            seconds=round(time.monotonic() - activity.since, 1),
            vote=self.stop.vote,
            failed=self.failed,
            has_left=has_left,
        )
        self._beats += 1
        board.post(status.written())

    def _warn(self, now: float) -> None:
        """Once for each wait: after a quarter of the timeout, not before some seconds."""
        activity = self.outside or self.inside
        bound = max(activity.limit / 4, min(3.0, activity.limit / 2))
        waited = now - activity.since
        if activity == self._warned or waited < bound:
            return
        late = self.late(activity)
        if late:
            self._warned = activity
            _log.warning(
                "worker %d has been %s for %.1f s (%g s at most); late: %s",
                self._communicator.rank,
                activity.words,
                waited,
                activity.limit,
                self.describe(late),
            )
