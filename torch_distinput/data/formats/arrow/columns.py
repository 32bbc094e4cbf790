"""Arrow record batches as batches: a dict with one leaf for each column.

=========================================  =====================================================
Arrow type                                 leaf
=========================================  =====================================================
integers, floats, bool                     tensor of that type; torch cannot index uint16, uint32
                                           and uint64: they become int32, int64 and int64
fixed-size lists of them, fixed tensors    tensor ``(rows, k)``, ``(rows, k, m)``, ...
lists of numbers, or of fixed-size lists   jagged tensor
text, binary                               list of ``str`` or ``bytes``, or packed strings
decimal                                    list of ``decimal.Decimal``
date, timestamp, duration, time of day     array of ``datetime64`` (in UTC, where there is a time
                                           zone) or ``timedelta64`` (since midnight)
struct                                     dict of columns
all other lists, maps                      array of objects: a Python list for each row
dictionary- and run-end-encoded            as what they encode
=========================================  =====================================================

A null is NaN in a float, NaT in a time and None in a list; elsewhere it has no place, and is an
error. A struct that is null makes its fields null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import torch

from torch_distinput.data.batch.jagged import make_jagged
from torch_distinput.data.batch.tree import Batch
from torch_distinput.data.formats.arrow.strings import pack_array
from torch_distinput.data.formats.npy import widen
from torch_distinput.data.formats.reader import CHUNK_BYTES
from torch_distinput.data.storage.input_file import InputFile
from torch_distinput.errors import ConfigurationError

_CURE = "or leave the column out with columns=."


@cache
def load_arrow(module: str = "pyarrow") -> Any:
    """Import pyarrow when a reader is used; the library works without it."""
    try:
        return import_module(module)
    except ImportError as error:
        msg = (
            f"Reading Parquet and Arrow files needs pyarrow: {error}. "
            "pip install 'torch_distinput[arrow]'."
        )
        raise ConfigurationError(msg) from error


def column_names(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """Check the argument ``columns`` of a reader."""
    if columns is None:
        return None
    names = () if isinstance(columns, str) else tuple(columns)
    if not names or len(set(names)) < len(names) or not all(isinstance(n, str) for n in names):
        msg = f"columns must be different names, as in ['a', 'b'], or None for all, got {columns!r}"
        raise ValueError(msg)
    return names


def choose_columns(schema: Any, columns: Sequence[str] | None, path: str) -> list[str]:
    """Return the names of the columns to read, in the order of the batch."""
    there = list(schema.names)
    names = there if columns is None else list(columns)
    missing = [name for name in names if name not in there]
    if missing or not names:
        wanted = f"the columns {missing}" if missing else "at least one column"
        msg = f"{path}: expected {wanted}, got a file with the columns {there}. Check columns=."
        raise ConfigurationError(msg)
    twice = sorted({name for name in names if there.count(name) > 1})
    if twice:
        msg = f"{path}: expected one column of each name, got {twice} twice. Rename one, {_CURE}"
        raise ConfigurationError(msg)
    return names


@contextmanager
def arrow_source(file: InputFile, *, mapped: bool = False) -> Iterator[Any]:
    """Open a file for pyarrow; one without a size is read into memory.

    ``mapped``: map it if it is local. Who touches a map of a file that has become shorter is
    killed by the system (SIGBUS), so this is for those who gain by it.
    """
    pa = load_arrow()
    if file.local_path is not None:
        with (pa.memory_map if mapped else pa.OSFile)(file.local_path) as source:
            yield source
        return
    with file.open() as opened:
        yield pa.BufferReader(opened.read()) if file.size is None else pa.PythonFile(opened, "r")


def is_damage(error: Exception) -> bool:
    """Whether pyarrow complains about the content; not what the storage or the caller did.

    Its own ``OSError`` for content has no number, those of the operating system have one.
    """
    if isinstance(error, ConfigurationError):
        return False
    if isinstance(error, OSError):
        return type(error) is OSError and error.errno is None
    arrow = load_arrow().ArrowException
    return isinstance(error, (ValueError, ArithmeticError, MemoryError, arrow))


def batch_chunks(
    batch: Any, file: InputFile, *, record: int = 0, within: str = "", packed: bool = False
) -> Iterator[Batch]:
    """Turn a record batch, with the chosen columns only, into chunks.

    Messages name a row by ``record``, the number of the first one, and by what it is ``within``.
    ``packed``: text and binary become packed strings.
    """
    for piece in _pieces(batch):
        yield from _good_rows(piece, file, record, within, packed=packed)
        record += piece.num_rows


def _good_rows(
    batch: Any, file: InputFile, record: int, within: str, *, packed: bool
) -> Iterator[Batch]:
    """Halve a batch that cannot be decoded until the rows to blame are alone."""
    if not batch.num_rows:
        return
    try:
        chunk = batch_columns(batch, file.path, packed=packed)
    except Exception as error:
        if not is_damage(error):
            raise
        half = batch.num_rows // 2
        if half:
            head, tail = batch.slice(0, half), batch.slice(half)
            yield from _good_rows(head, file, record, within, packed=packed)
            yield from _good_rows(tail, file, record + half, within, packed=packed)
        else:
            file.bad(f"record {record}{within}", error)
    else:
        yield chunk


def batch_columns(batch: Any, path: str, *, packed: bool = False) -> Batch:
    """Turn a record batch into a batch; ``path`` says in messages where it is from."""
    pairs = zip(batch.schema.names, batch.columns, strict=True)
    return {
        name: _leaf(column, f"{path}: column {name!r}", packed=packed) for name, column in pairs
    }


def check_buffers(batch: Any) -> None:
    """Raise for offsets and lengths beyond their buffers, as damaged files have them.

    Columns of text are looked at as binary: that they are UTF-8 is found out when they are decoded.
    """
    pa = load_arrow()
    for column in batch.columns:
        column.validate()
        kind = column.type
        if pa.types.is_string(kind):
            column.view(pa.binary()).validate(full=True)
        elif pa.types.is_large_string(kind):
            column.view(pa.large_binary()).validate(full=True)
        else:
            column.validate(full=True)


def _pieces(batch: Any) -> Iterator[Any]:
    """Halve a batch until its pieces are about a chunk, however unlike its rows are."""
    half = batch.num_rows // 2
    if not half or sum(map(_num_bytes, batch.columns)) <= 2 * CHUNK_BYTES:
        yield batch
    else:
        yield from _pieces(batch.slice(0, half))
        yield from _pieces(batch.slice(half))


def _num_bytes(array: Any) -> int:
    """About the bytes of an array's own rows, decoded."""
    pa, kind = load_arrow(), array.type
    if pa.types.is_primitive(kind):
        return len(array) * int(kind.bit_width) // 8
    if pa.types.is_struct(kind):
        return sum(map(_num_bytes, array.flatten()))
    if kind in (pa.string_view(), pa.binary_view()):
        return _view_bytes(array)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        values = array.dictionary if pa.types.is_dictionary(kind) else array.values
        return len(array) * int(_num_bytes(values) // max(1, len(values)) + 1)
    return int(array.nbytes)


def _view_bytes(array: Any) -> int:
    """Sum up the lengths: the first 4 of the 16 bytes of a view. The text is shared by slices."""
    views = np.frombuffer(array.buffers()[1], np.int32)
    lengths = views[4 * array.offset : 4 * (array.offset + len(array)) : 4]
    return int(lengths.sum(dtype=np.int64))


def _compute() -> Any:
    return load_arrow("pyarrow.compute")


def _leaf(array: Any, where: str, *, packed: bool) -> Any:
    types, kind = load_arrow().types, array.type
    if _is_dense(kind):
        return torch.from_numpy(_numbers(array, where))
    if types.is_dictionary(kind):
        return _leaf(array.dictionary_decode(), where, packed=packed)
    if types.is_run_end_encoded(kind):
        return _leaf(_compute().run_end_decode(array), where, packed=packed)
    if types.is_struct(kind) and kind.num_fields:
        return _struct(array, where, packed=packed)
    if types.is_list(kind) or types.is_large_list(kind):
        return _jagged(array, where) if _is_dense(kind.value_type) else _objects(array)
    if any(is_list(kind) for is_list in _other_lists(types)):
        return _objects(array)
    if any(is_string(kind) for is_string in _strings(types)):
        return pack_array(load_arrow(), array) if packed else array.to_pylist()
    if types.is_decimal(kind):
        return array.to_pylist()
    if types.is_temporal(kind) and not types.is_interval(kind):
        return _times(array)
    msg = (
        f"{where}: expected numbers, text, binary, times, structs or lists of them, got the Arrow "
        f"type {kind}. Cast it when writing the file, {_CURE}"
    )
    raise ConfigurationError(msg)


def _strings(types: Any) -> Sequence[Callable[[Any], bool]]:
    return (
        *(types.is_string, types.is_large_string, types.is_string_view),
        *(types.is_binary, types.is_large_binary, types.is_binary_view),
        types.is_fixed_size_binary,
    )


def _other_lists(types: Any) -> Sequence[Callable[[Any], bool]]:
    lists = (types.is_fixed_size_list, types.is_list_view, types.is_large_list_view)
    return (*lists, types.is_map)


def _is_dense(kind: Any) -> bool:
    """Whether rows of this type are tensors of one shape."""
    pa = load_arrow()
    if pa.types.is_primitive(kind):
        return not pa.types.is_temporal(kind)
    if pa.types.is_fixed_size_list(kind):
        return _is_dense(kind.value_type)
    if not isinstance(kind, pa.FixedShapeTensorType) or not _is_dense(kind.value_type):
        return False
    return kind.permutation is None or kind.permutation == sorted(kind.permutation)


def _numbers(array: Any, where: str) -> np.ndarray[Any, Any]:
    """The values of a dense array, in memory that its reader may write to."""
    pa, kind = load_arrow(), array.type
    if array.null_count and not pa.types.is_floating(kind):
        msg = (
            f"{where}: expected values only in a column of type {kind}, got {array.null_count} "
            f"nulls in {len(array)} rows. Fill them when writing the file, {_CURE}"
        )
        raise ConfigurationError(msg)
    if pa.types.is_primitive(kind):
        return widen(_flat(array), where)
    if pa.types.is_fixed_size_list(kind):
        values = _numbers(array.flatten(), where)
        return values.reshape(len(array), kind.list_size, *values.shape[1:])
    return _numbers(array.storage, where).reshape(len(array), *kind.shape)


def _flat(array: Any) -> np.ndarray[Any, Any]:
    """Plain values, without a copy if nobody else can have their memory.

    A user may write to a batch in place, so its memory must belong to its rows alone. A buffer
    that Arrow calls mutable was filled for this batch (decoded, decompressed, with nulls filled);
    slices of it have different rows, and each row goes to one replica. All others are copied:
    they lie in a mapped file, where a write would end the process, or in bytes of somebody else.
    """
    pa = load_arrow()
    buffer = array.buffers()[1]
    if pa.types.is_boolean(array.type) or array.null_count or buffer is None:
        return np.array(array.to_numpy(zero_copy_only=False), array.type.to_pandas_dtype())
    if not buffer.is_mutable:
        return np.array(array.to_numpy(zero_copy_only=True))
    values = np.frombuffer(buffer, array.type.to_pandas_dtype())
    return values[array.offset : array.offset + len(array)]


def _jagged(array: Any, where: str) -> torch.Tensor:
    if array.null_count:
        msg = (
            f"{where}: expected a list in each row, got {array.null_count} nulls in {len(array)} "
            f"rows. Fill them when writing the file, {_CURE}"
        )
        raise ConfigurationError(msg)
    values = torch.from_numpy(_numbers(array.flatten(), where))
    # A copy: neighbouring slices share the offset at their border.
    offsets = np.array(array.offsets.to_numpy(zero_copy_only=True), np.int64)
    return make_jagged(values, torch.from_numpy(offsets - offsets[0]))


def _objects(array: Any) -> np.ndarray[Any, Any]:
    rows = np.empty(len(array), object)
    for number, row in enumerate(array.to_pylist()):
        rows[number] = row  # NumPy would look into lists that are assigned at once
    return rows


def _struct(array: Any, where: str, *, packed: bool) -> dict[str, Any]:
    names = [field.name for field in array.type]
    if len(set(names)) < len(names):
        msg = f"{where}: expected one field of each name, got {names}. Rename one, {_CURE}"
        raise ConfigurationError(msg)
    pairs = zip(names, array.flatten(), strict=True)  # with the struct's own nulls
    return {
        name: _leaf(values, f"{where}, field {name!r}", packed=packed) for name, values in pairs
    }


def _times(array: Any) -> np.ndarray[Any, Any]:
    pa = load_arrow()
    if pa.types.is_time(array.type):
        number = array.cast(f"int{array.type.bit_width}").cast(pa.int64())
        array = number.cast(pa.duration(array.type.unit))
    return np.array(array.to_numpy(zero_copy_only=False))
