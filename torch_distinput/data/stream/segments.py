"""What one worker reads: parts of shards, one after another, each from where it was left."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch_distinput.data.stream.bad_records import ReadReport
from torch_distinput.data.stream.chunk import Chunk, Cursor, Shard, concat_chunks
from torch_distinput.data.stream.protocols import CountedStream, RowReader, Stream
from torch_distinput.plan.progress.position import ResumePoint, Start


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadSegment:
    """A shard from a place on.

    Attributes:
        shard: the shard.
        start: where to start reading.
        skip: rows to pass over then; where it has fewer, also rows of the legs that follow.
        segment: its number among the worker's segments, by which bookmarks name it; some
            segments hold nothing and have no leg.
    """

    shard: Shard
    start: Start = ()
    skip: int = 0
    segment: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadPlan:
    """All that a worker reads in an epoch, and where on the grid that is.

    Attributes:
        legs: what to read.
        row: the row of the grid with which they begin.
        num_batches: global batches of the grid that lie before ``row``, or begin there.
        batch: the global batch to go on with.
        step: the first of its steps that is still to be delivered.
    """

    legs: tuple[ReadSegment, ...]
    row: int = 0
    num_batches: int = 0
    batch: int = 0
    step: int = 0


class ChainReader:
    """Rows of legs, one after another; they stand behind the number of their segment."""

    def __init__(self, stream: Stream, legs: Sequence[ReadSegment]) -> None:
        """Open nothing yet."""
        self._stream = stream
        self._waiting = deque(legs)
        self._last = legs[-1].segment if legs else 0
        self._number = 0
        self._reader: RowReader | None = None
        self._owed = 0  # rows to pass over
        self._ended: deque[RowReader] = deque()  # perhaps with notes

    def take(self, num_rows: int) -> Chunk | None:
        """Return the next rows: views where they lie in one chunk, else a joined copy."""
        parts = list(self._taken(num_rows))
        return concat_chunks(parts) if parts else None

    def skip(self, num_rows: int) -> int:
        """Pass over the next rows; return how many there were."""
        left = num_rows
        while left and (reader := self._open()) is not None:
            passed = reader.skip(left)
            left -= passed
            if not passed:
                self._leave(reader)
        return num_rows - left

    def notes(self) -> ReadReport | None:
        """What a leg has skipped and retried since the last call; ask until there is nothing."""
        while self._ended:
            if (notes := self._ended[0].notes()) is not None:
                return notes
            self._ended.popleft()
        return self._reader.notes() if self._reader else None

    def _taken(self, num_rows: int) -> Iterator[Chunk]:
        while num_rows and (reader := self._open()) is not None:
            chunk = reader.take(num_rows)
            if chunk is None:
                self._leave(reader)
                continue
            num_rows -= chunk.num_rows
            yield replace(chunk, place=self._placed(chunk.place))

    def _placed(self, place: Cursor) -> Cursor:
        """Files of earlier dealings are not dealt out again, so only the last leg reaches any."""
        num_touched = place.num_touched if self._number == self._last else 0
        return Cursor(start=(self._number, *place.start), skip=place.skip, num_touched=num_touched)

    def _open(self) -> RowReader | None:
        """The leg that is read, or the next one that has rows beyond those to pass over."""
        while self._reader is None and self._waiting:
            leg = self._waiting.popleft()
            self._number = leg.segment
            self._owed += leg.skip
            self._reader = reader = self._stream.open(leg.shard, leg.start)
            while self._owed and (passed := reader.skip(self._owed)):
                self._owed -= passed
            if self._owed:
                self._leave(reader)
        return self._reader

    def _leave(self, reader: RowReader) -> None:
        self._ended.append(reader)
        self._reader = None


def bookmark_of(chunk: Chunk, *, batch: int, row: int) -> ResumePoint | None:
    """The place of a batch that begins with a chunk; None where it is the beginning of all."""
    segment, *start = chunk.place.start
    if not segment and not start:
        return None
    return ResumePoint(batch=batch, row=row - chunk.place.skip, segment=segment, start=tuple(start))


def located(stream: CountedStream, read_plan: ReadPlan, batch_size: int) -> ReadPlan:
    """Turn rows to pass over into places to start from; lengths are known, so nothing is read."""
    lengths = stream.lengths([leg.shard for leg in read_plan.legs]) if read_plan.legs else ()
    assert lengths is not None, "asked where lengths are known"
    row = read_plan.batch * batch_size
    owed, legs = row - read_plan.row, []
    for leg, length in zip(read_plan.legs, lengths, strict=True):
        owed += leg.skip
        if owed < length:
            place = stream.locate(leg.shard, owed)
            legs.append(replace(leg, start=place.start, skip=place.skip))
        owed = max(0, owed - length)
    return replace(read_plan, legs=tuple(legs), row=row)
