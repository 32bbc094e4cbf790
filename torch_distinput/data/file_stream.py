"""A FileDataset as a stream: its listing and survey, its shards, and what is left after the cut."""

from __future__ import annotations

import errno
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from torch_distinput.data import file_ops, files, rows
from torch_distinput.data.collate import collate_examples
from torch_distinput.data.compression import decompressor
from torch_distinput.data.decode import Decode, Schema, has_decode
from torch_distinput.data.file_dataset import FileDataset
from torch_distinput.data.file_ops import Filter, Key, Map, Operation
from torch_distinput.data.files import FileInfo
from torch_distinput.data.read_ahead import ReadAhead
from torch_distinput.data.read_log import Notes, ReadLog
from torch_distinput.data.reader import InputFile, Part
from torch_distinput.data.stream import Chunk, ChunkReader, Collate, RowReader, Shard, Stream
from torch_distinput.data.structure import Batch, Examples
from torch_distinput.data.unit_reader import ReadUnit, UnitReader
from torch_distinput.data.units import (
    Share,
    Survey,
    Unit,
    as_numbers,
    count_records,
    joined_surveys,
    joined_units,
)
from torch_distinput.errors import ConfigurationError, SourceError
from torch_distinput.plan.order import Indices, permutation
from torch_distinput.plan.sharding import dealt

_MOST_SURVEYED = 1024
"""More files are not looked into before they are read, unless they are to be split."""
_DAMAGE = (None, errno.EINVAL)
"""Numbers of OSErrors for content: of decompressors, and of a seek to where there is nothing."""
_UNREACHABLE = (FileNotFoundError, PermissionError)
_NETWORK_THREADS = 4
"""Files read ahead at a time where each request has to be waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStream(Stream):
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
    collate: Collate | None
    threads: int = 0
    survey: Survey | None = None

    def share(self, worker: int, num_workers: int) -> tuple[Share, Notes | None] | None:
        """Look into this worker's share of the files; None where nothing is gained by it."""
        dataset = self.dataset
        counted = dataset.reader.counted and len(self.listing) <= _MOST_SURVEYED
        if self.survey is not None or not (dataset.split_files or counted):
            return None
        return self.survey_for_all(worker, num_workers)

    def survey_for_all(self, worker: int, num_workers: int) -> tuple[Share, Notes | None]:
        """Find the parts of this worker's share of the files."""
        dataset = self.dataset
        log = ReadLog(dataset.on_error)
        mine = dealt(len(self.listing), num_workers, worker)
        with ThreadPoolExecutor(max_workers=8) as pool:  # most of the time is waiting for storage
            found = list(pool.map(lambda number: as_numbers(self._parts(number, log)), mine))
        return found, log.drain()

    def with_shares(self, shares: Sequence[Share]) -> FileStream:
        """Return the stream with what all workers found out."""
        return replace(self, survey=joined_surveys(shares, len(self.listing)))

    def lengths(self, shard: Shard) -> tuple[int, ...] | None:
        """How many records each shard has after all operations; None if that is not known."""
        dataset = self.dataset
        if self.survey is None or dataset.on_error != "raise":
            return None
        counts = [count_records(pile) for pile in self.survey.piles(split=dataset.split_files)]
        if None in counts:
            return None
        ordered = np.array(counts, dtype=np.int64)[self._order(len(counts), shard)]
        lengths = []
        for index in range(shard.num_shards):
            length: int | None = int(ordered[index :: shard.num_shards].sum())
            for operation in dataset.operations:
                length = None if length is None else operation.count(length)
            if length is None:
                return None
            lengths.append(length)
        return tuple(lengths)

    def open(self, shard: Shard) -> RowReader:
        """Start reading a shard, up to what :meth:`finish` does."""
        log = ReadLog(self.dataset.on_error)
        schema = Schema(log)
        body, rest = self._stages(shard, log, schema)
        if not body and self.dataset.cycle is None:
            return self._unit_reader(shard, log, schema)
        key, piles = self._key(shard), self._piles(shard)
        read = partial(self._read_unit, log)

        def read_all(_: Key) -> Iterator[Chunk]:
            opened = _ahead((partial(_chained, pile, read) for pile in piles), self._num_threads)
            chunks = file_ops.interleaved(opened, self.dataset.cycle)
            decoded_later = any(isinstance(operation, Decode) for operation in (*body, *rest))
            return chunks if decoded_later else schema.uniform(chunks, key)

        return ChunkReader(file_ops.run(read_all, body, key), log)

    def _unit_reader(self, shard: Shard, log: ReadLog, schema: Schema) -> UnitReader:
        """Read units one after another: nothing before the cut changes their rows."""
        piles, threads = self._piles(shard), self._num_threads
        units = [unit for pile in piles for unit in pile]
        counted = self.dataset.on_error == "raise" and count_records(units) is not None
        sparse = counted and shard.sparse
        if counted and not sparse and not threads:
            units = [unit for pile in piles for unit in joined_units(pile)]
        remote = self._is_remote()
        return UnitReader(
            units,
            partial(self._read_unit, log),
            log,
            check=partial(schema.uniform, key=self._key(shard)),
            jumps=counted,
            exact=sparse and self.dataset.reader.addressable and not remote and self._has_seek(),
            threads=threads if remote or not sparse else 0,
        )

    def finish(self, chunk: Chunk, shard: Shard) -> Batch:
        """Decode and map what is left to, for these rows only, and collate what maps made."""
        data = self.finished(chunk, shard).data
        if self.collate is not None:
            return self.collate(list(rows.examples(data)))
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

    def _piles(self, shard: Shard) -> list[list[Unit]]:
        """What this shard reads, in order: the units of a file, or single units."""
        survey = self.survey or Survey.whole(len(self.listing))
        piles = survey.piles(split=self.dataset.split_files)
        mine = self._order(len(piles), shard)[shard.index :: shard.num_shards]
        return [piles[number] for number in mine.tolist()]

    def _order(self, num_piles: int, shard: Shard) -> Indices:
        if not self.dataset.shuffle_files:
            return np.arange(num_piles)
        return permutation(num_piles, key=self._key(shard).words("files"))

    @property
    def _num_threads(self) -> int:
        return self.threads or _NETWORK_THREADS * self._is_remote()

    def _is_remote(self) -> bool:
        return bool(self.listing) and files.is_remote(
            self.listing[0].path, self.dataset.storage_options
        )

    def _has_seek(self) -> bool:
        return not any(decompressor(info.path) for info in self.listing)

    def _key(self, shard: Shard) -> Key:
        return Key(seed=shard.seed, epoch=shard.epoch, listing=self.listing)

    def _parts(self, number: int, log: ReadLog) -> tuple[Part, ...]:
        file = self._file(number, log)
        try:
            return tuple(self.dataset.reader.parts(file))
        except Exception as error:
            if _is_no_damage(error):
                raise
            file.bad("the beginning or the end", error)
            return ()

    def _read_unit(self, log: ReadLog, unit: Unit) -> Iterator[Chunk]:
        """Read one unit; its records are known by (file number, record number)."""
        file, part = self._file(unit.file, log), unit.part
        count = 0
        try:
            for data in self.dataset.reader.read(file, part):
                chunk = _numbered(data, unit, count)
                count += chunk.num_rows
                if chunk.num_rows:
                    yield chunk
        except Exception as error:
            if _is_no_damage(error):
                raise
            file.bad(f"after record {part.first_record + count}", error)
            return
        if log.on_error == "raise" and part.num_records not in (None, count):
            reason = f"expected {part.num_records} records, as was found before, got {count}"
            file.bad(f"from record {part.first_record} on", reason)

    def _file(self, number: int, log: ReadLog) -> InputFile:
        info = self.listing[number]
        return files.open_file(
            info,
            self.dataset.storage_options,
            bad=partial(log.bad, info.path),
            retries=log.retries,
        )


