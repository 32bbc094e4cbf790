"""A FileDataset as a stream: its listing and survey, its shards, and what is left after the cut."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from torch_distinput.data.batch import rows
from torch_distinput.data.batch.collate import CollateFn, collate_examples
from torch_distinput.data.batch.tree import Batch, Examples
from torch_distinput.data.files import operations as file_ops
from torch_distinput.data.files.dataset import FileDataset
from torch_distinput.data.files.decode import Decode, Schema, has_decode
from torch_distinput.data.files.interleave import interleaved
from torch_distinput.data.files.operations import Filter, Key, Map, Operation, Repeat, Shuffle, Take
from torch_distinput.data.files.partitions import ahead, place_in_partitions, read_partition
from torch_distinput.data.files.unit_reader import UnitReader
from torch_distinput.data.files.unit_source import UnitSource
from torch_distinput.data.files.work_units import (
    Share,
    Survey,
    Unit,
    as_numbers,
    count_records,
    joined_surveys,
    joined_units,
)
from torch_distinput.data.formats.reader import Part
from torch_distinput.data.storage import filesystem
from torch_distinput.data.storage.compression import decompressor
from torch_distinput.data.storage.filesystem import FileInfo
from torch_distinput.data.stream.bad_records import ReadLog, ReadReport
from torch_distinput.data.stream.chunk import Chunk, Cursor, Ids, Shard
from torch_distinput.data.stream.chunk_reader import ChunkReader
from torch_distinput.data.stream.protocols import CountedStream, RowReader
from torch_distinput.plan.assignment.interleaving import num_opened
from torch_distinput.plan.assignment.permutation import Indices, permutation
from torch_distinput.plan.assignment.sharding import dealt
from torch_distinput.plan.progress.position import Start

_MOST_SURVEYED = 1024
"""More files are not looked into before they are read, unless they are to be split."""
_NETWORK_THREADS = 4
"""Files read ahead at a time where each request has to be waited for."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FileStream(CountedStream):
    """The records of listed files.

    Attributes:
        dataset: the recipe.
        listing: its files.
        collate: the user's, or None: then what the reader gives is a batch already, unless a map
            made examples.
        threads: files to read ahead at a time.
        survey: the parts of all files, once they are known.
    """

    dataset: FileDataset
    listing: tuple[FileInfo, ...]
    collate: CollateFn | None
    threads: int = 0
    survey: Survey | None = None

    def share(self, worker: int, num_workers: int) -> tuple[Share, ReadReport | None] | None:
        """Look into this worker's share of the files; None where nothing is gained by it."""
        dataset = self.dataset
        counted = dataset.reader.counted and len(self.listing) <= _MOST_SURVEYED
        if self.survey is not None or not (dataset.split_files or counted):
            return None
        return self.survey_for_all(worker, num_workers)

    def survey_for_all(self, worker: int, num_workers: int) -> tuple[Share, ReadReport | None]:
        """Find the parts of this worker's share of the files."""
        dataset = self.dataset
        log = ReadLog(dataset.on_error)
        mine = dealt(len(self.listing), num_workers, worker)
        with ThreadPoolExecutor(max_workers=8) as pool:  # most of the time is waiting for storage
            found = list(pool.map(lambda number: as_numbers(self._files.parts(number, log)), mine))
        return found, log.drain()

    def with_shares(self, shares: Sequence[Share]) -> FileStream:
        """Return the stream with what all workers found out."""
        return replace(self, survey=joined_surveys(shares, len(self.listing)))

    def lengths(self, shards: Sequence[Shard]) -> tuple[int, ...] | None:
        """How many records each shard has after all operations; None if that is not known."""
        counts = self._counts()
        if counts is None:
            return None
        order = self._order(len(counts), shards[0])
        lengths = [
            self._counted(int(counts[shard.of(order)].sum()), self.dataset.operations)
            for shard in shards
        ]
        return None if None in lengths else tuple(lengths)  # type: ignore[arg-type]

    def locate(self, shard: Shard, row: int) -> Cursor:
        """Where a row stands; reading passes over what is counted by itself."""
        log = ReadLog()
        body, rest = self._stages(shard, log, Schema(log))
        if not body and self.dataset.cycle is None:
            return Cursor(skip=row)
        lengths = self._lengths_of_piles(shard)
        source = partial(place_in_partitions, lengths, self.dataset.cycle)
        place = file_ops.locate(body, row, sum(lengths), source)
        return place.behind_nothing() if _has(rest, Decode) else place

    def all_ids(self, worker: int, num_workers: int) -> Iterator[Ids] | None:
        """Those of every ``num_workers``-th file, where all are counted and none left out."""
        kept = all(isinstance(operation, (Map, Shuffle)) for operation in self.dataset.operations)
        if self.survey is None or self._counts() is None or not kept:
            return None
        mine = dealt(len(self.listing), num_workers, worker)
        parts = self.survey.parts
        return (ids for number in mine for ids in _ids(number, parts[number]))

    @property
    def has_parts(self) -> bool:
        """Not where an operation counts the records of the whole stream."""
        return not any(isinstance(op, (Take, Repeat)) for op in self.dataset.operations)

    def num_touched(self, shard: Shard, num_rows: int) -> int:
        """How many piles the first rows are from: those of whole windows, where it shuffles."""
        lengths = self._lengths_of_piles(shard)
        for operation in reversed(self.dataset.operations):
            if isinstance(operation, Shuffle):
                num_rows = -(-num_rows // operation.buffer_size) * operation.buffer_size
        num_rows = min(num_rows, sum(lengths))
        if self.dataset.cycle is not None:
            return num_opened(lengths, self.dataset.cycle, num_rows)
        return int(np.searchsorted(np.cumsum(lengths), num_rows)) + 1 if num_rows else 0

    @property
    def recipe(self) -> Mapping[str, Any]:
        """The reader, and what is done with the files and their records."""
        dataset = self.dataset
        return {
            "reader": type(dataset.reader).__name__,
            "operations": [operation.recipe for operation in dataset.operations],
            "interleave": dataset.cycle and list(dataset.cycle),
            "shuffle_files": dataset.shuffle_files,
            "split_files": dataset.split_files,
            # A state that does not count bad records means nothing to who does; but who raised at
            # one may go on and leave it out.
            **({"on_error": "raise"} if dataset.on_error == "raise" else {}),
        }

    def open(self, shard: Shard, start: Start = ()) -> RowReader:
        """Start reading a shard, up to what :meth:`finish` does."""
        log = ReadLog(self.dataset.on_error)
        schema = Schema(log)
        body, rest = self._stages(shard, log, schema)
        place, late = Cursor(start=start), _has(rest, Decode)
        if late:  # its number is there all the same: who decodes early must be able to go on
            place = place.before(0)
        if not body and self.dataset.cycle is None:
            return self._unit_reader(shard, place, log, schema)
        key, partitions = self._key(shard), self._partitions(shard)

        def read_all(_: Key, at: Cursor) -> Iterator[Chunk]:
            chunks = self._read_piles(partitions, at, log)
            return chunks if late or _has(body, Decode) else schema.uniform(chunks, key)

        chunks = file_ops.run(read_all, body, key, place)
        return ChunkReader(map(_undecoded, chunks) if late else chunks, log)

    def _read_piles(
        self, partitions: list[list[Unit]], place: Cursor, log: ReadLog
    ) -> Iterator[Chunk]:
        """Read piles one after another, or in turn, from a place on."""
        read = partial(self._files.read, log)
        jumps = self.dataset.on_error == "raise"

        def open_pile(number: int, row: int) -> Iterator[Chunk]:
            return read_partition(number, partitions[number], row, read, jumps=jumps)

        first = place.start[0] if place.start else 0
        cycle = self.dataset.cycle
        row = place.skip if cycle is None else 0
        starts = (
            (number, partial(open_pile, number, row if number == first else 0))
            for number in range(first, len(partitions))
        )
        opened = ahead(starts, self._num_threads)
        if cycle is None:
            return itertools.chain.from_iterable(chunks for _, chunks in opened)
        chunks = interleaved(opened, open_pile, cycle, place.start)
        return file_ops.without_first(chunks, place.skip)

    def _unit_reader(self, shard: Shard, place: Cursor, log: ReadLog, schema: Schema) -> UnitReader:
        """Read units one after another: nothing before the cut changes their rows."""
        partitions, threads = self._partitions(shard), self._num_threads
        first = place.start[0] if place.start else 0
        units = [
            replace(unit, place=Cursor(start=(number,), num_touched=number + 1))
            for number, partition in enumerate(partitions[first:], first)
            for unit in partition
        ]
        counted = self.dataset.on_error == "raise" and count_records(units) is not None
        sparse = counted and shard.sparse
        if counted and not place.start and not sparse and not threads:
            units = [unit for partition in partitions for unit in joined_units(partition)]
        remote, late = self._is_remote(), has_decode(self.dataset.reader)

        def checked(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
            uniform = schema.uniform(chunks, self._key(shard))
            return map(_undecoded, uniform) if late else uniform

        reader = UnitReader(
            units,
            partial(self._files.read, log),
            log,
            check=checked,
            jumps=counted,
            exact=sparse and self.dataset.reader.addressable and not remote and self._has_seek(),
            threads=threads if remote or not sparse else 0,
        )
        reader.skip(place.skip)
        return reader

    def finish(self, chunk: Chunk, shard: Shard) -> Batch:
        """Decode and map what is left to, for these rows only, and collate what maps made."""
        data = self.finished(chunk, shard).data
        if self.collate is not None:
            return self.collate(list(rows.iterate_rows(data)))
        return collate_examples(data) if isinstance(data, Examples) else data

    def finished(self, chunk: Chunk, shard: Shard) -> Chunk:
        """Decode and map what is left to."""
        log = ReadLog()
        body, rest = self._stages(shard, log, Schema(log))
        for number, operation in enumerate(rest, len(body)):
            assert isinstance(operation, (Map, Decode)), "no other keeps the numbering"
            chunk = operation.mapped(chunk, replace(self._key(shard), operation=number))
        return chunk

    @property
    def has_work(self) -> bool:
        """Whether there is more to :meth:`finish` than handing rows over."""
        dataset = self.dataset
        maps = bool(dataset.operations) and isinstance(dataset.operations[-1], Map)
        return maps or self.collate is not None or has_decode(dataset.reader)

    def _stages(
        self, shard: Shard, log: ReadLog, schema: Schema
    ) -> tuple[tuple[Operation, ...], tuple[Operation, ...]]:
        """All operations, parted where the stream is cut into steps.

        Maps at the end run after the cut, for delivered rows only. So does decoding where rows
        are skipped or other processes finish them; but not where bad records are left out, or a
        step would come out short. Else it runs before, in larger pieces.
        """
        operations = list(self.dataset.operations)
        late: tuple[type, ...] = (Map,)
        if has_decode(self.dataset.reader):
            kinds = (Map, Filter)
            first = (i for i, operation in enumerate(operations) if isinstance(operation, kinds))
            decode = Decode(self.dataset.reader, log, schema)
            operations.insert(next(first, len(operations)), decode)
            if (shard.sparse or self.threads > 1) and self.dataset.on_error == "raise":
                late = (Map, Decode)
        end = file_ops.num_before_final_maps(operations, late)
        return tuple(operations[:end]), tuple(operations[end:])

    def _partitions(self, shard: Shard) -> list[list[Unit]]:
        """What this shard reads, in order: the units of a file, or single units."""
        survey = self.survey or Survey.whole(len(self.listing))
        partitions = survey.partitions(split=self.dataset.split_files)
        mine = shard.of(self._order(len(partitions), shard))
        return [partitions[number] for number in mine.tolist()]

    def _counts(self) -> NDArray[np.int64] | None:
        """Records of each pile, before all operations; None if one of them is not counted."""
        if self.survey is None or self.dataset.on_error != "raise":
            return None
        partitions = self.survey.partitions(split=self.dataset.split_files)
        counts = [count_records(partition) for partition in partitions]
        return None if None in counts else np.array(counts, dtype=np.int64)

    def _lengths_of_piles(self, shard: Shard) -> list[int]:
        counts = self._counts()
        assert counts is not None, "asked where lengths are known"
        return [int(n) for n in counts[shard.of(self._order(len(counts), shard))]]

    @staticmethod
    def _counted(num_records: int, operations: Sequence[Operation]) -> int | None:
        counted: int | None = num_records
        for operation in operations:
            counted = None if counted is None else operation.count(counted)
        return counted

    def _order(self, num_piles: int, shard: Shard) -> Indices:
        if not self.dataset.shuffle_files:
            return np.arange(num_piles)
        return permutation(num_piles, key=self._key(shard).words("files"))

    @property
    def _files(self) -> UnitSource:
        return UnitSource(self.dataset, self.listing)

    @property
    def _num_threads(self) -> int:
        return self.threads or _NETWORK_THREADS * self._is_remote()

    def _is_remote(self) -> bool:
        return bool(self.listing) and filesystem.is_remote(
            self.listing[0].path, self.dataset.storage_options
        )

    def _has_seek(self) -> bool:
        return not any(decompressor(info.path) for info in self.listing)

    def _key(self, shard: Shard) -> Key:
        return Key(seed=shard.seed, epoch=shard.epoch, listing=self.listing)


def _has(operations: Sequence[Operation], kind: type) -> bool:
    return any(isinstance(operation, kind) for operation in operations)


def _undecoded(chunk: Chunk) -> Chunk:
    """A chunk that is decoded after the cut stands where it would, decoded, without losses."""
    return replace(chunk, place=chunk.place.behind_nothing())


def _ids(file: int, parts: Sequence[Part]) -> Iterator[Ids]:
    for part in parts:
        numbers = part.first_record + np.arange(part.num_records or 0)
        yield np.stack([np.full(len(numbers), file), numbers], axis=1)
