"""A FileDataset as a stream: its listing and survey, its shards, and what is left after the cut."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, final

from torch_distinput.data.batch import rows
from torch_distinput.data.batch.collate import CollateFn, collate_examples, collate_with
from torch_distinput.data.batch.lazy_property import LazyProperty
from torch_distinput.data.batch.tree import Batch, Examples
from torch_distinput.data.files import operations as file_ops
from torch_distinput.data.files.counts import FileCounts
from torch_distinput.data.files.dataset import FileDataset
from torch_distinput.data.files.decode import Decode, Schema, TakeGood, decode_index, has_decode
from torch_distinput.data.files.interleave import interleaved
from torch_distinput.data.files.operations import Key, Map, Operation, Repeat, Take
from torch_distinput.data.files.partitions import (
    first_partition,
    place_of_partition,
    read_partition,
    start_ahead,
)
from torch_distinput.data.files.record_names import RecordNames
from torch_distinput.data.files.unit_reader import UnitReader
from torch_distinput.data.files.windows import WindowReader
from torch_distinput.data.files.work_units import (
    Share,
    Survey,
    Unit,
    UnitSource,
    count_records,
    join_surveys,
    join_units,
    parts_to_numbers,
)
from torch_distinput.data.loader.fetch_threads import FetchThreads
from torch_distinput.data.storage import filesystem
from torch_distinput.data.storage.compression import decompressor
from torch_distinput.data.storage.file_listing import FileInfo
from torch_distinput.data.stream.bad_records import ReadLog, ReadReport
from torch_distinput.data.stream.chunk import Chunk, Cursor, Ids
from torch_distinput.data.stream.chunk_reader import ChunkReader
from torch_distinput.data.stream.protocols import CountedStream, RowReader
from torch_distinput.meter import WorkClock, time_decode
from torch_distinput.plan.assignment.sharding import assign_items
from torch_distinput.plan.progress.place import Start
from torch_distinput.plan.progress.route import Shard

_MOST_SURVEYED = 1024
"""More files are not looked into before they are read, unless they are to be split."""
_NETWORK_THREADS = 4
"""Files read ahead at a time where each request has to be waited for."""
_SURVEY_THREADS = 8
"""Files looked into at a time."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class FileStream(CountedStream):
    """The records of listed files.

    Attributes:
        dataset: the recipe.
        listing: its files.
        collate: the user's, or None: then what the reader gives is a batch already, unless a map
            made examples.
        threads: files to read ahead at a time.
        survey: the parts of all files, once they are known.
        clock: counts decoding, mapping and filtering, where that is measured.
    """

    dataset: FileDataset
    listing: Sequence[FileInfo]
    collate: CollateFn | None
    threads: int = 0
    survey: Survey | None = None
    clock: WorkClock | None = None

    def __reduce__(self) -> Any:
        """Leave behind what is worked out again where it is asked for."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return partial(FileStream, **fields), ()

    @LazyProperty
    def _counts(self) -> FileCounts:
        """What is known of the rows before they are read."""
        return FileCounts(self.dataset, self.listing, self.survey)

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
        mine = assign_items(len(self.listing), num_workers, worker)
        cut = partial(self._files.parts, log=log)
        # Most of the time is waiting for storage.
        found = FetchThreads(cut, iter(mine), min(len(mine), _SURVEY_THREADS))
        return list(map(parts_to_numbers, found)), log.drain()

    def with_shares(self, shares: Sequence[Share]) -> FileStream:
        """Return the stream with what all workers found out."""
        return replace(self, survey=join_surveys(shares, len(self.listing)))

    def first_record(self) -> int | None:
        """As it is stored; looked for once."""
        return self._first_record

    @LazyProperty
    def _first_record(self) -> int | None:
        return self._files.first_record()

    @property
    def num_parts(self) -> int | None:
        """How many the survey found where files are split."""
        if self.survey is None or not self.dataset.split_files:
            return None
        return self._counts.num_partitions

    def lengths(self, shards: Sequence[Shard]) -> tuple[int, ...] | None:
        """How many records each shard has after all operations; None if that is not known."""
        return self._counts.lengths(shards)

    def locate(self, shard: Shard, row: int) -> Cursor:
        """Where a row stands; reading passes over what is counted by itself."""
        log = ReadLog()
        early, late = self._stages(log, Schema(log), sparse=shard.sparse)
        if not early and self.dataset.cycle is None:
            return Cursor(skip=row)
        place = self._counts.locate(shard, row, early)
        return place.behind_all(Decode.kind) if _has(late, Decode) else place

    def all_ids(self, worker: int, num_workers: int) -> Iterator[Ids] | None:
        """Those of every ``num_workers``-th file, where all are counted and none left out."""
        return self._counts.all_ids(worker, num_workers)

    @property
    def has_parts(self) -> bool:
        """Not where an operation counts the records of the whole stream."""
        return not any(isinstance(op, (Take, Repeat)) for op in self.dataset.operations)

    def num_touched(self, shard: Shard, num_rows: int) -> int:
        """How many partitions the first rows are from: of whole windows, where it shuffles."""
        return self._counts.num_touched(shard, num_rows)

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

    def open(self, shard: Shard, start: Start = None) -> RowReader:
        """Start reading a shard, up to what :meth:`finish` does."""
        log = ReadLog(self.dataset.on_error)
        schema = Schema(log)
        early, late = self._stages(log, schema, sparse=shard.sparse)
        place, decodes_late = Cursor(start=start), _has(late, Decode)
        if decodes_late:  # its number is there all the same, for who decodes early
            place = place.before(Decode.kind)
        if not early and self.dataset.cycle is None:
            return self._unit_reader(shard, place, log, schema)
        key, partitions = self._key(shard), self._counts.partitions(shard)

        def read_all(_: Key, at: Cursor) -> Iterator[Chunk]:
            chunks = self._read_partitions(partitions, at, log)
            return chunks if decodes_late or _has(early, Decode) else schema.uniform(chunks, key)

        placed = _place_as_decoded if decodes_late else None
        windows = file_ops.read_windows(read_all, early, key, place) if early else None
        if windows is not None:
            reader = WindowReader(windows, log, placed)
            reader.skip(place.skip)
            return reader
        chunks = file_ops.run(read_all, early, key, place)
        return ChunkReader(map(placed, chunks) if placed else chunks, log)

    def _read_partitions(
        self, partitions: list[list[Unit]], place: Cursor, log: ReadLog
    ) -> Iterator[Chunk]:
        """Read partitions one after another, or in turn, from a place on."""
        read = partial(self._files.read, log)
        jumps = self.dataset.on_error == "raise"

        def open_partition(number: int, row: int) -> Iterator[Chunk]:
            return read_partition(number, partitions[number], row, read, jumps=jumps)

        cycle = self.dataset.cycle
        first = first_partition(place.start, in_turn=cycle is not None)
        row = place.skip if cycle is None else 0
        starts = (
            (number, partial(open_partition, number, row if number == first else 0))
            for number in range(first, len(partitions))
        )
        opened = start_ahead(starts, self._num_threads)
        if cycle is None:
            return itertools.chain.from_iterable(chunks for _, chunks in opened)
        chunks = interleaved(opened, open_partition, cycle, place.start)
        return file_ops.drop_first(chunks, place.skip)

    def _unit_reader(self, shard: Shard, place: Cursor, log: ReadLog, schema: Schema) -> UnitReader:
        """Read units one after another: nothing before the cut changes their rows."""
        partitions, threads = self._counts.partitions(shard), self._num_threads
        first = first_partition(place.start, in_turn=False)
        found = list(itertools.chain.from_iterable(partitions[first:]))
        counted = self.dataset.on_error == "raise" and count_records(found) is not None
        sparse = counted and shard.sparse
        joins = counted and not place.start and not sparse and not threads
        units = [
            replace(unit, place=at)
            for number, partition in enumerate(partitions[first:], first)
            for at in [Cursor(start=place_of_partition(number), num_touched=number + 1)]
            for unit in (join_units(partition) if joins else partition)
        ]
        remote, late = self._is_remote(), has_decode(self.dataset.reader)

        def checked(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
            uniform = schema.uniform(chunks, self._key(shard))
            return map(_place_as_decoded, uniform) if late else uniform

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
        """Decode and map what the reading has not, for these rows only; collate what maps made."""
        if self.collate is not None:
            return collate_with(self.collate, self.examples(chunk, shard))
        data = self._finished(chunk, shard).data
        return collate_examples(data) if isinstance(data, Examples) else data

    def examples(self, chunk: Chunk, shard: Shard) -> list[Any]:
        """Decode and map as :meth:`finish` does: the rows as examples, not collated."""
        return list(rows.iterate_rows(self._finished(chunk, shard).data))

    def _finished(self, chunk: Chunk, shard: Shard) -> Chunk:
        """Apply the operations that come after the cut."""
        for number, operation in self._finishing[shard.sparse]:
            mapped = time_decode(self.clock, operation.mapped)
            chunk = mapped(chunk, replace(self._key(shard), operation=number))
        return chunk

    @LazyProperty
    def _finishing(self) -> dict[bool, list[tuple[int, Map | Decode]]]:
        """For shards that are sparse, and others: the operations after the cut, and their numbers.

        Every step asks for them. They note nothing: behind the cut no record is left out.
        """
        return {sparse: list(self._late(sparse=sparse)) for sparse in (False, True)}

    def _late(self, *, sparse: bool) -> Iterator[tuple[int, Map | Decode]]:
        log = ReadLog()
        early, late = self._stages(log, Schema(log), sparse=sparse)
        for number, operation in enumerate(late, len(early)):
            assert isinstance(operation, (Map, Decode)), "no other keeps the numbering"
            yield number, operation

    @property
    def has_work(self) -> bool:
        """Whether there is more to :meth:`finish` than handing rows over."""
        dataset = self.dataset
        maps = bool(dataset.operations) and isinstance(dataset.operations[-1], Map)
        return maps or self.collate is not None or has_decode(dataset.reader)

    def _stages(
        self, log: ReadLog, schema: Schema, *, sparse: bool
    ) -> tuple[tuple[Operation, ...], tuple[Operation, ...]]:
        """All operations, parted where the stream is cut into steps.

        Maps at the end run after the cut, for delivered rows only. So does decoding where rows
        are skipped or other processes finish them; but not where bad records are left out, or a
        step would come out short. Else it runs before, in larger pieces.
        """
        operations = list(self.dataset.operations)
        late: tuple[type, ...] = (Map,)
        if has_decode(self.dataset.reader):
            decode = Decode(self.dataset.reader, log, schema)
            index = decode_index(operations)
            if self.dataset.on_error == "raise":
                late = (Map, Decode) if sparse or self.threads > 1 else late
            else:  # bad records are none of those to take
                for number, one in enumerate(operations[:index]):
                    if isinstance(one, Take):
                        operations[number] = TakeGood(one, decode)
                        decode = replace(decode, is_done=True)
                        break
            operations.insert(index, decode)
        end = file_ops.num_before_final_maps(operations, late)
        return tuple(operations[:end]), tuple(operations[end:])

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
        return Key(seed=shard.seed, epoch=shard.epoch, records=self._names, clock=self.clock)

    @property
    def _names(self) -> RecordNames:
        parts = () if self.survey is None else self.survey.parts
        return RecordNames(self.listing, parts, self.dataset.reader.measure)


def _has(operations: Sequence[Operation], kind: type) -> bool:
    return any(isinstance(operation, kind) for operation in operations)


def _place_as_decoded(chunk: Chunk) -> Chunk:
    """A chunk that is decoded after the cut stands where it would, decoded, without losses."""
    return chunk.moved(chunk.place.behind_all(Decode.kind))
