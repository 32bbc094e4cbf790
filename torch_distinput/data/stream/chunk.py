"""Rows that arrive one after another: chunks, and readers that take and skip rows.

What a stream hands over is a :class:`Chunk`: rows that are not collated yet, with ids that tell
the examples apart. A reader answers ``take(n)`` with up to n rows, fewer only at the end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from torch_distinput.data.batch import rows
from torch_distinput.data.batch.tree import Batch, Examples
from torch_distinput.data.stream.bad_records import ReadLog, ReadReport
from torch_distinput.data.stream.witness import Witness
from torch_distinput.data.user_sources.epochs import tell_epoch
from torch_distinput.data.user_sources.run import SourceRun
from torch_distinput.errors import SourceError
from torch_distinput.plan.progress.position import Start
from torch_distinput.plan.progress.route import Shard

Ids = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cursor:
    """Where rows stand in their stream.

    Attributes:
        start: from where the stream can be started again; () is its beginning.
        skip: how many rows come between that and these.
        num_touched: how many of the shard's files the rows up to here are from.
    """

    start: Start = ()
    skip: int = 0
    num_touched: int = 0

    def within(self, *state: Any) -> Cursor:
        """Where rows stand behind an operation that needs ``state`` to be started here."""
        return Cursor(start=(*self.start, self.skip, *state), num_touched=self.num_touched)

    def behind_nothing(self) -> Cursor:
        """As :meth:`within`, for an operation that will keep all rows."""
        return replace(self, start=(*self.start, 0))

    def before(self, num_states: int) -> Cursor:
        """Undo :meth:`within`; rows of the beginning stand at the beginning."""
        if not self.start:
            return self
        inner = len(self.start) - num_states - 1
        return Cursor(start=self.start[:inner], skip=self.start[inner])


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """Some rows of a stream.

    Attributes:
        data: :class:`Examples`, to be collated, or a batch tree that is one already.
        ids: int64, ``(rows,)`` or ``(rows, k)``; they tell the examples apart.
        place: where the first row stands; its reach is that of the last one.
    """

    data: Batch
    ids: Ids
    place: Cursor = field(default_factory=Cursor)

    @property
    def num_rows(self) -> int:
        """Rows in the chunk."""
        return len(self.ids)

    def slice(self, start: int, stop: int) -> Chunk:
        """Return the rows from ``start`` to ``stop`` as views."""
        if start == 0 and stop == self.num_rows:
            return self
        place = replace(self.place, skip=self.place.skip + start)
        data = rows.slice_rows(self.data, start, stop)
        return Chunk(data=data, ids=self.ids[start:stop], place=place)

    def take(self, indices: NDArray[np.int64]) -> Chunk:
        """Return the rows at ``indices``, which stand where the chunk stands."""
        data = rows.take_rows(self.data, indices)
        return Chunk(data=data, ids=self.ids[indices], place=self.place)


def concat_chunks(chunks: list[Chunk]) -> Chunk:
    """Join chunks of one structure."""
    if len(chunks) == 1:
        return chunks[0]
    return Chunk(
        data=rows.concat_rows([chunk.data for chunk in chunks]),
        ids=np.concatenate([chunk.ids for chunk in chunks]),
        place=replace(chunks[0].place, num_touched=chunks[-1].place.num_touched),
    )


class RowReader(Protocol):
    """A stream of rows, read once."""

    def take(self, num_rows: int) -> Chunk | None:
        """Return the next rows: ``num_rows`` of them, fewer at the end, None after it."""

    def skip(self, num_rows: int) -> int:
        """Pass over the next rows without mapping or collating them; return how many there were."""

    def notes(self) -> ReadReport | None:
        """What has been skipped and retried since the last call; None if nothing has."""


class Stream(ABC):
    """A source that is read in order. Picklable where loader processes are spawned."""

    @abstractmethod
    def open(self, shard: Shard, start: Start = ()) -> RowReader:
        """Start reading a shard, from its beginning or from a :attr:`Cursor.start` of its rows."""

    @abstractmethod
    def finish(self, chunk: Chunk, shard: Shard) -> Batch:
        """Map what is left to map and collate: from rows to a batch."""

    @property
    def has_work(self) -> bool:
        """Whether :meth:`finish` is worth another process."""
        return True

    def share(self, worker: int, num_workers: int) -> tuple[Any, ReadReport | None] | None:
        """Find out what this worker can find out for all; None if that is nothing, for all alike.

        Returns plain values to be sent to the others, and notes on what went wrong.
        """
        del worker, num_workers
        return None

    def with_shares(self, shares: Sequence[Any]) -> Stream:
        """Return the stream with what all workers found out."""
        del shares
        return self

    def lengths(self, shards: Sequence[Shard]) -> tuple[int, ...] | None:
        """The number of rows of each of some shards of an epoch, where all are known beforehand."""
        del shards
        return None

    def locate(self, shard: Shard, row: int) -> Cursor:
        """Where a row stands, found without reading; asked only where lengths are known."""
        del shard
        return Cursor(skip=row)

    def all_ids(self, worker: int, num_workers: int) -> Iterable[Ids] | None:
        """A share of the ids of all rows of an epoch; None where they are not known."""
        del worker, num_workers
        return None

    @property
    def has_parts(self) -> bool:
        """Whether what was dealt out to a worker can be dealt out again, file by file."""
        return False

    def num_touched(self, shard: Shard, num_rows: int) -> int:
        """How many files of the shard its first rows are from.

        Asked only where lengths are known and the stream has parts.
        """
        raise NotImplementedError

    @property
    def recipe(self) -> Mapping[str, Any]:
        """What of it decides which examples come in which order: names and plain values."""
        return {}


class ExampleReader:
    """Rows of an iterable that yields one example at a time; ids are running numbers."""

    def __init__(self, source: Any, shard: Shard, start: Start = ()) -> None:
        """Start a source."""
        self._run = SourceRun(source, start, epoch=shard.epoch)
        self._start = start if start and start[0] else self._run.beginning(0)
        self._position = self._skipped = start[0] if start else 0
        self._examples = self._run.items
        self._witness = None
        if shard.watched:
            self._witness = Witness("example", self._position, self._position)
            self._examples = self._witness.watch(self._examples)

    def take(self, num_rows: int) -> Chunk | None:
        """Return the next examples, not collated."""
        first = self._position
        place = Cursor(start=self._start, skip=first - self._skipped)
        taken = Examples(self._next(num_rows))
        if not taken:
            return None
        if here := self._run.place(self._position):
            self._start, self._skipped = here, self._position
        return Chunk(data=taken, ids=np.arange(first, self._position), place=place)

    def skip(self, num_rows: int) -> int:
        """Pass over the next examples; return how many there were."""
        return sum(1 for _ in self._next(num_rows))

    def notes(self) -> ReadReport | None:
        """Nothing is skipped; but there may be a witness of all that was read."""
        return self._witness.notes() if self._witness else None

    def _next(self, num_rows: int) -> Iterator[Any]:
        """Yield the next examples, and name the one at which the source raises."""
        try:
            for example in islice(self._examples, num_rows):
                self._position += 1
                yield example
        except Exception as error:
            raise source_error(error, f"example {self._position}") from error


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
        parts = list(self._next(num_rows))
        return concat_chunks(parts) if parts else None

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


def source_error(error: Exception, where: str) -> SourceError:
    """Name the place at which a source raised; an error that names its place is left alone."""
    if isinstance(error, SourceError):
        return error
    said = str(error)
    if isinstance(error, StopIteration):
        said = (
            "it would pass for the end of the data, and the rest would be lost. Give next() a "
            "default, or catch StopIteration where it is called."
        )
    return SourceError(f"The source raised {type(error).__name__} at {where}: {said}")


Collate = Callable[[list[Any]], Batch]


@dataclass(frozen=True, slots=True)
class ExampleStream(Stream):
    """An opaque stream of examples: an IterableDataset, a generator function or a node."""

    source: Any
    collate: Collate

    def open(self, shard: Shard, start: Start = ()) -> RowReader:
        """Start the stream; nothing of it can be dealt out, so the shard is all of it."""
        assert shard.num_shards == 1, "an opaque stream has no shards"
        return ExampleReader(self.source, shard, start)

    def finish(self, chunk: Chunk, shard: Shard) -> Batch:  # noqa: ARG002
        """Collate."""
        return self.collate(chunk.data)


@dataclass(frozen=True, slots=True)
class DealableStream(Stream):
    """A source with ``num_shards`` and ``shard(num_shards, index)`` (Hugging Face streams)."""

    source: Any
    collate: Collate

    def open(self, shard: Shard, start: Start = ()) -> RowReader:
        """Start one shard of the source, or all of it."""
        return ExampleReader(part_of(self.source, shard), shard, start)

    def finish(self, chunk: Chunk, shard: Shard) -> Batch:  # noqa: ARG002
        """Collate."""
        return self.collate(chunk.data)


def part_of(source: Any, shard: Shard) -> Any:
    """Deal out a shard; what comes of it may forget the epoch that the source was told."""
    if shard.num_shards == 1 and (hasattr(source, "__iter__") or callable(source)):
        return source
    tell_epoch(source, shard.epoch)
    return source.shard(num_shards=shard.num_shards, index=shard.index)
