"""How many rows listed files have and where each of them stands, known before they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import final

import numpy as np
from numpy.typing import NDArray

from torch_distinput.data.batch.lazy_property import LazyProperty
from torch_distinput.data.files.dataset import FileDataset
from torch_distinput.data.files.operations import Locate, Map, Operation, Shuffle
from torch_distinput.data.files.partitions import place_in_partitions
from torch_distinput.data.files.work_units import WHOLE, Survey, Unit
from torch_distinput.data.formats.reader import Part
from torch_distinput.data.storage.file_listing import FileInfo
from torch_distinput.data.stream.chunk import Cursor, Ids
from torch_distinput.plan.assignment.interleaving import count_opened
from torch_distinput.plan.assignment.permutation import Indices, permute_files
from torch_distinput.plan.assignment.sharding import assign_items
from torch_distinput.plan.progress.route import Shard


@final
class FileCounts:
    """The partitions of listed files (what is dealt out: files, or parts of them) and their rows.

    Rows are known where a survey has counted all of them and no bad one is left out.

    Args:
        dataset: the recipe.
        listing: its files.
        survey: the parts of all files, once they are known.
    """

    def __init__(
        self, dataset: FileDataset, listing: Sequence[FileInfo], survey: Survey | None
    ) -> None:
        """Count nothing yet."""
        self._dataset = dataset
        self._listing = listing
        self._survey = survey

    @LazyProperty
    def _ends(self) -> NDArray[np.int64] | None:
        """Of files that are split: how many parts there are up to the end of each."""
        if self._survey is None or not self._dataset.split_files:
            return None
        return np.cumsum([len(parts) for parts in self._survey.parts], dtype=np.int64)

    @property
    def num_partitions(self) -> int:
        """Files, or parts of them, that can be dealt out."""
        if self._ends is None:
            return len(self._listing)
        return int(self._ends[-1]) if len(self._ends) else 0

    @LazyProperty
    def _counts(self) -> NDArray[np.int64] | None:
        """Records of each partition, before all operations; None if one of them is not counted."""
        if self._survey is None or self._dataset.on_error != "raise":
            return None
        files = [[part.num_records for part in parts] for parts in self._survey.parts]
        if any(None in counts for counts in files):
            return None
        if self._dataset.split_files:
            return np.array([count for counts in files for count in counts], dtype=np.int64)
        return np.array([sum(counts) for counts in files], dtype=np.int64)  # type: ignore[arg-type]

    def partitions(self, shard: Shard) -> list[list[Unit]]:
        """What a shard reads, in order: the units of a file, or single units.

        Made for this shard alone: there may be a million files, and few of them in a shard.
        """
        mine = shard.select(self._order(self.num_partitions, shard))
        return [self._make_units(number) for number in mine.tolist()]

    def _make_units(self, number: int) -> list[Unit]:
        if self._survey is None:
            return [Unit(file=number, part=part) for part in WHOLE]
        if self._ends is None:
            return [Unit(file=number, part=part) for part in self._survey.parts[number]]
        file = int(np.searchsorted(self._ends, number, side="right"))
        parts = self._survey.parts[file]
        return [Unit(file=file, part=parts[number - int(self._ends[file])])]  # from its end

    def lengths(self, shards: Sequence[Shard]) -> tuple[int, ...] | None:
        """How many records each shard has after all operations; None if that is not known."""
        counts = self._counts
        if counts is None:
            return None
        order = self._order(len(counts), shards[0])
        lengths = [
            _count_through(self._dataset.operations, int(counts[shard.select(order)].sum()))
            for shard in shards
        ]
        return None if None in lengths else tuple(lengths)  # type: ignore[arg-type]

    def locate(self, shard: Shard, row: int, operations: Sequence[Operation]) -> Cursor:
        """Where a row behind some operations stands."""
        lengths = self._partition_lengths(shard)
        source = partial(place_in_partitions, lengths, self._dataset.cycle)
        return _locate(operations, row, sum(lengths), source)

    def num_touched(self, shard: Shard, num_rows: int) -> int:
        """How many partitions the first rows are from: of whole windows, where it shuffles."""
        lengths = self._partition_lengths(shard)
        for operation in reversed(self._dataset.operations):
            if isinstance(operation, Shuffle):
                num_rows = -(-num_rows // operation.buffer_size) * operation.buffer_size
        num_rows = min(num_rows, sum(lengths))
        if self._dataset.cycle is not None:
            return count_opened(lengths, self._dataset.cycle, num_rows)
        return int(np.searchsorted(np.cumsum(lengths), num_rows)) + 1 if num_rows else 0

    def all_ids(self, worker: int, num_workers: int) -> Iterator[Ids] | None:
        """Those of every ``num_workers``-th file, where all are counted and none left out."""
        kept = all(isinstance(operation, (Map, Shuffle)) for operation in self._dataset.operations)
        if self._survey is None or self._counts is None or not kept:
            return None
        mine, parts = assign_items(len(self._listing), num_workers, worker), self._survey.parts
        return (ids for number in mine for ids in _ids(number, parts[number]))

    def _partition_lengths(self, shard: Shard) -> list[int]:
        counts = self._counts
        assert counts is not None, "asked where lengths are known"
        return [int(n) for n in counts[shard.select(self._order(len(counts), shard))]]

    def _order(self, num_partitions: int, shard: Shard) -> Indices:
        if not self._dataset.shuffle_files:
            return np.arange(num_partitions)
        return permute_files(num_partitions, seed=shard.seed, epoch=shard.epoch)


def _count_through(operations: Sequence[Operation], num_records: int) -> int | None:
    """How many of so many records are left behind all operations; None if that is not known."""
    counted: int | None = num_records
    for operation in operations:
        counted = None if counted is None else operation.count(counted)
    return counted


def _locate(operations: Sequence[Operation], row: int, num_records: int, source: Locate) -> Cursor:
    """Where a row behind all operations stands, if so many records can be counted through them."""
    if not operations:
        return source(row)
    *before, last = operations
    counted = _count_through(before, num_records)
    assert counted is not None, "asked where lengths are known"
    return last.locate(row, counted, lambda inner: _locate(before, inner, num_records, source))


def _ids(file: int, parts: Sequence[Part]) -> Iterator[Ids]:
    for part in parts:
        numbers = part.first_record + np.arange(part.num_records or 0)
        yield np.stack([np.full(len(numbers), file), numbers], axis=1)
