"""Memory for large messages, which is used again when nobody has it any more.

Memory that is new to a process costs more than what is written into it: the system fills each page
of it with zeros first.

    thread  writes                reads     guarded by
    any     ``_pieces``           the same  ``_lock``
    any     what it has taken     the same  whoever has it; a piece in use is given to nobody
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import Any, final

import numpy as np

from torch_distinput import threads

_SMALL_BYTES = 1 << 20
"""Less than that is taken from the allocator, which itself keeps it."""
_MOST_PIECES = 2
"""A message that comes while another one goes."""
_ALIGN = 64
_PROBE = [object()]
_NOBODY = sys.getrefcount(_PROBE[0])
"""What is counted of an object that only a list has."""


@cache
def message_memory() -> MessageMemory:
    """The memory that this process has for large messages."""
    return MessageMemory()


@final
class MessageMemory:
    """Gives memory, and looks for some that nobody has any more."""

    def __init__(self) -> None:
        self._pieces: list[np.ndarray[Any, Any]] = []
        self._lock = threads.new_lock()

    def take(self, sizes: Sequence[int]) -> list[np.ndarray[Any, Any]]:
        """Return vectors of bytes of these sizes; each keeps what it lies in."""
        ends = list(accumulate(-(-size // _ALIGN) * _ALIGN for size in sizes))
        piece = self._take_piece(ends[-1] if ends else 0)
        return [
            piece[start : start + size] for start, size in zip([0, *ends], sizes, strict=False)
        ]

    def copy(self, arrays: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
        """Return vectors of bytes as copies."""
        copies = self.take([len(array) for array in arrays])
        for copied, array in zip(copies, arrays, strict=True):
            copied[:] = array
        return copies

    def _take_piece(self, num_bytes: int) -> np.ndarray[Any, Any]:
        if num_bytes < _SMALL_BYTES:
            return np.empty(num_bytes, dtype=np.uint8)
        with self._lock:
            for index in range(len(self._pieces)):
                # Every view of a piece counts, in whatever it ended up.
                is_free = sys.getrefcount(self._pieces[index]) == _NOBODY
                if is_free and num_bytes <= len(self._pieces[index]) <= 2 * num_bytes:
                    return self._pieces[index]
            piece = np.empty(num_bytes, dtype=np.uint8)
            self._pieces = [piece, *self._pieces][:_MOST_PIECES]
            return piece

