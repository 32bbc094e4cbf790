"""Shards of a stream, each a stream by itself: dealt out like files, and so again.

What a worker reads, of seven shards in the order of the epoch (FILE, two workers):

    worker 0    shards 0, 2, 4, 6    number 0, 1, 2, 3 of its own
    worker 1    shards 1, 3, 5

A place names a shard by its number, and where in it to begin: with rows to pass over, or with the
shard's own state (see ``bookmark``). States of earlier releases hold parts instead: what
``shard(num_workers, worker)`` gives, which was one stream. Such a part is read on as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np

from torch_distinput.data.sources.examples import CollatedStream, ExampleReader, deal_shard
from torch_distinput.data.stream.chunk import Chunk, Cursor
from torch_distinput.data.stream.protocols import RowReader
from torch_distinput.data.stream.reader_chain import Link, ReaderChain
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

    shuffle: bool

    def open(self, shard: Shard, start: Start = None) -> RowReader:
        """Start the shards of a worker, or a part as an earlier release has dealt it out."""
        if start is not None and start.kind == PART:
            return ReaderChain(_part_link(self.source, shard, start))
        shards = shard.select(self._order(shard)).tolist()
        return ReaderChain(_shard_links(self.source, shards, shard, start))

    @property
    def has_parts(self) -> bool:
        """Shard by shard."""
        return True

    def _order(self, shard: Shard) -> Any:
        count = int(self.source.num_shards)
        if not self.shuffle:
            return np.arange(count)
        return permute(count, key=(shard.seed, shard.epoch, _ORDER))


def _shard_links(source: Any, shards: Sequence[int], shard: Shard, start: Start) -> Iterator[Link]:
    """Open a worker's shards, the first of them where it was left."""
    first, within = 0, Cursor()
    if start is not None:
        first = start.check(SHARD, 1).number("number")
        within = Cursor(start=start).before(SHARD)
    for number in range(first, len(shards)):
        single = source.shard(num_shards=source.num_shards, index=shards[number])
        reader = ExampleReader(single, shard, within.start)
        reader.skip(within.skip)
        yield Link(reader=reader, placed=partial(_placed, number=number, index=shards[number]))
        within = Cursor()


def _placed(chunk: Chunk, *, number: int, index: int) -> Chunk:
    place = chunk.place.within(SHARD, number=number)._replace(num_touched=number + 1)
    return _named(chunk, index, place)


def _part_link(source: Any, shard: Shard, start: Start) -> Iterator[Link]:
    """Open a part, read as earlier releases did; it counts as touched, as a whole."""
    within = Cursor(start=start).before(PART)
    reader = ExampleReader(deal_shard(source, shard), shard, within.start)
    reader.skip(within.skip)
    yield Link(
        reader=reader,
        placed=lambda chunk: _named(chunk, shard.index, chunk.place.within(PART)),
    )


def _named(chunk: Chunk, number: int, place: Cursor) -> Chunk:
    """A chunk whose ids are pairs: the number of what it is from, and a running number in it."""
    ids = np.stack([np.full(chunk.num_rows, number), chunk.ids], axis=1)
    return Chunk(data=chunk.data, ids=ids, place=place)
