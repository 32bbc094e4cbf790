"""Rows of work units in order; passing over rows costs nothing where their number is known."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import final

from torch_distinput.data.files.read_ahead import ReadAhead
from torch_distinput.data.files.work_units import Unit
from torch_distinput.data.stream.bad_records import ReadLog, ReadReport
from torch_distinput.data.stream.chunk import Chunk, Cursor, concat_chunks
from torch_distinput.data.stream.chunk_reader import ChunkReader
from torch_distinput.plan.progress.place import Start

ReadUnit = Callable[[Unit], Iterator[Chunk]]


@final
class UnitReader:
    """Reads the units of a shard one after another, some of them ahead of use.

    Args:
        units: what to read.
        read: starts one unit.
        check: applied to the chunks of each unit, in order, in the thread that takes them.
        jumps: counted units can be passed over unread; not where bad records are left out.
        exact: a unit may begin at any record, and most rows will be skipped: read just the rows
            that are taken.
        threads: how many units are read ahead at a time, each by a thread; 0: none.
        log: what the units note.
    """

    def __init__(
        self,
        units: Sequence[Unit],
        read: ReadUnit,
        log: ReadLog,
        *,
        check: Callable[[Iterator[Chunk]], Iterator[Chunk]] = iter,
        jumps: bool = True,
        exact: bool = False,
        threads: int = 0,
    ) -> None:
        """Start nothing yet."""
        self._waiting = deque(unit for unit in units if unit.part.num_records != 0)
        self._open: deque[ChunkReader] = deque()
        self._read = read
        self._log = log
        self._check = check
        self._jumps = jumps
        self._exact = exact
        self._threads = threads
        self._counter = _RowCounter()

    def take(self, num_rows: int) -> Chunk | None:
        """Return the next rows: views where they lie in one chunk, else a joined copy."""
        parts = []
        while num_rows:
            self._start(num_rows)
            if not self._open:
                break
            chunk = self._open[0].take(num_rows)
            if chunk is None:
                self._open.popleft()
                continue
            num_rows -= chunk.num_rows
            parts.append(chunk)
        return concat_chunks(parts) if parts else None

    def skip(self, num_rows: int) -> int:
        """Pass over the next rows, and over whole units unread; return how many there were."""
        left = num_rows
        while left:
            jumped = 0 if self._open else self._jump(left)
            if not jumped:
                self._start(left)
                if not self._open:
                    break
                jumped = self._open[0].skip(left)
                if not jumped:
                    self._open.popleft()
            left -= jumped
        return num_rows - left

    def notes(self) -> ReadReport | None:
        """What has been skipped and retried since the last call."""
        return self._log.drain()

    def _jump(self, num_rows: int) -> int:
        """Pass over the next unit, or over its first rows, without opening it."""
        if not self._waiting or not self._jumps:
            return 0
        unit = self._waiting[0]
        count = unit.part.num_records
        if count is None:
            return 0
        if count <= num_rows:
            self._waiting.popleft()
            self._counter.add(unit.place, count)
            return count
        if self._exact:
            self._waiting[0] = unit.cut(num_rows)[1]
            self._counter.add(unit.place, num_rows)
            return num_rows
        return 0

    def _start(self, num_rows: int) -> None:
        """Open the next unit, and as many more as there are threads for them."""
        while self._waiting and len(self._open) < max(1, self._threads):
            unit = self._waiting.popleft()
            if self._exact and (unit.part.num_records or 0) > num_rows:
                unit, rest = unit.cut(num_rows)
                self._waiting.appendleft(rest)
            start = partial(self._read, unit)
            chunks = ReadAhead(start) if self._threads else start()
            placed = map(partial(self._counter.place, unit.place), self._check(chunks))
            self._open.append(ChunkReader(placed))


@final
class _RowCounter:
    """Says of chunks where they stand among the rows of the partition that is read."""

    def __init__(self) -> None:
        """Read nothing yet."""
        self._partition: Start = None
        self._row = 0

    def place(self, partition: Cursor, chunk: Chunk) -> Chunk:
        """The chunk behind all that was counted before it."""
        row = self.add(partition, chunk.num_rows)
        return chunk.moved(chunk.place.after(row - chunk.place.skip))

    def add(self, partition: Cursor, num_rows: int) -> int:
        """Count rows of a partition; where among them the first of these stands."""
        if partition.start is not self._partition and partition.start != self._partition:
            self._partition, self._row = partition.start, 0
        self._row += num_rows
        return self._row - num_rows
