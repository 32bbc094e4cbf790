"""How stale a gradient may be: the rule of ``max_staleness``, with integers alone.

The version is the number of pushes applied so far. A gradient that was pulled at version 3 and is
applied at version 5 is 2 versions stale: two pushes came between. Pulls whose push is still to
come are *outstanding*, and stand in a line, the oldest first; each can become as stale as

    the versions since its pull + its place in the line

if all those before it push first. The rule keeps this sum at or below the bound for each of them:

    a pull    joins the line at its end, with the sum 0 + the length of the line
    a push    leaves the line: those behind it move up while the version grows, so that their sums
              stay; those before it keep their place, and their sums grow by 1

The first in the line may always push, so that nobody waits forever.
"""

from __future__ import annotations

from collections.abc import Sequence


def may_pull(num_outstanding: int, bound: int) -> bool:
    """Whether one more may join the line of outstanding pulls."""
    return num_outstanding <= bound


def may_push(pulled: Sequence[int], place: int, version: int, bound: int) -> bool:
    """Whether the pull at this place of the line may push.

    Args:
        pulled: the version of each outstanding pull, the oldest first.
        place: whose push it is.
        version: the version now.
        bound: the staleness that none may exceed.
    """
    return all(
        version - before + rank < bound for rank, before in enumerate(pulled[:place])
    )
