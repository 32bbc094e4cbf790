"""Rows that arrive one after another: chunks, and readers that take and skip rows.

What a stream hands over is a :class:`Chunk`: rows that are not collated yet, with ids that tell
the examples apart. A reader answers ``take(n)`` with up to n rows, fewer only at the end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from torch_distinput.data import rows
from torch_distinput.data.read_log import Notes, ReadLog
from torch_distinput.data.structure import Batch, Examples
from torch_distinput.errors import SourceError

Ids = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """Some rows of a stream.

    Attributes:
        data: :class:`Examples`, to be collated, or a batch tree that is one already.
        ids: int64, ``(rows,)`` or ``(rows, k)``; they tell the examples apart.
    """

    data: Batch
    ids: Ids

    @property
    def num_rows(self) -> int:
        """Rows in the chunk."""
        return len(self.ids)

    def slice(self, start: int, stop: int) -> Chunk:
        """Return the rows from ``start`` to ``stop`` as views."""
        if start == 0 and stop == self.num_rows:
            return self
        return Chunk(data=rows.slice_rows(self.data, start, stop), ids=self.ids[start:stop])

    def take(self, indices: NDArray[np.int64]) -> Chunk:
        """Return the rows at ``indices``."""
        return Chunk(data=rows.take_rows(self.data, indices), ids=self.ids[indices])


def concat_chunks(chunks: list[Chunk]) -> Chunk:
    """Join chunks of one structure."""
    if len(chunks) == 1:
        return chunks[0]
    return Chunk(
        data=rows.concat_rows([chunk.data for chunk in chunks]),
        ids=np.concatenate([chunk.ids for chunk in chunks]),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """Which part of a source to open, in which epoch.

    Attributes:
        seed: the caller's.
        epoch: which epoch.
        num_shards: how many shards there are.
        index: which of them.
        sparse: most of its rows will be skipped, because they are other workers'.
    """

    seed: int = 0
    epoch: int = 0
    num_shards: int = 1
    index: int = 0
    sparse: bool = False


class RowReader(Protocol):
    """A stream of rows, read once."""

    def take(self, num_rows: int) -> Chunk | None:
        """Return the next rows: ``num_rows`` of them, fewer at the end, None after it."""

    def skip(self, num_rows: int) -> int:
        """Pass over the next rows without mapping or collating them; return how many there were."""

    def notes(self) -> Notes | None:
        """What has been skipped and retried since the last call; None if nothing has."""


class Stream(ABC):
    """A source that is read in order. Picklable where loader processes are spawned."""

    @abstractmethod
    def open(self, shard: Shard) -> RowReader:
        """Start reading a shard from its beginning."""

    @abstractmethod
    def finish(self, chunk: Chunk, shard: Shard) -> Batch:
        """Map what is left to map and collate: from rows to a batch."""

    @property
    def has_work(self) -> bool:
        """Whether :meth:`finish` is worth another process."""
        return True

    def share(self, worker: int, num_workers: int) -> tuple[Any, Notes | None] | None:
        """Find out what this worker can find out for all; None if that is nothing, for all alike.

        Returns plain values to be sent to the others, and notes on what went wrong.
        """
        del worker, num_workers
        return None

    def with_shares(self, shares: Sequence[Any]) -> Stream:
        """Return the stream with what all workers found out."""
        del shares
        return self

    def lengths(self, shard: Shard) -> tuple[int, ...] | None:
        """The number of rows of each shard, where it is known beforehand."""
        del shard
        return None


class ExampleReader:
    """Rows of an iterable that yields one example at a time; ids are running numbers."""

    def __init__(self, examples: Iterable[Any]) -> None:
        """Start an iterable."""
        self._examples = iter(examples)
        self._position = 0

    def take(self, num_rows: int) -> Chunk | None:
        """Return the next examples, not collated."""
        start = self._position
        taken = Examples(self._next(num_rows))
        return Chunk(data=taken, ids=np.arange(start, self._position)) if taken else None

    def skip(self, num_rows: int) -> int:
        """Pass over the next examples; return how many there were."""
        return sum(1 for _ in self._next(num_rows))

    def notes(self) -> None:
        """Nothing is skipped."""

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

    def notes(self) -> Notes | None:
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
    return SourceError(f"The source raised {type(error).__name__} at {where}: {error}")


def iterate(source: Any) -> Iterator[Any]:
    """Start a stream of the user's from its beginning.

    A generator function is called; a torchdata node is reset; anything else is iterated.
    """
    if callable(source) and not hasattr(source, "__iter__"):
        source = source()
    if hasattr(source, "reset") and hasattr(source, "get_state"):
        source.reset()
    return _once(iter(source))


def _once(iterator: Iterator[Any]) -> Iterator[Any]:
    """Hide ``__iter__``: some sources are their own iterator, and start anew when asked for one."""
    while True:
        try:
            item = next(iterator)
        except StopIteration:
            return
        yield item


Collate = Callable[[list[Any]], Batch]


@dataclass(frozen=True, slots=True)
class ExampleStream(Stream):
    """An opaque stream of examples: an IterableDataset, a generator function or a node."""

    source: Any
    collate: Collate

    def open(self, shard: Shard) -> RowReader:
        """Start the stream; nothing of it can be dealt out, so the shard is all of it."""
        assert shard.num_shards == 1, "an opaque stream has no shards"
        return ExampleReader(iterate(self.source))

    def finish(self, chunk: Chunk, shard: Shard) -> Batch:  # noqa: ARG002
        """Collate."""
        return self.collate(chunk.data)


@dataclass(frozen=True, slots=True)
class DealableStream(Stream):
    """A source with ``num_shards`` and ``shard(num_shards, index)`` (Hugging Face streams)."""

    source: Any
    collate: Collate

    def open(self, shard: Shard) -> RowReader:
        """Start one shard of the source, or all of it."""
        return ExampleReader(iterate(_part(self.source, shard)))

    def finish(self, chunk: Chunk, shard: Shard) -> Batch:  # noqa: ARG002
        """Collate."""
        return self.collate(chunk.data)


@dataclass(frozen=True, slots=True)
class ReadyStream:
    """A stream whose elements already are batches.

    Attributes:
        source: what to iterate.
        expected: what an element is, and why; for the message where it is not.
        cure: what to do about it.
    """

    source: Any
    expected: str = "a ready global batch, because no global_batch_size was given"
    cure: str = "If the elements are examples, pass global_batch_size."

    def chunks(self, shard: Shard) -> Iterator[Chunk]:
        """Yield the batches, rows numbered; name the batch at which the source raises."""
        number = start = 0
        try:
            for batch in iterate(_part(self.source, shard)):
                stop = start + self._count(number, batch)
                yield Chunk(data=rows.with_tensors(batch), ids=np.arange(start, stop))
                number, start = number + 1, stop
        except SourceError:
            raise
        except Exception as error:
            raise source_error(error, f"batch {number}") from error

    def _count(self, number: int, batch: Batch) -> int:
        try:
            return rows.num_rows(batch)
        except (TypeError, ValueError) as error:
            msg = f"Element {number} of the source should be {self.expected}: {error} {self.cure}"
            raise SourceError(msg) from error


def _part(source: Any, shard: Shard) -> Any:
    """Deal out a shard; Hugging Face streams shuffle by the epoch that they are told."""
    if hasattr(source, "set_epoch"):
        source.set_epoch(shard.epoch)
    if shard.num_shards == 1 and (hasattr(source, "__iter__") or callable(source)):
        return source
    return source.shard(num_shards=shard.num_shards, index=shard.index)
