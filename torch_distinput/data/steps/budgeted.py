"""Global batches of a stream by a token budget: as many rows as fit, found while it is read.

Rows are read some at a time and measured; what is behind a full batch waits for the next one:

    read        r0 r1 r2 r3 | r4 r5 r6 r7 |
    lengths     30 20 60 50   10 40 40 70       budget 100
    batches     r0 r1 | r2 | r3 r4 r5 | r6 | r7

Where a batch begins depends on all the lengths before it. So an epoch goes on from a place at which
a batch began, and the batches from there are found again. Rows that were delivered are counted:
other lengths than before are an error.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from typing import final

import numpy as np
from torch.utils.data import IterableDataset

from torch_distinput.data.sources.mixing.mixed_stream import MixedStream
from torch_distinput.data.sources.sequences.lengths import measure_rows
from torch_distinput.data.steps.balanced import RowDealer
from torch_distinput.data.steps.local_step import SourceCounts, StepFacts
from torch_distinput.data.steps.order_marks import mark_order
from torch_distinput.data.steps.ready_batches import fingerprint_batch
from torch_distinput.data.steps.rebatch import CutRows, deal_cut_rows, make_cut_rows
from torch_distinput.data.steps.step_tally import count_own
from torch_distinput.data.stream.bad_records import ReadReport
from torch_distinput.data.stream.chunk import Chunk, concat_chunks
from torch_distinput.data.stream.protocols import RowReader, Stream
from torch_distinput.data.stream.segments import make_resume_point, open_segments
from torch_distinput.data.user_sources.sequences.length import Length
from torch_distinput.errors import SourceError
from torch_distinput.plan.assignment.batching import Splitter
from torch_distinput.plan.assignment.bounds import BatchBudget
from torch_distinput.plan.assignment.budget_batches import make_too_long_error
from torch_distinput.plan.assignment.permutation import Indices
from torch_distinput.plan.progress.route import ReadPlan, Shard

_log = logging.getLogger(__name__)
_MOST_READ = 1024
"""Rows that are read at a time, at most: as many as the last batch had."""


@final
class BudgetReader:
    """Takes batches of rows that fit a budget.

    Attributes:
        row: the number of the next row.
        size: what fits.
    """

    def __init__(
        self,
        reader: RowReader,
        row: int,
        *,
        stream: Stream,
        shard: Shard,
        length: Length,
        size: BatchBudget,
    ) -> None:
        """Read nothing yet.

        Args:
            reader: reads the rows.
            row: the number of the first.
            stream: what they are of.
            shard: which part of it.
            length: of an example.
            size: what fits.
        """
        self.row = row
        self.size = size
        self._reader = reader
        self._stream = stream
        self._shard = shard
        self._length = length
        self._held: list[Chunk] = []
        self._counted: Indices = np.empty(0, dtype=np.int64)
        self._is_closed = False
        self._num_wanted = 1  # at first: some sources tell where they are only behind a row

    def take(self) -> tuple[Chunk, Indices] | None:
        """Return the rows of the next batch, and what each counts for; None after the last one."""
        while (count := self.size.count_fitting(self._counted)) == len(self._counted):
            if not self._fill():
                break
        if not len(self._counted):
            return None
        if not count:
            raise make_too_long_error(f"row {self.row}", int(self._counted[0]), self.size)
        counted, self._counted = self._counted[:count], self._counted[count:]
        self._num_wanted = min(count, _MOST_READ)
        self.row += count
        return concat_chunks(list(self._take_held(count))), counted

    @property
    def is_over(self) -> bool:
        """Whether the batch that was taken is the last one: one that is not full tells it."""
        return self._is_closed and not len(self._counted)

    def _fill(self) -> bool:
        """Read and measure some more rows, if there are."""
        chunk = None if self._is_closed else self._reader.take(self._num_wanted)
        if chunk is None:
            self._is_closed = True
            return False
        examples = self._stream.examples(chunk, self._shard)
        lengths = measure_rows(self._length, examples, first=self.row + len(self._counted))
        self._counted = np.concatenate([self._counted, self.size.cap(lengths)])
        self._held.append(chunk)
        self._num_wanted = min(2 * self._num_wanted, _MOST_READ)
        return True

    def _take_held(self, count: int) -> Iterator[Chunk]:
        while count:
            chunk = self._held.pop(0)
            size = min(count, chunk.num_rows)
            if size < chunk.num_rows:
                self._held.insert(0, chunk.slice(size, chunk.num_rows))
            count -= size
            yield chunk.slice(0, size)


@final
class BudgetedDataset(IterableDataset[CutRows | ReadReport]):
    """Cuts a stream into global batches by a budget, and those into this worker's steps.

    Args:
        stream: examples that arrive in order.
        read_plan: which parts of the stream this worker plays, and from where on.
        reader_of: from its rows, and the number of the first, to batches.
        splitter: the cuts of a global batch.
        num_delivered: rows of the stream that were delivered since the layout began.
        drop_last: leave the last batch out, unless it is full.
        dealer: deals the rows of a batch to replicas; None: they are cut one after another.
    """

    def __init__(
        self,
        stream: Stream,
        read_plan: ReadPlan,
        *,
        reader_of: Callable[[RowReader, int], BudgetReader],
        splitter: Splitter,
        num_delivered: int,
        drop_last: bool,
        dealer: RowDealer | None,
    ) -> None:
        """See the class."""
        self._dealer = dealer
        self._stream = stream
        self._read_plan = read_plan
        self._reader_of = reader_of
        self._splitter = splitter
        self._num_delivered = num_delivered
        self._drop_last = drop_last

    def __iter__(self) -> Iterator[CutRows | ReadReport]:
        """Yield this worker's steps, and between them what there is to say about the reading."""
        chain = open_segments(self._stream, self._read_plan.segments)
        for step in self._cut(self._reader_of(chain, self._read_plan.row)):
            yield step
            yield from iter(chain.notes, None)
        yield from iter(chain.notes, None)

    def _cut(self, reader: BudgetReader) -> Iterator[CutRows]:
        batch, first_step = self._read_plan.batch, self._read_plan.step
        for number in itertools.count(self._read_plan.num_batches):
            row = reader.row
            taken = reader.take()
            if taken is None or self._is_dropped(reader, taken[1]):
                if number <= batch:
                    self._check_delivered(row, reader.row)
                if taken is not None:
                    _log.info("drop_last leaves out %d examples at the end", taken[0].num_rows)
                return
            if number < batch:
                continue
            chunk, counted = taken
            cuts = self._splitter.cut(chunk.num_rows)
            if number == batch:
                played = row + sum(cut.num_rows for cut in cuts[:first_step])
                self._check_delivered(played, played)
            mark = self._mark(chunk, number, int(counted.sum()))
            whole = self._facts(chunk, number, row, int(counted.sum()))
            if self._dealer is not None and self._splitter.shared:
                yield deal_cut_rows(chunk, self._dealer, mark, whole)
                continue
            for cut in cuts[first_step:]:
                mine = chunk.slice(cut.start, cut.stop)
                tokens = int(counted[cut.start : cut.stop].sum())
                facts = count_own(whole, mine, self._stream, self._splitter, num_tokens=tokens)
                yield make_cut_rows(
                    mine, cut.sizes, self._splitter, mark, facts, dealer=self._dealer
                )
            first_step = 0

    def _is_dropped(self, reader: BudgetReader, counted: Indices) -> bool:
        return self._drop_last and reader.is_over and counted.sum() < reader.size.num_tokens

    def _check_delivered(self, least: int, most: int) -> None:
        """Refuse to go on where what was delivered ends elsewhere than before."""
        if not least <= self._num_delivered <= most:
            msg = (
                f"Expected steps that end after {self._num_delivered} rows, as the state says, "
                f"got {least} rows: the lengths for the token budget have changed. Continue with "
                "the same length=, or start a new epoch."
            )
            raise SourceError(msg)

    def _mark(self, chunk: Chunk, number: int, tokens: int) -> int:
        """A number that is the same on all workers, if they find the same batches.

        Of a stream that all of them read: who finds other lengths would deliver other rows.
        """
        if not self._splitter.shared or self._splitter.topology.num_workers == 1:
            return 0
        content = fingerprint_batch(chunk, number - self._read_plan.batch, self._splitter)
        content ^= mark_order(chunk, self._stream, self._splitter)
        return (content ^ hash((chunk.num_rows, tokens))) & (2**63 - 1) | 1

    def _facts(self, chunk: Chunk, number: int, row: int, tokens: int) -> StepFacts:
        """Where a batch begins, and what is known of all of it."""
        splitter, stream = self._splitter, self._stream
        counts = None
        if splitter.shared and isinstance(stream, MixedStream):
            counts = SourceCounts(*stream.count_sources(chunk))
        point = make_resume_point(chunk, batch=number, row=row)
        if point is not None:
            point = point._replace(row=row, skip=chunk.place.skip)
        is_known = splitter.shared or splitter.topology.num_workers == 1
        return StepFacts(
            resume_point=point,
            num_touched=chunk.place.num_touched,
            source_counts=counts,
            num_tokens=tokens if is_known else None,
        )
