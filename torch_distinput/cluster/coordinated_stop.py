"""One step at which all workers stop, though a signal reaches them at different ones.

Two threads meet here without a lock, because a step must not pay for it:

    main        claims a step before it delivers it, and counts it afterwards
    heartbeat   hears of a request, votes how far this worker may have come, and hears the votes

A worker votes its claimed steps: the last step for which it may not have looked at the votes. All
stop one step after the highest vote, since whoever voted highest may already have found no request
at that step. Who would go beyond its own vote waits for all votes; they come from threads, so also
from a worker that is held up in a collective of the training step by the one that waits.
"""

from __future__ import annotations

from collections.abc import Collection

from torch_distinput.threads import new_event


class Stop:
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

    @property
    def is_due(self) -> bool:
        """Whether the step has been delivered at which all workers stop."""
        return self.at is not None and self.delivered >= self.at

    def claim(self) -> bool:
        """Main thread, before each step: whether it may be delivered without a look at the votes.

        Written before ``is_asked`` is read, and the other way round in :meth:`hear`: one of the
        two threads sees what the other one did.
        """
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
