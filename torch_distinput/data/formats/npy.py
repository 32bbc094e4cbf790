"""NumPy's .npy files: one array, whose rows are the records."""

from __future__ import annotations

import ast
import math
import operator
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import IO, Any, cast

import numpy as np
import torch
from numpy.lib import format as npy_format

from torch_distinput.data.batch.tree import Batch
from torch_distinput.data.formats.reader import CHUNK_BYTES, Part, Reader
from torch_distinput.data.storage.input_file import InputFile
from torch_distinput.errors import ConfigurationError
from torch_distinput.threads import named_lock

Array = np.ndarray[Any, Any]

_MAGIC = b"\x93NUMPY"
_PART_BYTES = 4 << 20
_MORE = (
    "expected the end of the file behind its array, got more. Save each array in a file of its own"
)
_LONGEST_HEADER = 10_000
"""As NumPy's own limit: what evaluates a literal is not safe with longer ones."""
_PARSER_ERRORS = (
    *(ValueError, TypeError, SyntaxError, LookupError, AttributeError),
    *(ArithmeticError, MemoryError, RecursionError),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """What stands before the values."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    columns_first: bool
    """Fortran's order in memory: the rows are not one after another."""
    offset: int

    @property
    def num_rows(self) -> int:
        """How many records the array has."""
        return self.shape[0]

    @property
    def row_bytes(self) -> int:
        """The size of a record."""
        return self.dtype.itemsize * math.prod(self.shape[1:])


@dataclass(frozen=True, slots=True)
class Npy(Reader):
    """Rows of an array in a .npy file.

    A batch is a tensor; an array where torch has no such type (text, times); a dict of columns
    where the type has fields. Arrays of Python objects are pickles, and never loaded. An array in
    Fortran's order is one part, read whole; all others are read in ranges of rows.
    """

    counted = True
    addressable = True

    def parts(self, file: InputFile) -> Sequence[Part]:
        """Cut into ranges of rows."""
        with file.open() as opened:
            header = _check_header(opened, file)
            if header is None:
                return ()
            rows = header.num_rows
            end = header.offset + rows * header.row_bytes
            if file.size is not None:
                has_more = file.size > end
            else:  # behind rows, read() looks for it
                has_more = not rows and bool(opened.read(1))
        if has_more:
            file.bad("the end", _MORE)
        if not rows:
            return ()
        if file.size is not None and file.size < end:
            rows = max(0, file.size - header.offset) // header.row_bytes
            file.bad("header", f"expected {header.num_rows} rows, got a file with {rows}")
        step = file.part_size(rows, _PART_BYTES // header.row_bytes)
        if header.columns_first or file.size is None:
            step = max(1, rows)
        return [
            Part(start=start, stop=stop, first_record=start, num_records=stop - start)
            for start, stop in pairwise([*range(0, rows, step), rows])
        ]

    def read(self, file: InputFile, part: Part) -> Iterator[Batch]:
        """Yield ranges of rows."""
        with file.open() as opened:
            header = _check_header(opened, file)
            if header is None:
                return
            stop = header.num_rows if part.stop is None else part.stop
            step = max(1, CHUNK_BYTES // header.row_bytes)
            number = part.start
            for block in row_blocks(opened, header, range(part.start, stop, step), stop):
                yield leaf(block, file.path)
                number += len(block)
            if number < stop:
                file.bad(
                    f"record {number}", f"expected {stop - part.start} rows, got the file's end"
                )
            elif stop == header.num_rows and None in (part.stop, file.size) and opened.read(1):
                file.bad("the end", _MORE)  # which parts() cannot see, or nobody asked for them


def _check_header(opened: IO[bytes], file: InputFile) -> Header | None:
    try:
        return read_header(opened, file.path)
    except ConfigurationError:
        raise
    except ValueError as error:
        file.bad("header", error)
        return None


def read_header(opened: IO[bytes], where: str) -> Header:
    """Read the header of an array that has rows.

    Raises:
        ConfigurationError: for an array without rows, and one of Python objects.
        ValueError: for a file that is damaged, or no such file.
    """
    start = opened.read(len(_MAGIC) + 2)
    if start[:-2] != _MAGIC or start[-2] not in (1, 2, 3):
        msg = f"expected a .npy file of version 1, 2 or 3, got one that begins with {start!r}"
        raise ValueError(msg)
    kind = "<H" if start[-2] == 1 else "<I"
    length = opened.read(struct.calcsize(kind))
    size = struct.unpack(kind, length.ljust(struct.calcsize(kind), b"\xff"))[0]
    if size > _LONGEST_HEADER:
        msg = f"expected a header of at most {_LONGEST_HEADER} bytes, got {size}"
        raise ValueError(msg)
    text = opened.read(size).decode("utf-8" if start[-2] == 3 else "latin-1")
    try:
        with named_lock("ast"):  # which fails now and then when two threads use it (Python 3.11)
            fields = ast.literal_eval(text.strip())
        dtype = npy_format.descr_to_dtype(fields["descr"])
        shape = tuple(map(operator.index, fields["shape"]))
        columns_first = bool(fields["fortran_order"]) and len(shape) > 1
    except _PARSER_ERRORS as error:
        msg = f"expected a description of the array, got {text[:200]!r} ({error})"
        raise ValueError(msg) from error
    _check_rows(dtype, shape, where)
    offset = len(start) + len(length) + size
    return Header(dtype=dtype, shape=shape, columns_first=columns_first, offset=offset)


def _check_rows(dtype: np.dtype[Any], shape: tuple[int, ...], where: str) -> None:
    if dtype.hasobject:
        msg = (
            f"{where}: expected numbers, text or times, got Python objects ({dtype}), which are "
            "pickles and never loaded. Save them in columns of a Parquet file."
        )
        raise ConfigurationError(msg)
    if not shape or min(dtype.itemsize, *shape[1:], 1) < 1 or shape[0] < 0:
        msg = (
            f"{where}: expected an array with one row per example, got {dtype} of shape {shape}. "
            "Save it with shape (rows, ...)."
        )
        raise ConfigurationError(msg)


def row_blocks(opened: IO[bytes], header: Header, starts: range, stop: int) -> Iterator[Array]:
    """Yield the rows between ``starts`` up to ``stop``; fewer if the file ends before.

    The file stands behind the header.
    """
    if header.columns_first:
        reversed_shape = header.shape[:0:-1]
        count = math.prod(header.shape)
        values, error = _read(opened, header.dtype, count)
        if error is not None:
            raise error
        if len(values) == count:
            array = values.reshape(*reversed_shape, header.num_rows).T
            for start in starts:
                yield np.ascontiguousarray(array[start : min(start + starts.step, stop)])
        return
    _skip(opened, starts.start * header.row_bytes)
    width = math.prod(header.shape[1:])
    for start in starts:
        wanted = min(starts.step, stop - start)
        values, error = _read(opened, header.dtype, wanted * width)
        rows = len(values) // width
        if rows:
            yield values[: rows * width].reshape(rows, *header.shape[1:])
        if error is not None:
            raise error
        if rows < wanted:
            return


def _skip(opened: IO[bytes], size: int) -> None:
    if opened.seekable():
        opened.seek(size, 1)
        return
    while size and (piece := opened.read(min(size, CHUNK_BYTES))):
        size -= len(piece)


def _read(
    opened: IO[bytes], dtype: np.dtype[Any], count: int
) -> tuple[Array, Exception | None]:
    """Read values into memory of their own; fewer if the file ends before, or at an error.

    By one call of what is below at a time: a longer read would drop what came before an error.
    """
    values = np.empty(count, dtype)
    content = values.view(np.uint8).data
    filled, error = 0, None
    try:
        while filled < len(content) and (size := cast(Any, opened).readinto1(content[filled:])):
            filled += size
    except Exception as broken:  # noqa: BLE001 - raised behind the values before it
        error = broken
    return values[: filled // dtype.itemsize], error


def leaf(array: Array, where: str) -> Batch:
    """Turn rows into a leaf: a tensor, if torch has such a type; a dict, if there are fields."""
    if array.dtype.names is not None:
        return {
            # A copy: of one row, NumPy takes any strides for contiguous, and torch does not.
            name: leaf(array[name].copy(), f"{where}: field {name!r}")
            for name in array.dtype.names
        }
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    try:
        return torch.from_numpy(widen(array, where))
    except TypeError:  # text, times: they stay arrays
        return array


def widen(values: Array, where: str) -> Array:
    """Unsigned integers that torch can store, but not index, in the next larger signed type."""
    if values.dtype.kind != "u" or values.dtype.itemsize == 1:
        return values
    if values.dtype.itemsize == 8 and values.size and values.max() > np.iinfo(np.int64).max:
        msg = (
            f"{where}: expected unsigned integers below 2**63, which torch can hold, got "
            f"{values.max()}. Write them as int64 or float64."
        )
        raise ConfigurationError(msg)
    return values.astype(np.int32 if values.dtype.itemsize == 2 else np.int64)
