"""Lines of JSON to columns with pyarrow, wherever that gives just what Python's parser would."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torch_distinput.data.formats.arrow_strings import pack_array
from torch_distinput.data.formats.column_types import (
    Wanted,
    cast_numbers,
    objects,
    rows_of_lists,
    split_type,
)
from torch_distinput.packed_strings import PackedStrings, is_ascii

_OBJECT = b"{}\n"
_OPEN, _CLOSE, _ = _OBJECT
_LARGEST_BLOCK = (1 << 31) - 1
_EXACT = float(1 << 63)
"""From here on pyarrow's floats may have been integers, which Python would keep."""


class _NotPlainError(Exception):
    """Python's parser may see something else, or must say what is wrong."""


def arrow_columns(records: PackedStrings, wanted: Wanted, *, packed: bool = False) -> Any:
    """Return a dict of columns; None if the lines must be parsed by Python.

    That is so without pyarrow, for errors of any kind, and for what the two see differently.

    Args:
        records: lines, each with its end.
        wanted: the columns to return, perhaps with their types.
        packed: text becomes packed strings.
    """
    arrow = _arrow()
    own = records.narrow()
    joined, offsets = own.data.numpy(), own.offsets.numpy()
    # Lines that begin and end so hold whole objects. A line with two of them is told by their
    # number: pyarrow would take them.
    if arrow is None or not _are_whole(joined, offsets) or joined.size > _LARGEST_BLOCK:
        return None
    try:
        if not is_ascii(joined):
            joined.tobytes().decode()
        table = _parse(arrow, joined, len(records))
        names = table.schema.names
        chosen = names if wanted is None else list(wanted)
        if not chosen or not set(chosen) <= set(names):
            return None
        types = wanted if isinstance(wanted, Mapping) else {}
        return {
            name: _column(
                arrow, name, _only_chunk(table.column(name)), types.get(name), packed=packed
            )
            for name in chosen
        }
    except (_NotPlainError, ValueError, arrow.ArrowException):
        return None


def _are_whole(joined: NDArray[np.uint8], offsets: NDArray[np.int64]) -> bool:
    """Whether each line begins and ends as an object does."""
    if (offsets[1:] - offsets[:-1] < len(_OBJECT)).any():
        return False
    firsts, lasts = joined[offsets[:-1]], joined[offsets[1:] - 2]
    return bool((firsts == _OPEN).all() and (lasts == _CLOSE).all())


@functools.cache
def _arrow() -> Any:
    try:
        import_module("pyarrow.json")
        return import_module("pyarrow")
    except ModuleNotFoundError:
        return None


def _parse(arrow: Any, joined: NDArray[np.uint8], num_rows: int) -> Any:
    table = _read(arrow, joined, None)
    if table.num_rows != num_rows:
        raise _NotPlainError
    schema = table.schema
    plain = arrow.schema([field.with_type(_plain(arrow, field.type)) for field in schema])
    return table if plain == schema else _read(arrow, joined, plain)


def _read(arrow: Any, joined: NDArray[np.uint8], schema: Any) -> Any:
    table = arrow.json.read_json(
        arrow.BufferReader(arrow.py_buffer(joined)),
        # One block: the types of a column come from all of its rows.
        read_options=arrow.json.ReadOptions(use_threads=False, block_size=joined.size + 1),
        parse_options=arrow.json.ParseOptions(explicit_schema=schema),
    )
    table.validate()  # pyarrow 26 makes an array that is shorter than it says of [null, 0]
    return table


def _plain(arrow: Any, found: Any) -> Any:
    """Text that looks like a time is text."""
    types = arrow.types
    if types.is_timestamp(found) or types.is_time(found) or types.is_date(found):
        return arrow.string()
    if types.is_struct(found):
        return arrow.struct([field.with_type(_plain(arrow, field.type)) for field in found])
    if types.is_list(found):
        return arrow.list_(found.value_field.with_type(_plain(arrow, found.value_type)))
    return found


def _only_chunk(column: Any) -> Any:
    if column.num_chunks != 1:
        raise _NotPlainError
    return column.chunk(0)


def _column(arrow: Any, name: str, array: Any, wanted: Any, *, packed: bool) -> Any:
    types = arrow.types
    dtype, ragged = split_type(wanted)
    if types.is_string(array.type) and dtype in (None, str):
        return pack_array(arrow, array) if packed else array.to_numpy(zero_copy_only=False).tolist()
    if array.null_count or dtype is str:
        raise _NotPlainError
    if types.is_struct(array.type) and dtype is None:
        return {
            field.name: _column(arrow, field.name, array.field(number), None, packed=packed)
            for number, field in enumerate(array.type)
        }
    if types.is_list(array.type):
        lengths = array.value_lengths().to_numpy().astype(np.int64)
        values = array.flatten()
        if types.is_string(values.type) and dtype is None and not values.null_count:
            texts = values.to_numpy(zero_copy_only=False).tolist()
            ends = lengths.cumsum().tolist()
            return objects([texts[e - n : e] for e, n in zip(ends, lengths.tolist(), strict=True)])
        found = _numbers(arrow, name, values, dtype)
        return rows_of_lists(name, found, lengths, ragged=ragged)
    if ragged:
        raise _NotPlainError
    return _numbers(arrow, name, array, dtype)


def _numbers(arrow: Any, name: str, array: Any, dtype: Any) -> torch.Tensor:
    types = arrow.types
    plain = types.is_int64(array.type) or types.is_float64(array.type)
    if array.null_count or not (plain or types.is_boolean(array.type)):
        raise _NotPlainError
    values = np.array(array.to_numpy(zero_copy_only=False))  # a copy that may be written to
    if types.is_float64(array.type) and not (np.abs(values) < _EXACT).all():
        raise _NotPlainError
    dense = torch.from_numpy(values)
    return dense if dtype is None else cast_numbers(name, dense, dtype)
