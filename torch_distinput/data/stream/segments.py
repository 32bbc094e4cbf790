"""What one worker reads: parts of shards, one after another, each from where it was left."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch_distinput.data.stream.bad_records import ReadReport
from torch_distinput.data.stream.chunk import Chunk, Cursor, concat_chunks
from torch_distinput.data.stream.protocols import CountedStream, RowReader, Stream
from torch_distinput.plan.assignment.bounds import FixedBounds
from torch_distinput.plan.progress.position import ResumePoint
from torch_distinput.plan.progress.route import ReadPlan, ReadSegment


class ChainReader:
    """Rows of segments, one after another; each row knows which of them it stands in."""

    def __init__(self, stream: Stream, segments: Sequence[ReadSegment]) -> None:
        """Open nothing yet."""
        self._stream = stream
        self._waiting = deque(segments)
        self._last = segments[-1].number if segments else 0
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
        """What a segment has skipped and retried since the last call; ask until it is None."""
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
        """Files of earlier assignments stay as they are: only those of the last one are counted."""
        num_touched = place.num_touched if self._number == self._last else 0
        return Cursor(
            start=place.start, skip=place.skip, num_touched=num_touched, segment=self._number
        )

    def _open(self) -> RowReader | None:
        """The segment that is read, or the next one that has rows beyond those to pass over."""
        while self._reader is None and self._waiting:
            segment = self._waiting.popleft()
            self._number = segment.number
            self._owed += segment.skip
            self._reader = reader = self._stream.open(segment.shard, segment.start)
            while self._owed and (passed := reader.skip(self._owed)):
                self._owed -= passed
            if self._owed:
                self._leave(reader)
        return self._reader

    def _leave(self, reader: RowReader) -> None:
        self._ended.append(reader)
        self._reader = None


def make_resume_point(chunk: Chunk, *, batch: int, row: int) -> ResumePoint | None:
    """The place of a batch that begins with a chunk; None where it is the beginning of all."""
    place = chunk.place
    if not place.segment and place.start is None:
        return None
    return ResumePoint(batch=batch, row=row - place.skip, segment=place.segment, start=place.start)


def locate_segments(stream: CountedStream, read_plan: ReadPlan, bounds: FixedBounds) -> ReadPlan:
    """Turn rows to pass over into places to start from; lengths are known, so nothing is read."""
    shards = [segment.shard for segment in read_plan.segments]
    lengths = stream.lengths(shards) if shards else ()
    assert lengths is not None, "asked where lengths are known"
    read_plan = read_plan.skip_to_batch(bounds, lengths)
    places = [stream.locate(segment.shard, segment.skip) for segment in read_plan.segments]
    segments = (
        replace(segment, start=place.start, skip=place.skip)
        for segment, place in zip(read_plan.segments, places, strict=True)
    )
    return replace(read_plan, segments=tuple(segments))
