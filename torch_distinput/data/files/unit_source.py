"""From listed files to chunks: how one of them is cut into parts, and how a unit of it is read."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from torch_distinput.data.batch import rows
from torch_distinput.data.batch.tree import Batch
from torch_distinput.data.files.dataset import FileDataset
from torch_distinput.data.files.work_units import Unit
from torch_distinput.data.formats.reader import FEWEST_UNITS, Part
from torch_distinput.data.storage import filesystem
from torch_distinput.data.storage.filesystem import FileInfo
from torch_distinput.data.storage.input_file import InputFile
from torch_distinput.data.stream.bad_records import ReadLog
from torch_distinput.data.stream.chunk import Chunk
from torch_distinput.errors import ConfigurationError, SourceError

_DAMAGE = (None, errno.EINVAL)
"""Numbers of OSErrors for content: of decompressors, and of a seek to where there is nothing."""
_UNREACHABLE = (FileNotFoundError, PermissionError)


@dataclass(frozen=True, slots=True)
class UnitSource:
    """The files of a recipe.

    Attributes:
        dataset: the recipe.
        listing: its files.
    """

    dataset: FileDataset
    listing: tuple[FileInfo, ...]

    def parts(self, number: int, log: ReadLog) -> tuple[Part, ...]:
        """Cut a file; one that is damaged is bad, and has none."""
        file = self._file(number, log)
        try:
            parts = tuple(self.dataset.reader.parts(file))
        except Exception as error:
            if _is_no_damage(error):
                raise
            file.bad("the beginning or the end", error)
            return ()
        return () if _is_changed(file, log, "all of it") else parts

    def read(self, log: ReadLog, unit: Unit) -> Iterator[Chunk]:
        """Read one unit; its records are known by (file number, record number)."""
        file, part = self._file(unit.file, log), unit.part
        where, count = f"from record {part.first_record} on", 0
        if _is_changed(file, log, where):
            return
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
        # What was read may be of the file as it was, as it is, or of both.
        if _is_changed(file, log, where):
            return
        if log.on_error == "raise" and part.num_records not in (None, count):
            reason = f"expected {part.num_records} records, as was found before, got {count}"
            file.bad(where, reason)

    def _file(self, number: int, log: ReadLog) -> InputFile:
        info = self.listing[number]

        def bad(where: str, reason: object) -> None:
            change = file.change()
            log.bad(info.path, where, f"{reason}; {change}" if change else reason)

        options = self.dataset.storage_options
        file = filesystem.open_file(info, options, bad=bad, retries=log.retries)
        few = self.dataset.split_files and len(self.listing) < FEWEST_UNITS
        file = replace(file, fewest_parts=-(-FEWEST_UNITS // len(self.listing)) if few else 1)
        return file


def _is_changed(file: InputFile, log: ReadLog, where: str) -> bool:
    """Whether a file is another than was listed, which is bad."""
    change = file.change()
    if change:
        log.bad(file.path, where, change)
    return bool(change)


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
    return Chunk(data=data, ids=ids, place=unit.place)