def _is_no_damage(error: Exception) -> bool:
    """Whether it is no matter of bad records: told already, a recipe or a storage at fault."""
    if isinstance(error, OSError) and error.errno not in _DAMAGE:
        return True
    return isinstance(error, (SourceError, ConfigurationError, *_UNREACHABLE))


def _numbered(data: Batch, unit: Unit, count: int) -> Chunk:
    try:
        num_rows = rows.num_rows(data)
    except (TypeError, ValueError) as error:
        msg = (
            f"Expected a reader to yield batches of records (lists, tensors, arrays, or trees of "
            f"them, with a row for each record), got {type(data).__name__}: {error}"
        )
        raise TypeError(msg) from error
    first = unit.part.first_record + count
    numbers = np.arange(first, first + num_rows)
    ids = np.stack([np.full(num_rows, unit.file), numbers], axis=1)
    return Chunk(data=data, ids=ids)


def _chained(pile: Sequence[Unit], read: ReadUnit) -> Iterator[Chunk]:
    return itertools.chain.from_iterable(map(read, pile))


def _ahead(
    starts: Iterator[Callable[[], Iterator[Chunk]]], threads: int
) -> Iterator[Iterator[Chunk]]:
    """Start iterators in order, as many ahead of use as there are threads for them."""
    if not threads:
        yield from (start() for start in starts)
        return
    started: deque[Iterator[Chunk]] = deque()
    while True:
        started.extend(map(ReadAhead, itertools.islice(starts, threads - len(started))))
        if not started:
            return
        yield started.popleft()
