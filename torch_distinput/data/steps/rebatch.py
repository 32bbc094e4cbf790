"""Global batches of a stream in, this worker's steps out."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, final

from torch.utils.data import IterableDataset

from torch_distinput.data.batch import rows
from torch_distinput.data.batch.rows import check_row_count
from torch_distinput.data.batch.tree import flatten
from torch_distinput.data.sources.mixing.mixed_stream import MixedStream
from torch_distinput.data.sources.sequences.packed_contents import count_packed
from torch_distinput.data.sources.sequences.windowed_stream import WindowedStream
from torch_distinput.data.steps.balanced import RowDealer
from torch_distinput.data.steps.local_step import (
    NO_FACTS,
    LocalStep,
    PackedCounts,
    ReplicaBatch,
    SourceCounts,
    StepFacts,
    cut_step,
    empty_step,
)
from torch_distinput.data.steps.order_marks import mark_order
from torch_distinput.data.steps.ready_batches import (
    NUM_MARKED,
    fingerprint_batch,
    outlives_the_source,
)
from torch_distinput.data.steps.step_padding import StepPadding
from torch_distinput.data.steps.step_tally import count_own, with_longest
from torch_distinput.data.stream.bad_records import ReadReport
from torch_distinput.data.stream.chunk import Chunk
from torch_distinput.data.stream.protocols import RowReader, Stream
from torch_distinput.data.stream.segments import make_resume_point, open_segments
from torch_distinput.errors import SourceError
from torch_distinput.options import Rebatch
from torch_distinput.plan.assignment.batching import Cut, Splitter
from torch_distinput.plan.progress.route import ReadPlan, Shard
from torch_distinput.plan.progress.schedule import Schedule

_log = logging.getLogger(__name__)
_HELD_BYTES = 256 << 20
_MAY_BE_PACKED = (WindowedStream, MixedStream)
"""Types that tell it by themselves: to ask whether something is an ABC's takes longer."""


class CutRows(NamedTuple):
    """One step of this worker, before its rows are mapped and collated.

    Attributes:
        chunk: the rows of all local replicas; None if they have none.
        sizes: rows of each local replica.
        mark: see :class:`LocalStep`.
        facts: see :class:`LocalStep`.
    """

    chunk: Chunk | None
    sizes: tuple[int, ...]
    mark: int = 0
    facts: StepFacts = NO_FACTS


