"""Global batches in, this worker's steps out: for index lists and for streams."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Literal

from torch.utils.data import IterableDataset, Sampler

from torch_distinput.data.batch import rows
from torch_distinput.data.batch.rows import check_row_count
from torch_distinput.data.steps.local_step import (
    NO_TRACE,
    LocalStep,
    Trace,
    cut_step,
    empty_step,
    part_of,
)
from torch_distinput.data.steps.prebatched import NUM_MARKED, mark_of, outlives_the_source
from torch_distinput.data.stream.bad_records import ReadReport
from torch_distinput.data.stream.chunk import Chunk
from torch_distinput.data.stream.protocols import Stream
from torch_distinput.data.stream.segments import ChainReader, make_resume_point
from torch_distinput.errors import ConfigurationError, SourceError
from torch_distinput.options import Rebatch, parse_enum
from torch_distinput.plan.assignment.batching import Cut, Splitter
from torch_distinput.plan.assignment.topology import Topology
from torch_distinput.plan.progress.route import ReadPlan, Shard
from torch_distinput.plan.progress.schedule import Schedule

_log = logging.getLogger(__name__)
_HELD_BYTES = 256 << 20


class RebatchSampler(Sampler[list[list[int]]]):
    """Cuts the index lists of a batch sampler for the replicas of one worker.

    A building block for plain DataLoaders; ``Strategy.distribute_dataset`` does all of this. Every
    worker iterates the same global batches and keeps its own pieces: no index is lost or repeated.

    Yields, per step, a list of ``replicas_per_worker`` index lists, in replica order; a list may be
    empty (see :func:`collate` for a collate function that accepts that). TensorFlow does the same
    in its rebatching rewrite of ``experimental_distribute_dataset``.

    A DataLoader's ``batch_sampler`` is one list a step: with one replica, the only one of each.

    >>> from torch.utils.data import DataLoader
    >>> from torch_distinput import Topology
    >>> steps = RebatchSampler([[0, 1, 2, 3], [4, 5]], Topology(num_workers=3, worker_index=1))
    >>> list(steps)
    [[[2, 3]], [[5]]]
    >>> class Mine(Sampler):
    ...     def __iter__(self):
    ...         return (lists[0] for lists in steps)
    >>> [batch.tolist() for batch in DataLoader(range(10, 16), batch_sampler=Mine())]
    [[12, 13], [15]]

    Args:
        batch_sampler: yields the index lists of global batches, in the same order on all workers.
        topology: the cluster, and which worker this is: ``Strategy.topology``.
        rebatch: ``"split"``, ``"even"`` or ``"cycle"``, as in :class:`InputOptions`. ``"cycle"``
            needs ``batch_sampler.batch_size``.
    """

    def __init__(
        self,
        batch_sampler: Iterable[Sequence[int]],
        topology: Topology,
        rebatch: Literal["split", "even", "cycle"] = "split",
    ) -> None:
        """See the class."""
        self._batch_sampler = batch_sampler
        rule = parse_enum(Rebatch, rebatch, "rebatch")
        size = getattr(batch_sampler, "batch_size", None)
        if rule is Rebatch.CYCLE and size is None:
            msg = (
                'rebatch="cycle" needs the size of a full batch, got a batch sampler without '
                'batch_size. Use "split" or "even".'
            )
            raise ConfigurationError(msg)
        self._splitter = Splitter(
            topology=topology, rebatch=rule, global_batch_size=size, shared=True
        )

    def __iter__(self) -> Iterator[list[list[int]]]:
        """Yield this worker's index lists of each step."""
        for batch in self._batch_sampler:
            indices = list(batch)
            self._check_size(len(indices))
            for cut in self._splitter.cut(len(indices)):
                mine = iter(indices[cut.start :])
                yield [list(islice(mine, size)) for size in cut.sizes]

    def _check_size(self, count: int) -> None:
        full = self._splitter.global_batch_size
        if self._splitter.rebatch is Rebatch.CYCLE and full is not None and count > full:
            msg = (
                f'rebatch="cycle" expected at most batch_sampler.batch_size = {full} indices in a '
                f'batch, got {count}. Use "split" or "even".'
            )
            raise ValueError(msg)

    def __len__(self) -> int:
        """The number of steps, where the batch sampler knows it."""
        return len(self._batch_sampler)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True, slots=True)
class CutRows:
    """One step of this worker, before its rows are mapped and collated.

    Attributes:
        chunk: the rows of all local replicas; None if they have none.
        sizes: rows of each local replica.
        mark: see :class:`LocalStep`.
        trace: see :class:`LocalStep`.
    """

    chunk: Chunk | None
    sizes: tuple[int, ...]
    mark: int = 0
    trace: Trace = NO_TRACE


