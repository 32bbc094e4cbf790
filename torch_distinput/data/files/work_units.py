"""Work units: how files are cut into what is read in one piece, how it is read, and counted."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from functools import partial
from operator import index
from typing import final

import numpy as np

from torch_distinput.data.batch import rows
from torch_distinput.data.batch.fingerprint import fingerprint
from torch_distinput.data.batch.tree import Batch
from torch_distinput.data.files.dataset import FileDataset
from torch_distinput.data.files.operations import Shuffle
from torch_distinput.data.files.record_names import name_record
from torch_distinput.data.formats.reader import Part
from torch_distinput.data.storage import filesystem
from torch_distinput.data.storage.file_listing import FileInfo
from torch_distinput.data.storage.input_file import FEWEST_UNITS, InputFile
from torch_distinput.data.stream.bad_records import ReadLog
from torch_distinput.data.stream.chunk import Chunk, Cursor
from torch_distinput.data.user_sources.source_errors import source_error
from torch_distinput.errors import ConfigurationError, SourceError
from torch_distinput.plan.assignment.sharding import assign_items

Parts = tuple[Part, ...]
Share = list[list[list[int | None]]]
"""What a worker found out: numbers for each part of each of its files."""
WHOLE: Parts = (Part(),)
_DAMAGE = (None, errno.EINVAL)
"""Numbers of OSErrors for content: of decompressors, and of a seek to where there is nothing."""
_OWN_READERS = "torch_distinput.data.formats."
_MOST_OPENED = 4
"""Files that are opened to find a first record."""
_UNREACHABLE = (FileNotFoundError, PermissionError)
"""OSErrors that storages raise without a number."""
_BEGINNING = Cursor()  # one for all: there may be a million units


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """One part of one file.

    Attributes:
        file: the number of the file in the listing.
        part: which part of it.
        place: of which partition of the shard it is a part.
    """

    file: int
    part: Part
    place: Cursor = _BEGINNING

    def cut(self, num_records: int) -> tuple[Unit, Unit]:
        """Cut a counted unit of an addressable reader after its first ``num_records`` records."""
        part = self.part
        assert part.num_records is not None, "only counted parts are cut"
        middle = part.start + num_records
        head = replace(part, stop=middle, num_records=num_records)
        tail = replace(
            part,
            start=middle,
            first_record=part.first_record + num_records,
            num_records=part.num_records - num_records,
        )
        return replace(self, part=head), replace(self, part=tail)


@final
@dataclass(frozen=True, slots=True)
class Survey:
    """The parts of all files, in the order of the listing; the same on all workers."""

    parts: tuple[Parts, ...]


def join_file_parts(parts: Sequence[Part]) -> Part:
    """Neighbouring parts of a file as one."""
    counts = [part.num_records for part in parts]
    return replace(
        parts[0],
        stop=parts[-1].stop,
        num_records=None if None in counts else sum(counts),  # type: ignore[arg-type]
    )


def join_units(partition: Sequence[Unit]) -> list[Unit]:
    """The parts of one file as one unit: opened once."""
    if len(partition) < 2:
        return list(partition)
    return [replace(partition[0], part=join_file_parts([unit.part for unit in partition]))]


def count_records(units: Sequence[Unit]) -> int | None:
    """The number of records in units; None where one of them is not counted."""
    counts = [unit.part.num_records for unit in units]
    return None if None in counts else sum(counts)  # type: ignore[arg-type]


def parts_to_numbers(parts: Parts) -> list[list[int | None]]:
    """Parts as plain numbers, to be sent to the other workers, who all read them.

    Of a part that begins where the one before it ends only its own end and records.
    """
    found: list[list[int | None]] = []
    end: tuple[int | None, int | None] = (0, 0)  # of the part before: where, and after how many
    for part in parts:
        start, stop, first, number = (None if n is None else index(n) for n in astuple(part))
        found.append([stop, number] if (start, first) == end else [start, stop, first, number])
        end = stop, None if first is None or number is None else first + number
    return found


def parts_from_numbers(numbers: list[list[int | None]]) -> Parts:
    """What :func:`parts_to_numbers` made."""
    names = ("start", "stop", "first_record", "num_records")
    parts: list[Part] = []
    end: tuple[int | None, int | None] = (0, 0)
    for row in numbers:
        start, stop, first, number = (end[0], row[0], end[1], row[1]) if len(row) == 2 else row
        parts.append(Part(**dict(zip(names, (start, stop, first, number), strict=True))))  # type: ignore[arg-type]
        end = stop, None if first is None or number is None else first + number
    return tuple(parts)


def join_surveys(shares: Sequence[Share], num_files: int) -> Survey:
    """Put together what each worker found out about its files."""
    parts: list[Parts] = [WHOLE] * num_files
    for worker, share in enumerate(shares):
        mine = assign_items(num_files, len(shares), worker)
        for number, numbers in zip(mine, share, strict=True):
            parts[number] = parts_from_numbers(numbers)
    return Survey(tuple(parts))


@final
@dataclass(frozen=True, slots=True)
class UnitSource:
    """The files of a recipe.

    Attributes:
        dataset: the recipe.
        listing: its files.
    """

    dataset: FileDataset
    listing: Sequence[FileInfo]

    def parts(self, number: int, log: ReadLog) -> tuple[Part, ...]:
        """Cut a file; one that is damaged is bad, and has none."""
        file = self._file(number, log)
        try:
            parts = tuple(self.dataset.reader.parts(file))
        except Exception as error:
            if _is_no_damage(error):
                if isinstance(error, OSError):
                    raise source_error(error, file.path) from error
                raise
            file.bad("the beginning or the end", error)
            return ()
        return () if _is_changed(file, log, "all of it") else parts

    def read(self, log: ReadLog, unit: Unit) -> Iterator[Chunk]:
        """Read one unit; its records are known by (file number, record number)."""
        file, part = self._file(unit.file, log), unit.part
        count = 0

        def name() -> str:
            return name_record(part, part.first_record + count, self.dataset.reader.measure)

        where = f"from {name()} on"
        if _is_changed(file, log, where):
            return
        try:
            for data in self.dataset.reader.read(file, part):
                own = rows.copy_rows(data) if self._has_to_copy else data
                chunk = _number_rows(own, unit, count)
                count += chunk.num_rows
                if chunk.num_rows:
                    yield chunk
        except Exception as error:
            if _is_no_damage(error):
                raise
            file.bad(f"after {name()}", error)
            return
        # What was read may be of the file as it was, as it is, or of both.
        if _is_changed(file, log, where):
            return
        if log.on_error == "raise" and part.num_records not in (None, count):
            reason = f"expected {part.num_records} records, as was found before, got {count}"
            file.bad(where, reason)

    def first_record(self) -> int | None:
        """A fingerprint of the first record of the first file that has one.

        None where it cannot be told: what is wrong is told where records are read. Nor of a reader
        of the user's, whose records may hold a path or a random number.
        """
        if not type(self.dataset.reader).__module__.startswith(_OWN_READERS):
            return None
        with suppress(Exception):
            for number in range(min(len(self.listing), _MOST_OPENED)):
                for chunk in self.read(ReadLog(), Unit(file=number, part=Part())):
                    return fingerprint(chunk.slice(0, 1).data)
        return None

    @property
    def _has_to_copy(self) -> bool:
        """Whether rows of a mapped file are held for long after it was read."""
        shuffles = any(isinstance(op, Shuffle) for op in self.dataset.operations)
        return shuffles and self.dataset.reader.mapped

    def _file(self, number: int, log: ReadLog) -> InputFile:
        info, options = self.listing[number], self.dataset.storage_options
        tell = partial(log.bad, info.path)
        file = filesystem.open_file(info, options, bad=tell, retries=log.retries)
        # Not the file: if a part of it referred to it, the archive that it is in would stay open
        # until the garbage collector comes.
        find_change = file.change

        def bad(where: str, reason: object) -> None:
            change = find_change()
            tell(where, f"{reason}; {change}" if change else reason)

        few = self.dataset.split_files and len(self.listing) < FEWEST_UNITS
        parts = -(-FEWEST_UNITS // len(self.listing)) if few else 1
        return replace(file, bad=bad, fewest_parts=parts)


def _is_changed(file: InputFile, log: ReadLog, where: str) -> bool:
    """Whether a file is another than was listed, which is bad."""
    change = file.change()
    if change:
        log.bad(file.path, where, change)
    return bool(change)


def _is_no_damage(error: Exception) -> bool:
    """Whether records are not to blame: it was told already, or a recipe or storage is at fault."""
    if isinstance(error, OSError) and error.errno not in _DAMAGE:
        return True
    return isinstance(error, (SourceError, ConfigurationError, *_UNREACHABLE))


def _number_rows(data: Batch, unit: Unit, count: int) -> Chunk:
    try:
        num_rows = rows.num_rows(data)
    except (TypeError, ValueError) as error:
        msg = (
            f"Expected a reader to yield batches of records (lists, tensors, arrays, or trees of "
            f"them, with a row for each record), got {type(data).__name__}: {error}"
        )
        raise TypeError(msg) from error
    first = unit.part.first_record + count
    ids = np.empty((num_rows, 2), np.int64)
    ids[:, 0], ids[:, 1] = unit.file, np.arange(first, first + num_rows)
    return Chunk(data=data, ids=ids, place=unit.place)
