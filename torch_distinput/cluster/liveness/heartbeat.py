"""Signs of life: each worker says once a second where it is, and hears where the others are.

One thread for each strategy, started by its first ``iter()``. It alone talks to the store. No lock:
each attribute has one writer, and what is written is replaced as a whole, never changed in place.

    thread      writes                                      reads
    heartbeat   peers, lost, _beats, _warned, _told_alone,  outside, inside, failed, _is_closed
                _watch; sets _fresh
    main        outside, failed, progress                   peers, lost; waits for _fresh
    puller      inside, failed: whoever pulls steps, the    peers, lost
                main thread or one that reads ahead
    any         _is_closed and a word into the queue _wake, also in a signal handler or a finalizer;
                what is in progress, where it closes an iterator

What a worker posts is its :class:`Status`: how many it has posted, how many steps it has delivered,
its activity, its vote on a stop, its failure, and how far it is in the newest iteration. A
worker whose status does not change any more has been stopped, has lost its machine, or is inside C
code that holds the interpreter.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from torch_distinput.cluster.liveness import watch
from torch_distinput.cluster.liveness.coordinated_stop import CoordinatedStop
from torch_distinput.cluster.liveness.peers import Peers
from torch_distinput.cluster.liveness.process_identity import identify_process
from torch_distinput.cluster.liveness.status import (
    READING,
    TRAINING,
    Activity,
    IterationFailure,
    IterationProgress,
    Status,
)
from torch_distinput.communicator import Board, BoardClosedError, Meeting
from torch_distinput.threads import Thread, new_event, start_thread

_log = logging.getLogger(__name__)

_BEAT_SECONDS = 1.0
_BEATS_PER_TIMEOUT = 8
"""Beats within the shortest ``InputOptions.timeout``: one that is late does not mean the end."""
_BEATS_PER_SECOND = 2048
"""Of all workers together. One store serves them all: many workers post more seldom."""
_STOP_SECONDS = 0.05
"""Time between two looks while the workers agree where to stop."""
_LOOKS_PER_SECOND = 1 << 14
"""The same of all workers together."""
_SAYING_SECONDS = 0.1
"""Until a status that was to be posted at once is there."""
_LEAVE_SECONDS = 0.5
_FIRST_SECONDS = 1.0
"""Until the first status is there: it takes milliseconds, if the store is well."""
_LONGEST_TEXT = 4000
_ALONE_SECONDS = 30.0
"""In a step that others will not come to, before it is said: a step may take long without them."""
_SLOW_SECONDS = 30.0
"""In a read that the loop waits for, before it is said."""


class Heartbeat:
    """This worker's signs of life, and what it has heard of the others.

    ``outside`` is what it does outside of a step; while that is None, ``inside`` counts.
    """

    def __init__(self, communicator: Meeting, names: Sequence[str] | None = None) -> None:
        """Beat nothing yet; ``names`` as in :class:`Peers`."""
        self.stop = CoordinatedStop()
        self.outside: Activity | None = Activity(
            "before the first", "iter()", None, time.monotonic()
        )
        self.inside = self.outside
        self.failed: IterationFailure | None = None
        self.progress = IterationProgress(-1, is_left=True)  # of the iteration that began last
        self.open_topics: set[str] = set()  # iterations whose loops are open here
        self.lost: BoardClosedError | None = None
        self._communicator = communicator
        self._process = identify_process()
        rank, size = communicator.rank, communicator.size
        interval = max(_BEAT_SECONDS, size / _BEATS_PER_SECOND)
        self.peers = Peers(
            rank, size, process=self._process, interval=interval, names=names
        )
        self._thread: Thread | None = None
        self._is_closed = False
        self._warned: Activity | None = None
        self._told_alone = -1  # the last iteration of which it was said
        self._told_slow = -1
        # A queue, because putting into it is allowed in a signal handler and in a finalizer.
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._beats = 0
        self._watch: watch.Watch | None = None
        self._fresh = new_event()

    def start(self, timeout: float) -> None:
        """Beat from now on, fast enough for this timeout; a single worker beats for nobody."""
        fast = max(timeout / _BEATS_PER_TIMEOUT, _STOP_SECONDS)
        self.peers.heard.interval = min(self.peers.heard.interval, fast)
        if self._thread is None and self._communicator.size > 1:
            self.peers.heard.heard_at = time.monotonic()
            self._thread = start_thread(self._run, name="heartbeat", stop=self._leave_at_exit)
            # Who comes to where all meet has posted: of others nobody can tell that they died.
            self._fresh.wait(_FIRST_SECONDS)

    def close(self, error: BaseException | None = None) -> None:
        """Say good-bye, and why if it is an error, and end the thread."""
        self._leave(error)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_LEAVE_SECONDS)

    @property
    def is_closed(self) -> bool:
        """Whether it hears nothing any more."""
        return self._is_closed

    def request_stop(self) -> None:
        """Ask all workers to stop at one step. Safe in a signal handler."""
        if self._communicator.size == 1:
            self.stop.stop_here()
        self.stop.is_requested = True
        self._wake.put(None)

    def tell(self, topic: str, error: BaseException) -> None:
        """Tell the others that this worker failed."""
        words = f"{type(error).__name__}: {error}"[:_LONGEST_TEXT]
        self.failed = IterationFailure(topic, words, self.progress.number)
        self._wake.put(None)

    def listen(self) -> None:
        """Hear what the others have said until now, without waiting for the next beat."""
        time.sleep(_SAYING_SECONDS)
        # What the watcher tells next it may have heard before.
        needed, beats = (1, 1) if self.peers.heard.hears_all else (2, 3)
        enough = self.peers.heard.num_news + needed
        deadline = time.monotonic() + beats * self.peers.heard.interval
        self._wake.put(None)
        while self.peers.heard.num_news < enough and time.monotonic() < deadline:
            self._fresh.clear()
            self._fresh.wait(_STOP_SECONDS)

    def has_silent_store(self, seconds: float) -> bool:
        """Whether the store has not answered for so long, and does not now."""
        if self._thread is None or time.monotonic() - self.peers.heard.heard_at < seconds:
            return False
        if not self._thread.is_alive():
            return False
        # This process itself may have been stopped: give the thread time to hear an answer.
        self._fresh.clear()
        return not self._fresh.wait(2 * self.peers.heard.interval)

    def _leave_at_exit(self) -> None:
        self._leave(getattr(sys, "last_value", None))  # what ended the script

    def _leave(self, error: BaseException | None) -> None:
        topic = (self.outside or self.inside).topic
        is_told = self.failed is not None and self.failed.topic == topic
        if error is not None and not is_told:
            self.tell(topic, error)
        self._is_closed = True
        self._wake.put(None)

    def _run(self) -> None:
        """The thread. It holds this and the communicator, never the strategy, their owner."""
        board: Board | None = None
        try:
            board = self._communicator.open_board()
            while not self._is_closed:
                self._beat(board)
                with suppress(queue.Empty):
                    self._wake.get(timeout=self._pause)
        except Exception as error:  # noqa: BLE001 - whatever it is, this worker hears nothing more
            if not (isinstance(error, BoardClosedError) and error.on_purpose):
                said = str(error)
                if not isinstance(error, (BoardClosedError, RuntimeError)):
                    said = f"{type(error).__name__}: {said}"
                self.lost = BoardClosedError(said, on_purpose=False)
        if board is not None:
            with suppress(BoardClosedError):
                self._post(board, has_left=True)

    @property
    def _pause(self) -> float:
        """Seconds until the next beat."""
        if not self.stop.is_asked or self.stop.at is not None:
            return self.peers.heard.interval
        quick = max(_STOP_SECONDS, self._communicator.size / _LOOKS_PER_SECOND)
        return min(quick, self.peers.heard.interval)

    def _beat(self, board: Board) -> None:
        if self._communicator.size <= watch.ALL_READ:
            self.stop.hear(watch.read_all(board, self.peers))
        else:
            if self._watch is None:
                self._watch = watch.Watch(board, self.peers, self._communicator.rank)
            self.stop.hear(self._watch.hear())
        self._post(board)
        self._fresh.set()
        now = time.monotonic()
        self._warn_of_late(now)
        self._warn_of_leavers(now)
        self._warn_of_slow_read(now)

    def _post(self, board: Board, *, has_left: bool = False) -> None:
        activity = self.outside or self.inside
        reached = self.progress.reached  # before failed: who left by an error has noted that first
        status = Status(
            process=self._process,
            beat=self._beats,
            steps=self.stop.delivered,
            activity=activity.words,
            seconds=round(time.monotonic() - activity.since, 1),
            vote=self.stop.vote,
            failed=self.failed,
            reached=reached,
            has_left=has_left,
        )
        self._beats += 1
        board.post(status.written())
        if self._watch is not None:
            self._watch.tell(status)

    def _warn_of_late(self, now: float) -> None:
        """Once for each wait: after a quarter of the timeout, not before some seconds."""
        activity = self.outside or self.inside
        bound = max(activity.limit / 4, min(3.0, activity.limit / 2))
        waited = now - activity.since
        if activity == self._warned or waited < bound:
            return
        late = self.peers.late(activity)
        if late:
            self._warned = activity
            _log.warning(
                "worker %d has been %s for %.1f s (%g s at most); late: %s",
                self._communicator.rank,
                activity.words,
                waited,
                activity.limit,
                self.peers.describe(late),
            )

    def _warn_of_leavers(self, now: float) -> None:
        """Once an iteration: main may wait in a collective for who has left its loop."""
        activity, progress = self.outside, self.progress
        if activity is None or activity.verb != TRAINING or progress.is_left:
            return
        waited = now - activity.since
        if waited < _ALONE_SECONDS or progress.number == self._told_alone:
            return
        if leavers := self.peers.find_leavers(progress, activity.topic, self.stop.delivered):
            self._told_alone = progress.number
            _log.warning(
                "worker %d has been %s for %.0f s, and meanwhile others have left this loop (%s). "
                "If it waits for them, as in a collective of DDP, they will not come: all workers "
                "must leave a loop at the same step.",
                self._communicator.rank,
                activity.words,
                waited,
                self.peers.describe(leavers),
            )

    def _warn_of_slow_read(self, now: float) -> None:
        """Once an iteration: others may wait for it in a collective, which names nobody."""
        activity, number = self.inside, self.progress.number
        waited = now - activity.since
        if self.outside is not None or activity.verb != READING or number == self._told_slow:
            return
        if waited >= _SLOW_SECONDS:
            self._told_slow = number
            _log.warning(
                "worker %d has been %s for %.0f s, and its loop waits for that. If others wait in "
                "a collective of the training meanwhile, it is for this worker: look at its "
                "source, its storage or its transforms.",
                self._communicator.rank,
                activity.words,
                waited,
            )
