"""Tables as text: a record is a row, whose fields are separated by a delimiter."""

from __future__ import annotations

import csv
import io
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, final

import torch

from torch_distinput.data.formats.column_types import Wanted, check_wanted, pack_lists
from torch_distinput.data.formats.csv_values import (
    CONVERTERS,
    SHOWN,
    infer_type,
    is_beyond_float64,
)
from torch_distinput.data.formats.reader import CHUNK_BYTES, Part, Reader
from torch_distinput.data.storage.input_file import InputFile
from torch_distinput.errors import SourceError

_log = logging.getLogger(__name__)
_PADDED_INTEGER = re.compile(r"^\s*[+-]?0\d+\s*$", re.MULTILINE)
"""A code of fixed length, as zip codes are, rather than a number."""

_Row = tuple[int, list[str]]
"""The number of the line on which a row ends, and its fields."""


@dataclass(frozen=True, slots=True)
class CSV(Reader):
    """Tables as text: a batch is a dict of columns, tensors of numbers and lists of ``str``.

    Fields may be quoted with ``"``, and may then contain delimiters and line ends. Files are UTF-8.
    Blank lines are passed over; a row with too few or too many fields is bad. A field larger
    than ``csv.field_size_limit()`` is bad with all that follows: where it ends is not known.

    Without types, the first megabyte of each file decides what its columns are: int64, else
    float64, else text. A later field that does not fit is bad: give types where files begin with
    other values than they go on with, and where a column is to be the same in all files.
    An empty field is text, no number; so is a whole number that int64 does not hold, or float64
    where others have a point, and one that float64 has only infinity for. Logged are a column that
    is text because of empty fields or such numbers, and one of numbers that begin with zeros
    (``01234``), which are not kept.

    Attributes:
        columns: the columns to deliver, all if None: a sequence of names, or a mapping from names
            to types, ``str`` or a torch dtype.
        delimiter: what separates fields.
        header: the first row has the names. If False, ``columns`` are the names of all fields in
            their order, and ``"0"``, ``"1"``, ... if None.
        packed: text becomes packed strings, once its fields were parsed; see :class:`FileDataset`.
    """

    columns: Wanted = None
    delimiter: str = ","
    header: bool = True
    packed: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be read."""
        check_wanted(self.columns, lists=False)
        is_one = isinstance(self.delimiter, str) and len(self.delimiter) == 1
        if not is_one or self.delimiter in '\r\n"':
            msg = (
                "Expected delimiter to be one character, and no line end or quote, got "
                f'{self.delimiter!r}. Write for example delimiter=";", or "\\t" for tabs.'
            )
            raise ValueError(msg)

    def with_packed_strings(self) -> CSV:
        """The same, handing text over packed."""
        return replace(self, packed=True)

    def read(self, file: InputFile, part: Part) -> Iterator[dict[str, Any]]:
        """Yield columns."""
        del part  # a line end may be within quotes, and that is known from the beginning only
        with closing(_Rows(file, self.delimiter)) as rows:
            first = next(rows, None)
            if first is None:
                return
            names = first[1] if self.header else self._names(len(first[1]))
            if self.header and self.columns is None:  # else who names them knows
                _warn_of_header(file.path, names)
            head = rows.take(len(names), None if self.header else first)
            table = _Table(file, names, self.columns, head)
            while head:
                chunk = table.chunk(head)
                if chunk is not None:
                    yield pack_lists(chunk) if self.packed else chunk
                head = rows.take(len(names))

    def _names(self, count: int) -> list[str]:
        return [str(number) for number in range(count)] if self.columns is None else [*self.columns]


@final
class _Rows:
    """The rows of a file."""

    def __init__(self, file: InputFile, delimiter: str) -> None:
        self._file = file
        self._num_chars = 0
        self._ended = False
        self._error: Exception | None = None
        # What is not UTF-8 is found in the fields, where its line is known.
        self._text = io.TextIOWrapper(file.open(), "utf-8-sig", "surrogateescape", newline="")
        self._reader = csv.reader(self._lines(), delimiter=delimiter, strict=True)

    def __next__(self) -> _Row:
        """Skip blank lines."""
        while not self._ended:
            try:
                row = next(self._reader)
            except csv.Error as error:
                # Behind it the parser begins anew, in the middle of the field: its text is no rows.
                self._ended = "field limit" in str(error)
                line = self._reader.line_num
                advice = f"{error}. Check the quotes, or raise csv.field_size_limit()"
                self._file.bad(f"line {line}", f"expected fields of at most 128 KiB: {advice}")
                continue
            if row:
                return self._reader.line_num, row
        raise StopIteration

    def __iter__(self) -> Iterator[_Row]:
        return self

    def take(self, num_fields: int, first: _Row | None = None) -> list[_Row]:
        """About a megabyte of rows that have so many fields; none at the end of the file.

        Those before an error come first.
        """
        if self._error is not None:
            raise self._error
        rows: list[_Row] = []
        stop = self._num_chars + CHUNK_BYTES
        try:
            for row in self._sound(num_fields, self if first is None else chain([first], self)):
                rows.append(row)
                if self._num_chars >= stop:
                    break
        except Exception as error:
            if not rows:
                raise
            self._error = error
        return rows

    def _sound(self, num_fields: int, rows: Iterator[_Row]) -> Iterator[_Row]:
        for line, row in rows:
            if len(row) == num_fields:
                yield line, row
            else:
                self._file.bad(f"line {line}", f"expected {num_fields} fields, got {len(row)}")

    def close(self) -> None:
        self._text.close()

    def _lines(self) -> Iterator[str]:
        for line in self._text:
            self._num_chars += len(line)
            yield line


@final
class _Table:
    """Turns rows of one file into columns."""

    def __init__(
        self, file: InputFile, names: list[str], columns: Wanted, head: list[_Row]
    ) -> None:
        self._file = file
        wanted = names if columns is None else [*columns]
        repeated = [name for name, times in Counter(names).items() if times > 1]
        if repeated or not set(wanted) <= set(names):
            more = f", with {repeated} more than once" if repeated else ""
            msg = (
                f"{file.path}: expected columns {wanted}, each once, got {names[:50]}{more}. Check "
                "the first line, columns= and delimiter=; header=False if there are no names."
            )
            raise SourceError(msg)
        types = columns if isinstance(columns, Mapping) else {}
        self._columns = [(name, names.index(name)) for name in wanted]
        self._types = [
            types.get(name) or self._type_of(name, number, head) for name, number in self._columns
        ]

    def chunk(self, rows: list[_Row]) -> dict[str, Any] | None:
        """Columns of the rows that fit; None if there are none."""
        chunk = self._converted(rows)
        if chunk is None:
            rows = [row for row in rows if self._fits(row)]
            chunk = self._converted(rows) if rows else None
        return chunk

    def _type_of(self, name: str, number: int, head: list[_Row]) -> Any:
        texts = [row[number] for _, row in head]
        found = infer_type(texts)
        if found is str:
            filled = [text for text in texts if text.strip()]
            if 0 < len(filled) < len(texts) and infer_type(filled) is not str:
                line = next(line for line, row in head if not row[number].strip())
                _warn_of_blank(self._file.path, line, name)
            for line, row in head:
                if is_beyond_float64(row[number]):
                    _warn_of_length(self._file.path, line, name, row[number])
                    break
        elif found is not str and _PADDED_INTEGER.search("\n".join(texts)):
            line, text = next(
                (line, row[number]) for line, row in head if _PADDED_INTEGER.match(row[number])
            )
            _warn_of_zeros(self._file.path, line, name, text, SHOWN.get(found, found))
        return found

    def _converted(self, rows: list[_Row]) -> dict[str, Any] | None:
        try:
            return {
                name: CONVERTERS[dtype](name, [row[number] for _, row in rows], dtype)
                for (name, number), dtype in zip(self._columns, self._types, strict=True)
            }
        except (ValueError, OverflowError):
            return None

    def _fits(self, numbered: _Row) -> bool:
        line, row = numbered
        for (name, number), dtype in zip(self._columns, self._types, strict=True):
            try:
                CONVERTERS[dtype](name, [row[number]], dtype)
            except (ValueError, OverflowError):
                kind = SHOWN.get(dtype, dtype)
                reason = (
                    f"expected {kind} in column {name!r}, got {row[number][:60]!r}. Fix the file, "
                    f"or give another type of the column: columns={{{name!r}: ...}}"
                )
                self._file.bad(f"line {line}", reason)
                return False
        return True


_told: set[tuple[str, str]] = set()


def _is_new(what: str, name: str) -> bool:
    """Whether this was not said of a column yet: thousands of files may have it."""
    is_new = (what, name) not in _told
    _told.add((what, name))
    return is_new


def _warn_of_header(path: str, names: list[str]) -> None:
    if not all(map(_is_number, names)) or not _is_new("header", ""):
        return
    _log.warning(
        "%s: the first line is taken for the names of the columns, but has numbers: %s. If it is a "
        "record, pass reader=readers.CSV(header=False). (Logged once.)",
        path,
        ", ".join(names[:5]),
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _warn_of_blank(path: str, line: int, name: str) -> None:
    if not _is_new("blank", name):
        return
    _log.warning(
        "%s, line %d: column %r has an empty field, which makes it text, though all others are "
        "numbers. Write nan there for floats; or pass columns={%r: str}, with the other columns; "
        "or a number type and on_error='skip', which leaves such rows out. (Logged once.)",
        path,
        line,
        name,
        name,
    )


def _warn_of_zeros(path: str, line: int, name: str, text: str, dtype: torch.dtype) -> None:
    if not _is_new("zeros", name):
        return
    _log.warning(
        "%s, line %d: column %r becomes %s, which does not keep the zeros in front of %r. If "
        "these are codes, pass columns={%r: str}, with the other columns; else give the type. "
        "(Logged once.)",
        path,
        line,
        name,
        dtype,
        text.strip(),
        name,
    )


def _warn_of_length(path: str, line: int, name: str, text: str) -> None:
    if not _is_new("length", name):
        return
    _log.warning(
        "%s, line %d: column %r is text, because no int64 or float64 of its column holds %s. Pass "
        "columns={%r: str}, with the other columns, if these are ids; torch.float64 rounds them. "
        "(Logged once.)",
        path,
        line,
        name,
        text.strip(),
        name,
    )