@final
class RebatchDataset(IterableDataset[CutRows | ReadReport]):
    """Cuts a stream into global batches, and those into this worker's steps.

    Args:
        stream: examples that arrive in order.
        read_plan: which parts of the stream this worker plays, and from where on.
        splitter: the cuts of a global batch; holds the global batch size.
        drop_last: leave the last partial global batch out.
        known: the steps, where they are known beforehand.
        dealer: deals rows by what they cost.
    """

    def __init__(
        self,
        stream: Stream,
        read_plan: ReadPlan,
        *,
        splitter: Splitter,
        drop_last: bool = False,
        known: Schedule | None = None,
        dealer: RowDealer | None = None,
    ) -> None:
        """See the class."""
        self._stream = stream
        self._read_plan = read_plan
        self._splitter = splitter
        self._drop_last = drop_last
        self._known = known
        self._dealer = dealer
        self._bounds = splitter.bounds
        self._size = self._bounds.size
        self._is_compared = splitter.shared and splitter.topology.num_workers > 1
        self._mixture = stream if isinstance(stream, MixedStream) else None

    def __iter__(self) -> Iterator[CutRows | ReadReport]:
        """Yield this worker's steps, and between them what there is to say about the reading."""
        reader = open_segments(self._stream, self._read_plan.segments)
        reader.skip(self._bounds.begin(self._read_plan.batch) - self._read_plan.row)
        for step in self._cut(reader):
            yield step
            yield from iter(reader.notes, None)
        yield from iter(reader.notes, None)

    def _cut(self, reader: RowReader) -> Iterator[CutRows]:
        if self._known is not None:
            return self._cut_planned(reader, self._known)
        is_whole = self._splitter.shared and isinstance(self._stream, (MixedStream, WindowedStream))
        if self._splitter.rebatch is not Rebatch.CYCLE or self._drop_last or is_whole:
            return self._cut_buffered(reader)
        if self._splitter.shared:
            return self._cut_streaming_shared(reader)
        return self._cut_streaming(reader)

    def _cut_planned(self, reader: RowReader, known: Schedule) -> Iterator[CutRows]:
        """All lengths are known: take the rows of each step, and pass over those of the others."""
        if known.num_dropped:
            _log.info("drop_last leaves out %d examples at the end", known.num_dropped)
        position = self._bounds.begin(self._read_plan.batch)
        for piece in known.iterate_steps():
            wanted = sum(piece.sizes)
            if not wanted:
                yield CutRows(chunk=None, sizes=piece.sizes)
                continue
            reader.skip(piece.start - position)
            chunk = reader.take(wanted)
            position = piece.start + wanted
            if chunk is None or chunk.num_rows != wanted:
                raise _make_length_error(position, "they ended earlier")
            yield self._step(chunk, piece.sizes)
        if position == known.own_length and reader.take(1) is not None:
            raise _make_length_error(position, "there are more")

    def _cut_buffered(self, reader: RowReader, *, limit: int | None = None) -> Iterator[CutRows]:
        """Hold a whole global batch, undecoded: its size decides the sizes of the pieces."""
        first_step = self._read_plan.step
        cuts = self._splitter.cut(self._size)
        for number in itertools.count() if limit is None else range(limit):
            chunk = reader.take(self._size)
            if chunk is None:
                return
            count = chunk.num_rows
            if count < self._size and self._drop_last:
                _log.info("drop_last leaves out %d examples at the end of a stream", count)
                return
            if number == 0:
                _warn_if_heavy(chunk)
            mark = self._mark(chunk, number) if self._is_compared else 0
            facts = self._facts(chunk, number, counts=self._count_sources(chunk))
            if self._dealer is not None and self._splitter.shared:
                yield deal_cut_rows(chunk, self._dealer, mark, facts)
                continue
            if count < self._size:
                cuts = self._splitter.cut(count)
            for cut in cuts[first_step:]:
                mine = chunk.slice(cut.start, cut.start + cut.num_rows)
                yield self._step(mine, cut.sizes, mark, facts)
            first_step = 0

    def _cut_streaming(self, reader: RowReader) -> Iterator[CutRows]:
        """Under ``cycle`` the sizes are known beforehand: rows are taken when they are needed."""
        cuts = self._splitter.cut(self._size)
        first_step = self._read_plan.step
        reader.skip(sum(cut.num_rows for cut in cuts[:first_step]))
        for number in itertools.count(first_step):
            batch, step = divmod(number, len(cuts))
            cut = cuts[step]
            chunk = reader.take(cut.num_rows) if cut.num_rows else None
            count = chunk.num_rows if chunk else 0
            if count or not cut.num_rows:
                first = not any(cut.num_rows for cut in cuts[:step])
                facts = self._facts(chunk, batch, first=first) if chunk else NO_FACTS
                yield self._streaming_step(cut, chunk, facts)
            if count < cut.num_rows:
                return

    def _cut_streaming_shared(self, reader: RowReader) -> Iterator[CutRows]:
        """The same where all workers read the stream: pass over the pieces of the others.

        The first batches are held all the same, to be compared between the workers; of the others
        they compare how many rows they have. So the rest of a batch is passed over before a step
        of it is handed on, but behind its rows, which the source may write over.
        """
        yield from self._cut_buffered(reader, limit=NUM_MARKED)
        (cut,) = self._splitter.cut(self._size)
        for number in itertools.count(NUM_MARKED):
            seen = reader.skip(cut.start)
            chunk = reader.take(cut.num_rows) if cut.num_rows else None
            seen += chunk.num_rows if chunk else 0
            if not seen:  # a piece that starts at row 0 is never empty: the stream has ended
                return
            # The others' places are not asked for, and here the piece may begin later.
            first = not cut.start and chunk is not None
            facts = self._facts(chunk, number) if chunk and first else NO_FACTS
            step = self._streaming_step(cut, chunk, facts)
            seen += reader.skip(self._size - cut.start - cut.num_rows)
            yield step._replace(mark=seen)
            if seen < self._size:
                return

    def _streaming_step(self, cut: Cut, chunk: Chunk | None, facts: StepFacts) -> CutRows:
        if chunk is None:
            return CutRows(chunk=None, sizes=(0,) * len(cut.sizes), facts=facts)
        return self._step(chunk, cut.fill(chunk.num_rows), 0, facts)

    def _mark(self, batch: Chunk, number: int) -> int:
        """A number that is the same on all workers, if they read the same batch."""
        mark = fingerprint_batch(batch, number, self._splitter)
        return mark ^ mark_order(batch, self._stream, self._splitter)

    def _count_sources(self, batch: Chunk) -> SourceCounts | None:
        """What a whole global batch is from; None unless it is of a mixture that all share."""
        if self._mixture is None or not self._splitter.shared:
            return None
        return SourceCounts(*self._mixture.count_sources(batch))

    def _facts(
        self, chunk: Chunk, number: int, *, first: bool = True, counts: SourceCounts | None = None
    ) -> StepFacts:
        """Where a batch was read, of which the chunk is the beginning if ``first``."""
        batch = self._read_plan.batch + number
        row = self._bounds.begin(batch)
        resume_point = make_resume_point(chunk, batch=batch, row=row) if first else None
        return StepFacts(resume_point, chunk.place.num_touched, counts)

    def _step(
        self, chunk: Chunk, sizes: tuple[int, ...], mark: int = 0, facts: StepFacts = NO_FACTS
    ) -> CutRows:
        if self._mixture is not None:
            facts = count_own(facts, chunk, self._mixture, self._splitter)
        return make_cut_rows(chunk, sizes, self._splitter, mark, facts, dealer=self._dealer)


