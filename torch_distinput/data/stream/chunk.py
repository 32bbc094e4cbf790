"""Rows that arrive one after another, in chunks, and where they stand in their stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from torch_distinput.data.batch import rows
from torch_distinput.data.batch.tree import Batch
from torch_distinput.plan.progress.place import Place, Start, Value

Ids = NDArray[np.int64]


class Cursor(NamedTuple):
    """Where rows stand in their stream.

    Attributes:
        start: from where the stream can be started again.
        skip: how many rows come between that and these.
        num_touched: how many of the shard's files the rows up to here are from.
        segment: which of a worker's segments they are from.
    """

    start: Start = None
    skip: int = 0
    num_touched: int = 0
    segment: int = 0

    def after(self, num_rows: int) -> Cursor:
        """Where the rows stand that come so many later."""
        start, skip, num_touched, segment = self
        return Cursor(start, skip + num_rows, num_touched, segment) if num_rows else self

    def within(self, operation: str, **values: Value) -> Cursor:
        """Where rows stand behind an operation that needs ``values`` to be started here."""
        start = Place(operation, tuple(values.items()), self.skip, (self.start,))
        return Cursor(start=start, num_touched=self.num_touched)

    def behind_all(self, operation: str) -> Cursor:
        """As :meth:`within`, for an operation that will keep all rows."""
        return self._replace(start=Place(operation, inner=(self.start,)))

    def before(self, operation: str) -> Cursor:
        """Undo :meth:`within`; rows of the beginning stand at the beginning.

        Raises:
            ConfigurationError: a ValueError; the rows stand behind another operation.
        """
        if self.start is None:
            return self
        start = self.start.check(operation, 1)
        return Cursor(start=start.inner[0], skip=start.skip)


class Chunk(NamedTuple):
    """Some rows of a stream.

    Attributes:
        data: :class:`Examples`, to be collated, or a batch tree that is one already.
        ids: int64, ``(rows,)`` or ``(rows, k)``; they tell the examples apart.
        place: where the first row stands; its number of files touched is that of the last one.
    """

    data: Batch
    ids: Ids
    place: Cursor = Cursor()

    @property
    def num_rows(self) -> int:
        """Rows in the chunk."""
        return len(self.ids)

    def moved(self, place: Cursor) -> Chunk:
        """The same rows at another place."""
        return Chunk(self.data, self.ids, place)

    def slice(self, start: int, stop: int) -> Chunk:
        """Return the rows from ``start`` to ``stop`` as views."""
        data, ids, place = self
        if start == 0 and stop == len(ids):
            return self
        return Chunk(rows.slice_rows(data, start, stop), ids[start:stop], place.after(start))

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
        place=chunks[0].place._replace(num_touched=chunks[-1].place.num_touched),
    )


@final
class ChunkPool:
    """Rows of chunks of one structure, to be taken in any order."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        """Keep the chunks as they are."""
        self._rows = rows.RowPool([chunk.data for chunk in chunks])
        self._ids = np.concatenate([chunk.ids for chunk in chunks])
        self.place = chunks[0].place._replace(num_touched=chunks[-1].place.num_touched)

    @property
    def num_rows(self) -> int:
        """Rows of all chunks."""
        return len(self._ids)

    def take(self, indices: NDArray[np.int64], place: Cursor) -> Chunk:
        """Return the rows at ``indices``, which stand at a place, in memory of their own."""
        return Chunk(data=self._rows.take(indices), ids=self._ids[indices], place=place)
