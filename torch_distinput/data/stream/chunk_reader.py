"""Rows of chunks, taken and passed over in any number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from torch_distinput.data.stream.bad_records import ReadLog, ReadReport
from torch_distinput.data.stream.chunk import Chunk, ChunkPool, concat_chunks


@final
class ChunkReader:
    """Rows of an iterable that yields chunks of any size."""

    def __init__(self, chunks: Iterator[Chunk], log: ReadLog | None = None) -> None:
        """Start a stream of chunks; ``log`` is where it notes what it skips."""
        self._chunks = chunks
        self._log = log
        self._chunk: Chunk | None = None
        self._position = 0  # rows of the chunk that have been handed out

    def take(self, num_rows: int) -> Chunk | None:
        """Return the next rows: views where they lie in one chunk, else a joined copy."""
        chunk, start = self._chunk, self._position
        if chunk is not None and 0 < num_rows < chunk.num_rows - start:  # as a rule
            self._position = start + num_rows
            return chunk.slice(start, self._position)
        parts = list(self._next(num_rows))
        return concat_chunks(parts) if parts else None

    def take_pool(self, num_rows: int) -> ChunkPool | None:
        """Return the next rows, not joined, for whoever takes them in another order."""
        parts = list(self._next(num_rows))
        return ChunkPool(parts) if parts else None

    def skip(self, num_rows: int) -> int:
        """Pass over the next rows, without joining chunks; return how many there were."""
        return sum(chunk.num_rows for chunk in self._next(num_rows))

    def notes(self) -> ReadReport | None:
        """What has been skipped and retried since the last call."""
        return self._log.drain() if self._log else None

    def _next(self, num_rows: int) -> Iterator[Chunk]:
        """Yield the next rows in pieces, as the chunks fall."""
        while num_rows:
            chunk = self._chunk or next(self._chunks, None)
            if chunk is None:
                return
            start, count = self._position, chunk.num_rows
            stop = min(count, start + num_rows)
            self._chunk, self._position = (chunk, stop) if stop < count else (None, 0)
            num_rows -= stop - start
            if start < stop:
                yield chunk.slice(start, stop)
