"""The turns after a place where shares are of tokens: they must be those of before.

A state counts the rows that were delivered behind a place. A resume finds them again by the lengths
of the examples. With other lengths they would be rows of other sources, so that some would come
again, and some never.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, final

import numpy as np

from torch_distinput.errors import SourceError
from torch_distinput.plan.assignment.permutation import Indices
from torch_distinput.plan.progress.place import Place

ROWS, TURNS = "rows", "turns"


def describe_turns(sources: Indices, lengths: Indices) -> tuple[tuple[str, Any], ...]:
    """What a place tells of the turns behind it: how many, and a digest of their lengths."""
    digest = blake2b(_join(sources, lengths), digest_size=8).hexdigest()
    return (ROWS, len(sources)), (TURNS, digest)


@final
class KnownTurns:
    """Compares the turns behind a place with what it tells of them."""

    def __init__(self, start: Place) -> None:
        """Have seen none yet."""
        self._num_left = start.number(ROWS)
        self._expected = start.value(TURNS)
        self._has_begun = False
        self._digest = blake2b(digest_size=8)

    def add(self, sources: Indices, lengths: Indices, *, may_differ: bool) -> None:
        """Take the next turns.

        Args:
            sources: whose turn each of them is.
            lengths: of the examples.
            may_differ: they are not passed over, and files may be elsewhere. If none was passed
                over before, nothing behind the place was played, and other files may come next.

        Raises:
            SourceError: they are others.
        """
        if may_differ and not self._has_begun:
            self._num_left = 0
        if not self._num_left:
            return
        self._has_begun = True
        count = min(self._num_left, len(sources))
        self._digest.update(_join(sources[:count], lengths[:count]))
        self._num_left -= count
        if not self._num_left and (found := self._digest.hexdigest()) != self._expected:
            raise _make_error(self._expected, found)

    def end_source(self, *, is_whole: bool) -> None:
        """A source has ended, as none had before.

        Unless it has all its files here, those behind may be elsewhere: nothing of them was played.
        """
        if self._num_left and is_whole:
            raise _make_error(self._expected, f"an end {self._num_left} rows before")
        self._num_left = 0


def _join(sources: Indices, lengths: Indices) -> bytes:
    return np.stack([sources, lengths], axis=1).astype("<i8").tobytes()


def _make_error(expected: str, found: str) -> SourceError:
    msg = (
        "Expected the examples behind the place of a state to have the lengths that they had "
        f"(digest {expected}), got others ({found}): examples that were delivered would come "
        "again, and others never. Let length= of the mixture and the maps before it give the same "
        "for an example each time, and the data be unchanged; or start a new epoch."
    )
    return SourceError(msg)