class RebatchDataset(IterableDataset[CutRows | ReadReport]):
    """Cuts a stream into global batches, and those into this worker's steps.

    Args:
        stream: examples that arrive in order.
        read_plan: which parts of the stream this worker plays, and from where on.
        splitter: the cuts of a global batch; holds the global batch size.
        drop_last: leave the last partial global batch out.
        known: the steps, where they are known beforehand.
    """

    def __init__(
        self,
        stream: Stream,
        read_plan: ReadPlan,
        *,
        splitter: Splitter,
        drop_last: bool = False,
        known: Schedule | None = None,
    ) -> None:
        """See the class."""
        self._stream = stream
        self._read_plan = read_plan
        self._splitter = splitter
        self._drop_last = drop_last
        self._known = known
        self._bounds = splitter.bounds
        self._size = self._bounds.size

    def __iter__(self) -> Iterator[CutRows | ReadReport]:
        """Yield this worker's steps, and between them what there is to say about the reading."""
        return self._annotated(ChainReader(self._stream, self._read_plan.segments))

    def _annotated(self, reader: ChainReader) -> Iterator[CutRows | ReadReport]:
        reader.skip(self._bounds.begin(self._read_plan.batch) - self._read_plan.row)
        for step in self._cut(reader):
            yield step
            yield from iter(reader.notes, None)
        yield from iter(reader.notes, None)

    def _cut(self, reader: ChainReader) -> Iterator[CutRows]:
        if self._known is not None:
            return self._planned(reader, self._known)
        if self._splitter.rebatch is not Rebatch.CYCLE or self._drop_last:
            return self._held(reader)
        return self._flowing_shared(reader) if self._splitter.shared else self._flowing(reader)

    def _planned(self, reader: ChainReader, known: Schedule) -> Iterator[CutRows]:
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
                raise _other_length(position, "they ended earlier")
            yield self._step(chunk, piece.sizes)
        if position == known.own_length and reader.take(1) is not None:
            raise _other_length(position, "there are more")

    def _held(self, reader: ChainReader, *, limit: int | None = None) -> Iterator[CutRows]:
        """Hold a whole global batch, undecoded: its size decides the sizes of the pieces."""
        first_step = self._read_plan.step
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
            mark, trace = mark_of(chunk, number, self._splitter), self._trace(chunk, number)
            for cut in self._splitter.cut(count)[first_step:]:
                mine = chunk.slice(cut.start, cut.start + cut.num_rows)
                yield self._step(mine, cut.sizes, mark, trace)
            first_step = 0

    def _flowing(self, reader: ChainReader) -> Iterator[CutRows]:
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
                trace = self._trace(chunk, batch, first=first) if chunk else NO_TRACE
                yield self._flowing_step(cut, chunk, trace)
            if count < cut.num_rows:
                return

    def _flowing_shared(self, reader: ChainReader) -> Iterator[CutRows]:
        """The same where all workers read the stream: pass over the pieces of the others.

        The first batches are held all the same, to be compared between the workers.
        """
        yield from self._held(reader, limit=NUM_MARKED)
        (cut,) = self._splitter.cut(self._size)
        for number in itertools.count(NUM_MARKED):
            seen = reader.skip(cut.start)
            chunk = reader.take(cut.num_rows) if cut.num_rows else None
            seen += chunk.num_rows if chunk else 0
            if not seen:  # a piece that starts at row 0 is never empty: the stream has ended
                return
            # The others' places are not asked for, and here the piece may begin later.
            first = not cut.start and chunk is not None
            trace = self._trace(chunk, number) if chunk and first else NO_TRACE
            yield self._flowing_step(cut, chunk, trace)
            seen += reader.skip(self._size - cut.start - cut.num_rows)
            if seen < self._size:
                return

    def _flowing_step(self, cut: Cut, chunk: Chunk | None, trace: Trace) -> CutRows:
        if chunk is None:
            return CutRows(chunk=None, sizes=(0,) * len(cut.sizes), trace=trace)
        return self._step(chunk, cut.fill(chunk.num_rows), 0, trace)

    def _trace(self, chunk: Chunk, number: int, *, first: bool = True) -> Trace:
        """Where a batch was read, of which the chunk is the beginning if ``first``."""
        batch = self._read_plan.batch + number
        row = self._bounds.begin(batch)
        resume_point = make_resume_point(chunk, batch=batch, row=row) if first else None
        return Trace(resume_point=resume_point, num_touched=chunk.place.num_touched)

    def _step(
        self, chunk: Chunk, sizes: tuple[int, ...], mark: int = 0, trace: Trace = NO_TRACE
    ) -> CutRows:
        if not sum(sizes):
            return CutRows(chunk=None, sizes=sizes, mark=mark, trace=trace)
        if outlives_the_source(self._splitter):
            chunk = replace(chunk, data=rows.compact(chunk.data))
        return CutRows(chunk=chunk, sizes=sizes, mark=mark, trace=trace)


@dataclass(frozen=True, slots=True)
class Finish:
    """Maps and collates the rows of a step; notes pass. Picklable, for loader processes.

    Attributes:
        stream: where the rows are from.
        shard: which part of it.
        splitter: how they were cut.
        lent: a collate_fn of the user's makes the batches, perhaps always in the same buffer.
    """

    stream: Stream
    shard: Shard
    splitter: Splitter
    lent: bool = False

    def __call__(self, item: CutRows | ReadReport) -> LocalStep | ReadReport:
        """Make the step."""
        if isinstance(item, ReadReport):
            return item
        if item.chunk is None:
            return empty_step(len(item.sizes), mark=item.mark, trace=item.trace)
        batch = rows.with_tensors(self.stream.finish(item.chunk, self.shard))
        if self.lent:
            check_row_count(batch, item.chunk.num_rows)
            if outlives_the_source(self.splitter):
                batch = rows.copy_rows(batch)
        part = part_of(batch, item.chunk.ids)
        return cut_step(part, item.sizes, mark=item.mark, trace=item.trace)


def _other_length(expected: int, got: str) -> SourceError:
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
