"""One step at which all workers stop, though a signal reaches them at different ones.

Two threads and no lock, because a step must not pay for it:

    thread      writes                                 reads
    main        claimed before a step, delivered       is_asked, vote, at
                after it
    heartbeat   is_asked, vote, at, and sets settled   claimed, is_requested
    any         is_requested, also a signal handler

Each value has one writer; ``is_asked`` and ``claimed`` are each written before the other is read.
A worker votes its claimed steps: the last step for which it may not have looked at the votes. All
stop one step after the highest vote, since whoever voted highest may already have found no request
at that step. Who would go beyond its own vote waits for all votes; they come from threads, so also
from a worker that is held up in a collective of the training step by the one that waits.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Collection
from types import FrameType

from torch_distinput.errors import UsageError
from torch_distinput.threads import is_loader_process, new_event, stop_on_signals

FAR = 1 << 32
"""More steps than anybody delivers between two errors; those since the last one are the rest."""


class CoordinatedStop:
    """When to stop, counted in steps that the strategy delivered, over all its iterators."""

    def __init__(self) -> None:
        """Nothing is requested, nothing delivered."""
        self.delivered = 0
        self.claimed = 0
        self.is_requested = False
        self.is_asked = False
        self.vote: int | None = None
        self.at: int | None = None
        self.settled = new_event()
        self._is_ahead = False

    @property
    def is_due(self) -> bool:
        """Whether the step has been delivered at which all workers stop."""
        return self.at is not None and self.delivered >= self.at and not self._is_ahead

    def claim(self) -> bool:
        """Main thread, before each step: whether it may be delivered without a look at the votes.

        Written before ``is_asked`` is read, and the other way round in :meth:`hear`: one of the
        two threads sees what the other one did.
        """
        self._is_ahead = False
        self.claimed = self.delivered + 1
        return not self.is_asked or self.may_go()

    def may_go(self) -> bool:
        """Whether the claimed step needs no vote of another worker (any more)."""
        if self.at is not None:
            return True
        return self.vote is not None and self.claimed <= self.vote

    def unclaim(self) -> None:
        """Main thread: there was no step to deliver."""
        self.claimed = self.delivered

    def catch_up(self, delivered: int) -> None:
        """Main thread, where all workers meet: count on from the same number as all of them.

        Iterators that were abandoned by threads which read ahead have delivered different numbers.
        """
        self.claimed = delivered
        self.delivered = delivered

    def skip_ahead(self) -> None:
        """Main thread, after an error that all workers get: count on from beyond all their steps.

        They have had different numbers of them, and may catch the error in a loop around it. Where
        all stop may lie behind them then, and only some have heard of it: the next step asks.
        """
        self._is_ahead = True
        self.catch_up((self.delivered // FAR + 1) * FAR)

    def hear(self, votes: Collection[int | None]) -> None:
        """Heartbeat's thread: the votes of the workers that are still there, None for no vote."""
        if not self.is_requested and all(vote is None for vote in votes):
            return
        if self.vote is None:
            self.is_asked = True  # before the claim is read: see claim()
            self.vote = self.claimed
        if self.at is None and None not in votes:
            self.at = max(self.vote, *(vote or 0 for vote in votes)) + 1 if votes else self.vote
            self.settled.set()

    def stop_here(self) -> None:
        """A single worker stops with the step it is at: nobody has to agree."""
        self.is_requested = True
        if self.at is None:
            self.at = self.claimed


def handle_signal(signum: int, request: Callable[[], None]) -> None:
    """Call ``request()`` when the signal comes, and then the function that handled it before.

    Not the one that raises KeyboardInterrupt: the step that it tears would be lost. In a child that
    was forked meanwhile the function before is all there is; a loader process of ours goes on until
    its parent ends it, since a signal may be sent to both.
    """
    if threading.current_thread() is not threading.main_thread():
        msg = (
            "stop_on_signal must be called in the main thread, as signal.signal must, but was "
            f"called in {threading.current_thread().name!r}. Call request_stop() there instead."
        )
        raise UsageError(msg)
    before, process = signal.getsignal(signum), os.getpid()

    def handle(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:
            if not is_loader_process():
                signal.signal(number, before or signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        request()
        if callable(before) and before is not signal.default_int_handler:
            before(number, frame)

    signal.signal(signum, handle)
    stop_on_signals()
