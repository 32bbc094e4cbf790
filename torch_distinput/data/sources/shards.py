"""Shards of a stream, each a stream by itself: dealt out like files, and so again.

What a worker reads, of seven shards in the order of the epoch (FILE, two workers):

    worker 0    shards 0, 2, 4, 6    number 0, 1, 2, 3 of its own
    worker 1    shards 1, 3, 5

A place names a shard by its number, and where in it to begin: with rows to pass over, or with the
shard's own state (see ``bookmark``). States of earlier releases hold parts instead: what
``shard(num_workers, worker)`` gives, which was one stream. Such a part is read on as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from torch_distinput.data.sources.examples import CollatedStream, ExampleReader, deal_shard
from torch_distinput.data.stream.chunk import Chunk, Cursor, concat_chunks
from torch_distinput.data.stream.protocols import RowReader
from torch_distinput.plan.assignment.permutation import permute
from torch_distinput.plan.progress.parts import PART
from torch_distinput.plan.progress.place import Start
from torch_distinput.plan.progress.route import Shard

SHARD = "shard"
"""The kind of place in one of a worker's shards."""
_ORDER = 0x5A4D
"""Part of the key of their order: no other order has the same key."""


@final
@dataclass(frozen=True, slots=True)
class ShardStream(CollatedStream):
    """The shards of a stream of examples, which the source gives by ``num_shards`` and ``shard``.

    Attributes:
        shuffle: they come in an order of the epoch's own.
    """

    shuffle: bool = False

    def open(self, shard: Shard, start: Start = None) -> RowReader:
        """Start the shards of a worker, or a part as an earlier release has dealt it out."""
        if start is not None and start.kind == PART:
            return _PartReader(self.source, shard, start)
        return _ShardsReader(self.source, shard.select(self._order(shard)).tolist(), shard, start)

    @property
    def has_parts(self) -> bool:
        """Shard by shard."""
        return True

    def _order(self, shard: Shard) -> Any:
        count = int(self.source.num_shards)
        if not self.shuffle:
            return np.arange(count)
        return permute(count, key=(shard.seed, shard.epoch, _ORDER))


@final
class _ShardsReader:
    """Rows of shards one after another; ids are the shard's number and the row's in it."""

    def __init__(self, source: Any, shards: Sequence[int], shard: Shard, start: Start) -> None:
        """Open nothing yet."""
        self._source = source
        self._shards = shards
        self._shard = shard
        self._number = 0
        self._within = Cursor()
        if start is not None:
            self._number = start.check(SHARD, 1).number("number")
            self._within = Cursor(start=start).before(SHARD)
        self._reader: ExampleReader | None = None

    def take(self, num_rows: int) -> Chunk | None:
        """Return the next examples, not collated; of several shards, if there are so many."""
        parts = []
        while num_rows and (reader := self._open()) is not None:
            chunk = reader.take(num_rows)
            if chunk is None:
                self._leave()
                continue
            num_rows -= chunk.num_rows
            parts.append(self._placed(chunk))
        return concat_chunks(parts) if parts else None

    def skip(self, num_rows: int) -> int:
        """Pass over the next examples; return how many there were."""
        left = num_rows
        while left and (reader := self._open()) is not None:
            passed = reader.skip(left)
            left -= passed
            if not passed:
                self._leave()
        return num_rows - left

    def notes(self) -> None:
        """Nothing is skipped."""

    def _open(self) -> ExampleReader | None:
        """The shard that is read, or the next one."""
        if self._reader is None and self._number < len(self._shards):
            single = self._source.shard(
                num_shards=self._source.num_shards, index=self._shards[self._number]
            )
            self._reader = ExampleReader(single, self._shard, self._within.start)
            self._reader.skip(self._within.skip)
        return self._reader

    def _leave(self) -> None:
        self._reader, self._within = None, Cursor()
        self._number += 1

    def _placed(self, chunk: Chunk) -> Chunk:
        place = replace(
            chunk.place.within(SHARD, number=self._number), num_touched=self._number + 1
        )
        return _named(chunk, self._shards[self._number], place)


@final
class _PartReader:
    """Rows of a part, read as earlier releases did; it counts as touched, as a whole."""

    def __init__(self, source: Any, shard: Shard, start: Start) -> None:
        """Start it."""
        within = Cursor(start=start).before(PART)
        self._number = shard.index
        self._reader = ExampleReader(deal_shard(source, shard), shard, within.start)
        self._reader.skip(within.skip)

    def take(self, num_rows: int) -> Chunk | None:
        """Return the next examples, not collated."""
        chunk = self._reader.take(num_rows)
        return chunk and _named(chunk, self._number, chunk.place.within(PART))

    def skip(self, num_rows: int) -> int:
        """Pass over the next examples; return how many there were."""
        return self._reader.skip(num_rows)

    def notes(self) -> None:
        """Nothing is skipped."""


def _named(chunk: Chunk, number: int, place: Cursor) -> Chunk:
    """A chunk whose ids are pairs: the number of what it is from, and a running number in it."""
    ids = np.stack([np.full(chunk.num_rows, number), chunk.ids], axis=1)
    return Chunk(data=chunk.data, ids=ids, place=place)
