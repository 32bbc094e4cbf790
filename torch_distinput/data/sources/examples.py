"""Sources of the user's that yield one example at a time, perhaps in shards to be dealt out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, final

import numpy as np

from torch_distinput.data.batch.collate import CollateFn, collate_with
from torch_distinput.data.batch.object_parts import has_method
from torch_distinput.data.batch.tree import Batch, Examples
from torch_distinput.data.sources.beginning import Beginning
from torch_distinput.data.stream.bad_records import ReadReport
from torch_distinput.data.stream.chunk import Chunk, Cursor
from torch_distinput.data.stream.protocols import RowReader, Stream
from torch_distinput.data.stream.witness import Witness
from torch_distinput.data.user_sources.bookmark import start_run
from torch_distinput.data.user_sources.epochs import tell_epoch
from torch_distinput.data.user_sources.source_errors import source_error
from torch_distinput.data.user_sources.states import find_mark
from torch_distinput.errors import SourceError
from torch_distinput.plan.progress.place import Start
from torch_distinput.plan.progress.route import Shard

_AT_ONE_EPOCH = 1000
"""Examples that are passed over before another dataset over the same stream may read it."""


@dataclass(frozen=True, slots=True)
class CollatedStream(Stream):
    """Examples of a source of the user's, however they are dealt out; :meth:`open` reads them.

    Attributes:
        source: gives them.
        collate: from examples to a batch.
    """

    source: Any
    collate: CollateFn

    def finish(self, chunk: Chunk, shard: Shard) -> Batch:  # noqa: ARG002
        """Collate."""
        return collate_with(self.collate, chunk.data)

    def examples(self, chunk: Chunk, shard: Shard) -> list[Any]:  # noqa: ARG002
        """They are examples."""
        return list(chunk.data)

    @property
    def has_work(self) -> bool:
        """Collating always is worth another process."""
        return True

    @property
    def recipe(self) -> Mapping[str, Any]:
        """The source is the user's own affair."""
        return {}


@final
@dataclass(frozen=True, slots=True)
class ExampleStream(CollatedStream):
    """A stream of examples: an IterableDataset, a generator function, a node, or shards of one."""

    def open(self, shard: Shard, start: Start = None) -> RowReader:
        """Start one shard of the source, or all of it."""
        return ExampleReader(deal_shard(self.source, shard), shard, start)

    @property
    def has_parts(self) -> bool:
        """A worker's shards are one stream."""
        return False


@final
class ExampleReader:
    """Rows of an iterable that yields one example at a time; ids are running numbers."""

    def __init__(self, source: Any, shard: Shard, start: Start = None) -> None:
        """Start a source."""
        self._run = start_run(source, start, epoch=shard.epoch)
        self._position = self._started_at = start.number("example") if start else 0
        # The newest place from which the source can be started, and the example there.
        self._start = start if self._position else self._run.beginning(example=0)
        self._examples = self._run.items
        self._beginning = None
        if shard.marked and not self._run.tells_beginning:
            self._beginning = Beginning(source, start)
            self._examples = self._beginning.watch(self._examples)
        self._witness = None
        if shard.watched:
            self._witness = Witness("example", self._position, self._position)
            self._examples = self._witness.watch(self._examples)

    def take(self, num_rows: int) -> Chunk | None:
        """Return the next examples, not collated."""
        first = self._position
        with self._run.at_epoch:
            taken = Examples(self._next(num_rows))
        if not taken:
            return None
        beginning = self._beginning
        if beginning is not None and not self._started_at and find_mark(self._start) is None:
            self._start = beginning.place(self._start, example=0)
        place = Cursor(start=self._start, skip=first - self._started_at)
        if here := self._run.place(example=self._position):
            self._start, self._started_at = here, self._position
        return Chunk(data=taken, ids=np.arange(first, self._position), place=place)

    def skip(self, num_rows: int) -> int:
        """Pass over the next examples; return how many there were."""
        first = self._position
        stop = first + num_rows
        while self._position < stop:
            wanted = min(_AT_ONE_EPOCH, stop - self._position)
            if self._pass_over(wanted) < wanted:
                break
        return self._position - first

    def _pass_over(self, num_rows: int) -> int:
        first, positions = self._position, count(self._position)
        try:
            # Nobody sees an example: counted at the pace of the source, without a step of Python's.
            with self._run.at_epoch:
                deque(zip(islice(self._examples, num_rows), positions, strict=False), maxlen=0)
        except SourceError:
            raise
        except Exception as error:
            self._position = next(positions)
            raise source_error(error, f"example {self._position}") from error
        self._position = next(positions)
        return self._position - first

    def notes(self) -> ReadReport | None:
        """Nothing is skipped; but there may be a witness of all that was read."""
        return self._witness.notes() if self._witness else None

    def _next(self, num_rows: int) -> Iterator[Any]:
        """Yield the next examples, and name the one at which the source raises."""
        try:
            for example in islice(self._examples, num_rows):
                self._position += 1
                yield example
        except SourceError:
            raise
        except Exception as error:
            raise source_error(error, f"example {self._position}") from error


def deal_shard(source: Any, shard: Shard) -> Any:
    """Deal out a shard; what comes of it may forget the epoch that the source was told."""
    if shard.num_shards == 1 and (has_method(source, "__iter__") or callable(source)):
        return source
    tell_epoch(source, shard.epoch)
    return source.shard(num_shards=shard.num_shards, index=shard.index)
