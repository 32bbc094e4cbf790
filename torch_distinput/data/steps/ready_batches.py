"""Batches that are there already: global ones that are cut, replica batches that are played."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import final

from torch.utils.data import IterableDataset, get_worker_info

from torch_distinput.data.batch.fingerprint import examine, say_unchecked
from torch_distinput.data.sources.ready_batches import ReadyStream, first_row
from torch_distinput.data.steps.local_step import (
    LocalStep,
    ReplicaBatch,
    StepFacts,
    copy_part,
    cut_step,
    take_apart,
)
from torch_distinput.data.stream.bad_records import ReadReport
from torch_distinput.data.stream.chunk import Chunk
from torch_distinput.data.stream.segments import make_resume_point
from torch_distinput.data.stream.witness import Witness
from torch_distinput.data.user_sources.states import STREAMS
from torch_distinput.plan.assignment.batching import Cut, Splitter
from torch_distinput.plan.progress.place import Place, Start
from torch_distinput.plan.progress.position import ResumePoint
from torch_distinput.plan.progress.route import ReadPlan, ReadSegment

NUM_MARKED = 4
"""Global batches at the start of a shared stream that the workers compare by content."""


@final
class RebatchReadyDataset(IterableDataset[LocalStep | ReadReport]):
    """Cuts a stream of ready global batches, along dimension 0, into this worker's steps."""

    def __init__(self, stream: ReadyStream, read_plan: ReadPlan, *, splitter: Splitter) -> None:
        """See the class."""
        self._stream = stream
        self._read_plan = read_plan
        self._splitter = splitter
        self._witness: Witness | None = None

    def __iter__(self) -> Iterator[LocalStep | ReadReport]:
        """Yield this worker's steps; a batch without rows is no step. Last, what was read."""
        read_plan, first_step = self._read_plan, self._read_plan.step
        row, num_rows = read_plan.row, -1
        cuts: tuple[Cut, ...] = ()
        lent = outlives_the_source(self._splitter)
        for number, chunk in enumerate(self._chunks(), read_plan.num_batches):
            start, row = row, row + chunk.num_rows
            if number < read_plan.batch:
                continue
            mark = fingerprint_batch(chunk, number - read_plan.batch, self._splitter)
            whole = not chunk.place.skip  # else it cannot be started again from its first row
            resume_point = make_resume_point(chunk, batch=number, row=start) if whole else None
            facts = StepFacts(resume_point=resume_point)
            if chunk.num_rows != num_rows:  # as a rule all batches but the last are of one size
                num_rows, cuts = chunk.num_rows, self._splitter.cut(chunk.num_rows)
            for cut in cuts[first_step:]:
                mine = chunk.slice(cut.start, cut.start + cut.num_rows)
                part = take_apart(mine.data, mine.ids)
                part = copy_part(part) if lent else part
                yield cut_step(part, cut.sizes, mark=mark, facts=facts)
            first_step = 0
        if self._witness and (notes := self._witness.notes()):
            yield notes

    def _chunks(self) -> Iterator[Chunk]:
        """The batches of all segments, without the rows to pass over."""
        owed = 0
        for segment in self._read_plan.segments:
            owed += segment.skip
            for chunk in self._read(segment):
                passed = min(owed, chunk.num_rows)
                owed -= passed
                if passed < chunk.num_rows or not (chunk.num_rows or owed):
                    yield _placed(chunk, segment.number).slice(passed, chunk.num_rows)

    def _read(self, segment: ReadSegment) -> Iterator[Chunk]:
        chunks = self._stream.chunks(segment.shard, segment.start)
        if not segment.shard.watched:
            return chunks
        number, row = first_row(segment.start)
        self._witness = Witness("batch", number, row)
        return self._witness.watch_batches(chunks)


@final
class PlayedDataset(IterableDataset[LocalStep]):
    """Plays replica batches that are the user's own: as many elements a step as local replicas."""

    def __init__(
        self, streams: Sequence[ReadyStream], *, splitter: Splitter, read_plan: ReadPlan
    ) -> None:
        """Take one stream for the worker, or one for each of its replicas."""
        self._streams = streams
        self._read_plan = read_plan
        self._per_stream = splitter.topology.replicas_per_worker // len(streams)
        self._lent = self._per_stream > 1 or outlives_the_source(splitter)

    def __iter__(self) -> Iterator[LocalStep]:
        """Yield steps; a replica whose stream has ended gets no rows."""
        (segment,) = self._read_plan.segments
        starts: tuple[Start, ...] = (None,) * len(self._streams)
        if segment.start is not None:
            starts = segment.start.check(STREAMS, len(starts)).inner
        started = [
            stream.chunks(segment.shard, start)
            for stream, start in zip(self._streams, starts, strict=True)
        ]
        for number in itertools.count(self._read_plan.num_batches):
            taken = [
                [self._kept_part(chunk) for chunk in islice(stream, self._per_stream)]
                for stream in started
            ]
            if not any(taken):
                return
            if number >= self._read_plan.batch:
                yield self._step(number, taken)

    def _step(self, number: int, taken: list[list[tuple[ReplicaBatch, Start]]]) -> LocalStep:
        parts: list[ReplicaBatch | None] = []
        for batches in taken:  # of a stream; None where it has ended
            parts += [part for part, _ in batches]
            parts += [None] * (self._per_stream - len(batches))
        sizes = tuple([0 if part is None else len(part.ids) for part in parts])
        starts = tuple([batches[0][1] if batches else None for batches in taken])
        resume_point = None
        if all(starts):  # each stream can be started again from here
            start = Place(STREAMS, inner=starts)
            resume_point = ResumePoint(batch=number, row=0, segment=0, start=start)
        facts = StepFacts(resume_point=resume_point)
        return LocalStep(parts=tuple(parts), sizes=sizes, facts=facts)

    def _kept_part(self, chunk: Chunk) -> tuple[ReplicaBatch, Start]:
        """A batch that outlives the next one, which may be in the same buffer; and its place."""
        part = take_apart(chunk.data, chunk.ids)
        return copy_part(part) if self._lent else part, chunk.place.start


def _placed(chunk: Chunk, segment: int) -> Chunk:
    """A chunk in a segment; as a rule there is only the first."""
    if not segment:
        return chunk
    return chunk.moved(chunk.place._replace(segment=segment))


def fingerprint_batch(chunk: Chunk, number: int, splitter: Splitter) -> int:
    """A number that several workers compare, who share a stream.

    A fingerprint of the first global batches, and of the others the number of rows: one that is
    shorter on some worker would lose what the others have more, and the end tells nobody of it.
    """
    if not splitter.shared or splitter.topology.num_workers == 1:
        return 0
    if number >= NUM_MARKED:
        return chunk.num_rows
    mark, unchecked = examine(chunk.data)
    for name in unchecked:
        say_unchecked(name)
    return mark


def outlives_the_source(splitter: Splitter) -> bool:
    """Whether a step is still kept when the source is asked for what follows.

    A worker among others reads ahead of the agreed step, and so does a loader process. Then a batch
    may be one that the source writes over, and a part of one would keep, or send, all of it.
    """
    return splitter.topology.num_workers > 1 or get_worker_info() is not None
