"""Strings at the border of tensor code: on the host as lists or packed, in models padded.

    list of str         a Python object each           what users have
    PackedStrings       bytes and offsets              what files give: a leaf of batches
    PaddedStrings       rows of one width, lengths     what a graph follows, and hashes take

All text is UTF-8. Bytes that are no UTF-8 are kept: as a ``str`` they are surrogate escapes
(``os.fsdecode`` does the same), packed and padded they are themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any, NamedTuple, final

import numpy as np
import torch

from torch_distinput.packed_strings import PackedStrings
from torch_distinput.preprocessing.strings.byte_rows import (
    MISSING,
    NARROW,
    ByteRows,
    join_plain,
    join_texts,
    to_str,
)


@final
@dataclass(frozen=True, slots=True, eq=False)
class PaddedStrings:
    """Strings as tensors, for layers inside a model; made by :func:`pack_strings`.

    ``torch.export`` and this package's batches take it as a structure of two tensors with one row
    per example.

    Attributes:
        data: uint8 ``(..., num_bytes)``, UTF-8, zero behind the end of each string.
        lengths: int64 ``(...)``, in bytes; -1 for a string that is None.
    """

    data: torch.Tensor
    lengths: torch.Tensor

    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """All strings one after another: uint8 ``(strings, num_bytes)``, int64 ``(strings,)``."""
        lengths = self.lengths.reshape(-1)
        return self.data.reshape(lengths.shape[0], self.data.shape[-1]), lengths


# By the name that it had when the first programs were exported, and in what they keep.
torch.export.register_dataclass(
    PaddedStrings, serialized_type_name="torch_distinput.preprocessing.PackedStrings"
)
torch.serialization.add_safe_globals(  # an exported model keeps example inputs
    [PaddedStrings, (PaddedStrings, f"{__name__}.PackedStrings")]
)


@final
@dataclass(frozen=True, slots=True, eq=False)
class PackedColumn:
    """Packed strings in the shape of a column.

    Attributes:
        strings: flat, in row-major order.
        shape: their shape.
    """

    strings: PackedStrings
    shape: tuple[int, ...]

    def to_nested(self) -> Any:
        """The strings as lists nested as deep as the shape."""
        return nest(self.strings.to_list(), self.shape)


class HostStrings(NamedTuple):
    """Strings in host memory.

    Attributes:
        values: ``str`` or None, flat, in row-major order; perhaps the caller's own list.
        shape: their shape.
        is_complete: whether None is not among them.
    """

    values: list[str | None]
    shape: tuple[int, ...]
    is_complete: bool


def pack_strings(values: Any, max_bytes: int | None = None) -> PaddedStrings:
    """Pack host strings for a layer inside a model.

    Args:
        values: a ``str`` or ``bytes``, a list (of lists) of them, a NumPy array or
            :class:`~torch_distinput.PackedStrings`; None is a string that is not there.
        max_bytes: the number of bytes each takes, for a model that was exported with that many;
            otherwise as many as the longest needs.

    Raises:
        ValueError: for a string longer than ``max_bytes``: cut, it would look like another one.
        TypeError: for values that are no strings.
    """
    column = find_packed(values)
    if column is not None:
        rows, shape = ByteRows.of_packed(column.strings), column.shape
    else:
        rows, shape = join_strings(values)
    longest = rows.longest()
    width = longest if max_bytes is None else max_bytes
    if longest > width:
        start = int(rows.starts[rows.lengths.argmax()])
        wrong = to_str(rows.memory[start : start + longest].tobytes())
        msg = (
            f"Expected strings of at most max_bytes={max_bytes} bytes, got one of {longest}: "
            f"{wrong!r:.80}. Raise max_bytes, or cut strings where they are made."
        )
        raise ValueError(msg)
    padded = _pad(rows, shape, width)
    return PaddedStrings(padded.data[..., :width].contiguous(), padded.lengths)


def join_strings(values: Any) -> tuple[ByteRows, tuple[int, ...]]:
    """Join host strings, and return their shape; errors are those of :func:`flatten_strings`."""
    values = unbox_array(values)
    # To look at the type of each would take longer than this.
    if type(values) is list and (rows := join_plain(values)) is not None:
        return rows, (len(values),)
    strings, shape, _ = flatten_strings(values)
    return join_texts(strings), shape


def find_packed(values: Any) -> PackedColumn | None:
    """Packed strings, or a column of them; None for anything else."""
    if isinstance(values, PackedStrings):
        return PackedColumn(values, (len(values),))
    return values if isinstance(values, PackedColumn) else None


def apply_to_packed(
    given: PackedColumn, fn: Callable[[PaddedStrings], torch.Tensor]
) -> torch.Tensor:
    """:func:`apply_in_blocks` to packed strings, of which no Python string is made."""
    return apply_to_rows(ByteRows.of_packed(given.strings), given.shape, fn)


def apply_in_blocks(
    given: HostStrings, fn: Callable[[PaddedStrings], torch.Tensor]
) -> torch.Tensor:
    """Apply a function to host strings, padded, and return its int64 results in their shape."""
    return apply_to_rows(join_texts(given.values), given.shape, fn)


def apply_to_rows(
    rows: ByteRows, shape: tuple[int, ...], fn: Callable[[PaddedStrings], torch.Tensor]
) -> torch.Tensor:
    """Apply a function to rows, padded, and return its int64 results in this shape.

    Strings of about one length are padded together: padded all at once, each would take as many
    bytes as the longest.
    """
    if (longest := rows.longest()) <= NARROW:
        return fn(_pad(rows, shape, longest))
    out = torch.empty(len(rows.lengths), dtype=torch.int64, device="cpu")
    rows = rows.leave_room(longest + NARROW)  # once, not for each block
    for block in rows.split_by_length():
        chosen = rows.take(block)
        out[torch.from_numpy(block)] = fn(_pad(chosen, (len(block),), chosen.longest()))
    return out.reshape(shape)


def _pad(rows: ByteRows, shape: tuple[int, ...], width: int) -> PaddedStrings:
    data = torch.from_numpy(rows.pad(width))
    return PaddedStrings(
        data.reshape(*shape, data.shape[1]), torch.from_numpy(rows.lengths).reshape(shape)
    )


def unpack_strings(packed: PaddedStrings) -> Any:
    """Return packed strings as a ``str``, or lists of ``str`` nested as deep as their shape."""
    data, lengths = packed.rows()
    flat = [
        None if length == MISSING else to_str(row[:length].tobytes())
        for row, length in zip(data.cpu().numpy(), lengths.tolist(), strict=True)
    ]
    return nest(flat, tuple(packed.lengths.shape))


def flatten_strings(values: Any) -> HostStrings:
    """Flatten host strings.

    Raises:
        TypeError: for values that are no strings.
        ValueError: for nested lists of unequal lengths.
    """
    values = unbox_array(values)
    if type(values) is list and set(map(type, values)) == {str}:  # most often
        return HostStrings(values, (len(values),), is_complete=True)
    return check_strings(*flatten_nested(values))


def check_strings(flat: list[Any], shape: tuple[int, ...]) -> HostStrings:
    """Return flat values as strings, or refuse them as :func:`flatten_strings` does."""
    if set(map(type, flat)) <= {str}:
        return HostStrings(flat, shape, is_complete=True)
    texts = decode_texts(flat)
    return HostStrings(texts, shape, is_complete=None not in texts)


def unbox_array(values: Any) -> Any:
    """Turn an array of one dimension into a list, and leave anything else as it is."""
    return values.tolist() if isinstance(values, np.ndarray) and values.ndim == 1 else values


def flatten_nested(values: Any) -> tuple[list[Any], tuple[int, ...]]:
    """Flatten host values, whatever they are, and return their shape."""
    column = find_packed(values)
    if column is not None:
        return column.strings.to_list(), column.shape
    if isinstance(values, (str, bytes, Number)) or is_missing(values):
        return [values], ()
    if isinstance(values, np.ndarray):
        flat = values.reshape(-1).tolist()
        # One dimension may be a column of lists.
        return _flatten_list(flat) if values.ndim == 1 else (flat, values.shape)
    if isinstance(values, (list, tuple)):
        return _flatten_list(values)
    if isinstance(values, torch.Tensor) or not hasattr(values, "__array__"):
        msg = (
            f"Expected strings: str, bytes, a list or NumPy array of them, or pack_strings(...); "
            f"got {_describe(values)}."
        )
        raise TypeError(msg)
    return flatten_nested(np.asarray(values, dtype=object))  # a column of pandas, polars or Arrow


def _flatten_list(values: Sequence[Any]) -> tuple[list[Any], tuple[int, ...]]:
    if not any(issubclass(kind, (list, tuple, np.ndarray)) for kind in set(map(type, values))):
        return list(values), (len(values),)
    parts = [flatten_nested(value) for value in values]
    shapes = {shape for _, shape in parts}
    if len(shapes) > 1:
        found = ", ".join(map(str, sorted(shapes)[:4]))
        msg = (
            f"Expected lists of equal lengths, got inner shapes {found}. Fill them up with a mask "
            "token, or join each row into one text for TextVectorization."
        )
        raise ValueError(msg)
    return [item for flat, _ in parts for item in flat], (len(values), *shapes.pop())


def decode_texts(values: Iterable[Any]) -> list[str | None]:
    """Decode bytes, keep ``str`` and None, and refuse anything else."""
    return [_decode(value) for value in values]


def _decode(value: Any) -> str | None:
    if isinstance(value, str):
        return str.__str__(value)  # str() of a member of an enum is its name
    if is_missing(value):
        return None
    if isinstance(value, bytes):
        return to_str(value)
    msg = f"Expected strings, got {_describe(value)}. Convert it with str() if text is meant."
    raise TypeError(msg)


def is_missing(value: Any) -> bool:
    """Whether it is None, or NaN, which pandas has for it among strings."""
    return is_none(value) or (isinstance(value, (float, np.floating)) and math.isnan(value))


def is_none(value: Any) -> bool:
    """Whether it is None, or what pandas has for it where NaN would change the type."""
    return value is None or type(value).__name__ == "NAType"


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of dtype {value.dtype}"
    return f"{value!r:.60} of type {type(value).__name__}"


def nest(flat: Sequence[Any], shape: tuple[int, ...]) -> Any:
    """Put flat values into lists nested as deep as the shape."""
    if not shape:
        return flat[0]
    if len(shape) == 1:
        return list(flat)
    step = len(flat) // shape[0] if shape[0] else 0
    return [nest(flat[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]


def show_some(values: Sequence[Any]) -> str:
    """Name some values in a message."""
    return ", ".join(map(repr, values[:5])) + (", ..." if len(values) > 5 else "")