def make_cut_rows(
    chunk: Chunk,
    sizes: tuple[int, ...],
    splitter: Splitter,
    mark: int,
    facts: StepFacts,
    *,
    dealer: RowDealer | None = None,
) -> CutRows:
    """Return a step of some rows, which keep nothing else alive.

    ``dealer``: deals them to the replicas of a worker that has them for itself.
    """
    if not sum(sizes):
        return CutRows(chunk=None, sizes=sizes, mark=mark, facts=facts)
    if dealer is not None and not splitter.shared and len(sizes) > 1:
        dealt = dealer.deal_own(chunk, sizes)
        chunk, sizes = chunk.take(dealt.rows), dealt.sizes
        facts = facts._replace(costs=dealt.costs)
    elif outlives_the_source(splitter):
        chunk = Chunk(rows.compact(chunk.data), chunk.ids, chunk.place)
    return CutRows(chunk, sizes, mark, facts)


def deal_cut_rows(batch: Chunk, dealer: RowDealer, mark: int, facts: StepFacts) -> CutRows:
    """Return the rows of a shared batch that are dealt to this worker.

    All workers deal alike if they find the same costs. So these are compared, as the batches are.
    """
    dealt, mark_of_costs = dealer.deal_batch(batch)
    if dealer.splitter.topology.num_workers > 1:
        mark ^= mark_of_costs
    mine = batch.take(dealt.rows) if len(dealt.rows) else None
    facts = facts._replace(costs=dealt.costs)
    return CutRows(chunk=mine, sizes=dealt.sizes, mark=mark, facts=facts)


@final
@dataclass(frozen=True, slots=True)
class Finish:
    """Maps and collates the rows of a step; notes pass. Picklable, for loader processes.

    Attributes:
        stream: where the rows are from.
        shard: which part of it.
        splitter: how they were cut.
        lent: a collate_fn of the user's makes the batches, perhaps always in the same buffer.
        ahead: a batch is kept while the next ones are made.
        padding: makes all columns of rows as long as the longest, and tells how long they are.
    """

    stream: Stream
    shard: Shard
    splitter: Splitter
    lent: bool = False
    ahead: bool = False
    padding: StepPadding | None = None

    def __call__(self, item: CutRows | ReadReport) -> LocalStep | ReadReport:
        """Make the step."""
        if isinstance(item, ReadReport):
            return item
        chunk, sizes, mark, facts = item
        if chunk is None:
            return empty_step(len(sizes), mark=mark, facts=facts)
        if type(self.stream) in _MAY_BE_PACKED:
            contents = count_packed(self.stream, chunk.data)
            packed = None if contents is None else PackedCounts.of(contents)
            facts = facts._replace(packed=packed)
        batch = self.stream.finish(chunk, self.shard)
        if self.lent:
            batch = rows.with_tensors(batch)
            check_row_count(batch, chunk.num_rows)
            if self.ahead or outlives_the_source(self.splitter):
                batch = rows.copy_rows(batch)
        leaves, structure = flatten(batch)
        part = ReplicaBatch(list(map(rows.as_tensor, leaves)), structure, chunk.ids)
        if self.padding is not None:
            longest = self.padding.measure(part)
            part, facts = self.padding.widen(part, longest), with_longest(facts, longest)
        return cut_step(part, sizes, mark=mark, facts=facts)


def _make_length_error(expected: int, got: str) -> SourceError:
    msg = (
        f"Expected {expected} records, as was found before reading, but {got}. The files have "
        "changed: distribute them again."
    )
    return SourceError(msg)


@lru_cache(maxsize=1)
def _advise_cycle(num_bytes: int) -> None:
    """Say it once."""
    _log.warning(
        'rebatch="split" and "even" hold a whole global batch on every worker until its size is '
        'known: about %d MiB here. rebatch="cycle" needs no such look-ahead.',
        num_bytes >> 20,
    )


def _warn_if_heavy(chunk: Chunk) -> None:
    num_bytes = rows.num_bytes(chunk.data)
    if num_bytes > _HELD_BYTES:
        _advise_cycle(num_bytes)
