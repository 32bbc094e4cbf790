"""Rows that were read before they are needed: of a source that waits for its turn in a mixture."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import final

from torch_distinput.data.stream.bad_records import ReadReport
from torch_distinput.data.stream.chunk import Chunk, Cursor, concat_chunks
from torch_distinput.data.stream.protocols import RowReader


@final
class HeldRows:
    """A reader whose next rows can be asked for before they are taken.

    Attributes:
        count: rows that are held.
        is_closed: there are no more behind them.
        lengths: of those that are held, where they are measured.
    """

    def __init__(
        self,
        reader: RowReader | None,
        cursor: Cursor,
        measure: Callable[[Chunk, int], Sequence[int]] | None = None,
        *,
        first: int = 0,
    ) -> None:
        """Hold nothing yet.

        Args:
            reader: None where nothing is left.
            cursor: where it was started.
            measure: tells the lengths of rows when they are read, given the number of the first.
            first: the number of the first row that is read.
        """
        self._reader = reader
        self._measure = measure
        self._num_read = first
        self.lengths: list[int] = []
        self._chunks: deque[Chunk] = deque()
        self._next = cursor
        self._is_untouched = not cursor.skip and cursor.start is None
        self.count = 0
        self.is_closed = reader is None

    @property
    def is_empty(self) -> bool:
        """Whether it has no row, read from its beginning."""
        return self._is_untouched and not self.fill(1)

    @property
    def place(self) -> Cursor:
        """Where the next row stands, held or not."""
        return self._chunks[0].place if self._chunks else self._next

    def fill(self, num_rows: int) -> int:
        """Read until so many rows are held, if there are; return how many are."""
        while self.count < num_rows and not self.is_closed:
            assert self._reader is not None, "it is open"
            wanted = num_rows - self.count
            chunk = self._reader.take(wanted)
            self.is_closed = chunk is None or chunk.num_rows < wanted
            if chunk is not None:
                if self._measure is not None:
                    self.lengths.extend(self._measure(chunk, self._num_read))
                self._num_read += chunk.num_rows
                self._chunks.append(chunk)
                self.count += chunk.num_rows
        return self.count

    def take(self, num_rows: int) -> Chunk:
        """Return rows that are held."""
        parts = []
        self.count -= num_rows
        del self.lengths[:num_rows]
        self._is_untouched = False
        while num_rows:
            chunk = self._chunks.popleft()
            size = min(num_rows, chunk.num_rows)
            if size < chunk.num_rows:
                self._chunks.appendleft(chunk.slice(size, chunk.num_rows))
            parts.append(chunk.slice(0, size))
            num_rows -= size
        last = parts[-1]
        self._next = last.place.after(last.num_rows)
        return concat_chunks(parts)

    def drain(self) -> Iterator[ReadReport]:
        """What was skipped and retried since the last call."""
        return iter(()) if self._reader is None else iter(self._reader.notes, None)
