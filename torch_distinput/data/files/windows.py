"""Windows of a shuffle: rows are brought together where they are taken, not before.

A window holds the chunks as they were read, and an order. Joining them, and then putting all rows
into their order, would move each byte twice through memory that is cold::

    chunks   a b c | d e f | g h          as they were read
    order    6 1 4 0 3 7 2 5
    take(3)  g b e                        one gather, of these rows only
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

from torch_distinput.data.batch.rows import num_bytes
from torch_distinput.data.stream.bad_records import ReadLog, ReadReport
from torch_distinput.data.stream.chunk import Chunk, ChunkPool, Cursor, concat_chunks
from torch_distinput.plan.assignment.permutation import Indices

_PIECE_BYTES = 1 << 22
"""As fast to decode as a whole window; pieces of a quarter cost a fifth more."""
_SAMPLED = 64
"""So many rows tell how large the others are."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Rows in an order that is not theirs.

    Attributes:
        pool: the rows as they were read.
        order: which of them comes when.
        place: where the first of them stands.
    """

    pool: ChunkPool
    order: Indices
    place: Cursor

    def take(self, start: int, stop: int) -> Chunk:
        """Bring the rows from ``start`` to ``stop`` together."""
        place = self.place.after(start)
        return self.pool.take(self.order[start:stop], place)

    def pieces(self) -> Iterator[Chunk]:
        """All rows in order, about :data:`_PIECE_BYTES` at a time.

        For operations behind the shuffle, such as decoding, which copy rows again: so a piece is
        in memory several times, not the window.
        """
        count = len(self.order)
        sample = self.take(0, min(count, _SAMPLED))  # of a random order
        size = max(1, _PIECE_BYTES * sample.num_rows // max(1, num_bytes(sample.data)))
        return (self.take(i, min(count, i + size)) for i in range(0, count, size))


@final
class WindowReader:
    """Rows of windows, taken and passed over in any number; what is passed over is not moved."""

    def __init__(
        self, windows: Iterator[Window], log: ReadLog, placed: Callable[[Chunk], Chunk] | None
    ) -> None:
        """Start a stream of windows; ``placed`` says of rows where they stand to others."""
        self._windows = windows
        self._log = log
        self._placed = placed
        self._window: Window | None = None
        self._position = 0  # rows of the window that have been handed out

    def take(self, num_rows: int) -> Chunk | None:
        """Return the next rows, in memory of their own."""
        parts = [window.take(start, stop) for window, start, stop in self._next(num_rows)]
        if not parts:
            return None
        joined = concat_chunks(parts)
        return self._placed(joined) if self._placed else joined

    def skip(self, num_rows: int) -> int:
        """Pass over the next rows; return how many there were."""
        return sum(stop - start for _, start, stop in self._next(num_rows))

    def notes(self) -> ReadReport | None:
        """What has been skipped and retried since the last call."""
        return self._log.drain()

    def _next(self, num_rows: int) -> Iterator[tuple[Window, int, int]]:
        while num_rows:
            window = self._window or next(self._windows, None)
            if window is None:
                return
            start, count = self._position, len(window.order)
            stop = min(count, start + num_rows)
            # One that is used up is let go before the next one is filled.
            self._window, self._position = (window, stop) if stop < count else (None, 0)
            num_rows -= stop - start
            yield window, start, stop
            del window
