"""What one worker reads: parts of shards, one after another, each from where it was left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from torch_distinput.data.stream.chunk import Chunk, Cursor
from torch_distinput.data.stream.protocols import CountedStream, RowReader, Stream
from torch_distinput.data.stream.reader_chain import Link, ReaderChain
from torch_distinput.data.user_sources.states import find_mark
from torch_distinput.plan.assignment.bounds import FixedBounds
from torch_distinput.plan.progress.position import ResumePoint
from torch_distinput.plan.progress.route import ReadPlan, ReadSegment


def open_segments(stream: Stream, segments: Sequence[ReadSegment]) -> RowReader:
    """Read segments one after another; each row knows which of them it stands in."""
    if len(segments) != 1 or segments[0].number:
        return ReaderChain(_segment_links(stream, segments))
    (segment,) = segments  # as a rule: then its reader says of its rows all there is to say
    reader = stream.open(segment.shard, segment.start)
    reader.skip(segment.skip)
    return reader


def _segment_links(stream: Stream, segments: Sequence[ReadSegment]) -> Iterator[Link]:
    owed = 0  # rows to pass over, of this segment and perhaps of those that follow
    for segment in segments:
        owed += segment.skip
        reader = stream.open(segment.shard, segment.start)
        while owed and (passed := reader.skip(owed)):
            owed -= passed
        number = segment.number
        is_last = number == segments[-1].number
        yield Link(reader=reader, placed=partial(_placed, number=number, is_last=is_last))


def _placed(chunk: Chunk, *, number: int, is_last: bool) -> Chunk:
    """Files of earlier assignments stay as they are: only those of the last one are counted."""
    place = chunk.place
    num_touched = place.num_touched if is_last else 0
    if place.num_touched == num_touched and place.segment == number:
        return chunk  # as nearly all
    return chunk.moved(
        Cursor(start=place.start, skip=place.skip, num_touched=num_touched, segment=number)
    )


def make_resume_point(chunk: Chunk, *, batch: int, row: int) -> ResumePoint | None:
    """The place of a batch that begins with a chunk.

    None where it is the beginning of all; one with a mark is told once, with the first batch.
    """
    place = chunk.place
    is_beginning = place.start is None or (place.skip and find_mark(place.start))
    if not place.segment and is_beginning:
        return None
    return ResumePoint(batch, row - place.skip, place.segment, place.start)


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
