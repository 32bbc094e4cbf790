"""Readers one after another, as one reader."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

from torch_distinput.data.stream.bad_records import ReadReport
from torch_distinput.data.stream.chunk import Chunk, concat_chunks
from torch_distinput.data.stream.protocols import RowReader


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """One of the readers of a chain.

    Attributes:
        reader: reads its rows.
        placed: says of a chunk of them where it stands in the chain.
    """

    reader: RowReader
    placed: Callable[[Chunk], Chunk]


@final
class ReaderChain:
    """Rows of readers, each opened where the one before it has ended."""

    def __init__(self, links: Iterator[Link]) -> None:
        """Open nothing yet."""
        self._links = links
        self._link: Link | None = None
        self._notes: deque[ReadReport] = deque()  # of readers that have ended

    def take(self, num_rows: int) -> Chunk | None:
        """Return the next rows: views where they lie in one chunk, else a joined copy."""
        parts = []
        while num_rows and (link := self._open()) is not None:
            chunk = link.reader.take(num_rows)
            if chunk is None:
                self._leave(link)
                continue
            num_rows -= chunk.num_rows
            parts.append(link.placed(chunk))
        return concat_chunks(parts) if parts else None

    def skip(self, num_rows: int) -> int:
        """Pass over the next rows; return how many there were."""
        left = num_rows
        while left and (link := self._open()) is not None:
            passed = link.reader.skip(left)
            left -= passed
            if not passed:
                self._leave(link)
        return num_rows - left

    def notes(self) -> ReadReport | None:
        """What a reader has skipped and retried since the last call; ask until it is None."""
        if self._notes:
            return self._notes.popleft()
        return self._link.reader.notes() if self._link else None

    def _open(self) -> Link | None:
        """The reader that is read, or the next one."""
        if self._link is None:
            self._link = next(self._links, None)
        return self._link

    def _leave(self, link: Link) -> None:
        self._notes.extend(iter(link.reader.notes, None))
        self._link = None
