"""When a vote is due: it is the cheaper per step, the more steps it is on, but steps wait for it.

A vote is due with a full window. One with less is due as well, but only ``_PART_SECONDS`` after the
vote before, or sooner with as many steps as came while an earlier vote waited in full:

    a source of 0.2 ms a step          some fifty steps to a vote, as many as are read in that time
    a source of 20 ms a step           each step is voted on as soon as it is read
    a source that waits for the loop   gives two steps, say, until the loop has taken these: votes
                                       are on two steps, and only one of many waits for more

All workers agree on the same numbers of steps, so votes of all are due alike.
"""

from __future__ import annotations

import time
from typing import final

from torch_distinput.plan.progress.end_of_data import WINDOW

_PART_SECONDS = 0.01
"""Time between a vote and one on fewer steps than can be expected: a vote costs 0.2 ms of the
processor, and so never more than a few hundredths of it, unless no more steps would come."""
_CYCLE = 32
"""One of so many votes waits in full, to see how many steps come."""


@final
class VotePace:
    """Knows how many steps the last votes were on; used under the lock of the queue."""

    def __init__(self) -> None:
        """The first vote is due with the first step."""
        self._num_votes = 0
        self._num_expected = WINDOW
        self._next_part = 0.0

    def note_vote(self, num_agreed: int) -> None:
        """Note a vote that has ended, and on how many steps all could agree."""
        if self._num_votes % _CYCLE == 1:
            self._num_expected = max(1, num_agreed)  # this vote has waited in full
        self._num_votes += 1
        if self._num_votes % _CYCLE == 1:
            self._num_expected = WINDOW
        self._next_part = time.monotonic() + _PART_SECONDS

    def next_vote(self) -> tuple[int, float | None]:
        """How many steps must be ready for a vote to be due; seconds until that changes."""
        seconds = self._next_part - time.monotonic()
        return (self._num_expected, seconds) if seconds > 0.0 else (1, None)
