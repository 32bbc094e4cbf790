"""``tf.train.Example`` messages, many at a time, as columns.

The messages are joined, and walked in lockstep: each step of the walk is a few NumPy operations
over all messages. In whatever order their features are, that works if each is written as everybody
writes them. One that is not (unpacked numbers, unknown fields) is first rewritten by a walk of its
own, so that values are made in one place only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from torch_distinput.data.batch.jagged import make_jagged
from torch_distinput.data.batch.tree import Batch
from torch_distinput.data.formats.tfrecord.protobuf import (
    BYTES,
    FLOATS,
    INTS,
    Lanes,
    Places,
    plain_example,
)
from torch_distinput.packed_strings import PackedStrings, gather_spans, is_ascii

_KINDS: Mapping[Any, tuple[int, str]] = {
    bytes: (BYTES, "bytes"),
    str: (BYTES, "bytes"),
    torch.float32: (FLOATS, "float32"),
    torch.int64: (INTS, "int64"),
}
HEADER_BYTES, FOOTER_BYTES = 12, 4
"""Bytes of a frame of TFRecord around a message: nothing is moved to cut them off."""
_LISTS = {BYTES: "bytes", FLOATS: "float32", INTS: "int64"}


@dataclass(frozen=True, slots=True)
class Field:
    """What to make of one feature; ``shape`` is None for any number of values."""

    name: str
    dtype: Any
    shape: tuple[int, ...] | None = ()
    default: Any = None


def fields(features: Mapping[str, Any]) -> Mapping[bytes, Field]:
    """Read the descriptions of :class:`TFRecord`; the keys are the names in the messages.

    Raises:
        ValueError: for a description that means nothing.
    """
    return {name.encode(): _field(name, given) for name, given in features.items()}


def _field(name: str, given: Any) -> Field:
    dtype, *rest = given if isinstance(given, tuple) else (given,)
    shape = rest[0] if rest else ()
    shape = None if shape is ... else shape
    sound = shape is None or (
        isinstance(shape, tuple) and all(isinstance(size, int) and size >= 0 for size in shape)
    )
    if dtype not in _KINDS or not sound or len(rest) > 1 + (shape is not None):
        msg = (
            f"Expected feature {name!r} to be a type (torch.int64, torch.float32, bytes or str), "
            f"(type, shape), (type, shape, default) or (type, ...), got {given!r}."
        )
        raise ValueError(msg)
    field = Field(name, dtype, shape, rest[1] if len(rest) == 2 else None)
    if field.default is not None:
        _default(field)
    return field


def parse_examples(
    records: PackedStrings | Sequence[bytes],
    wanted: Mapping[bytes, Field],
    *,
    packed: bool = False,
) -> Batch:
    """Return a dict with a column for each wanted feature.

    Args:
        records: the messages; packed, they are frames with :data:`HEADER_BYTES` bytes before each
            message and :data:`FOOTER_BYTES` behind it.
        wanted: what to make of which feature.
        packed: columns with one text or bytes a row become packed strings.

    Raises:
        ValueError: if a message does not parse, or does not have what is wanted.
    """
    lanes = _lanes(records) if isinstance(records, PackedStrings) else Lanes.joined(records)
    places = lanes.features(wanted)
    if not places.plain.all():
        messages = lanes.messages()
        for row in np.flatnonzero(~places.plain).tolist():
            messages[row] = _rewrite(messages[row], row)
        lanes = Lanes.joined(messages)
        places = lanes.features(wanted)
        assert places.plain.all()
    columns = {
        field.name: _Column(field, lanes, places, number)
        for number, field in enumerate(wanted.values())
    }
    return {name: column.values(packed=packed) for name, column in columns.items()}


def _lanes(frames: PackedStrings) -> Lanes:
    """The messages in frames, where they lie."""
    own = frames.narrow()
    offsets = own.offsets.numpy()
    return Lanes(own.data.numpy(), offsets[:-1] + HEADER_BYTES, offsets[1:] - FOOTER_BYTES)


def _rewrite(record: bytes, row: int) -> bytes:
    try:
        return plain_example(record)
    except (ValueError, IndexError) as error:
        msg = (
            f"Expected a tf.train.Example, got {len(record)} bytes that are none (record {row} of "
            f"this batch: {error}). Leave features out to get the bytes, or skip bad records."
        )
        raise ValueError(msg) from error


@final
class _Column:
    """Makes the column of one feature: rows that have it are parsed, the others filled."""

    def __init__(self, field: Field, lanes: Lanes, places: Places, number: int) -> None:
        self._field = field
        self._lanes = lanes
        self._rows = np.flatnonzero(places.kinds[number])
        self._num_rows = len(places.plain)
        self._items = places.items[number]
        self._starts = places.starts[number][self._rows]
        self._stops = places.stops[number][self._rows]
        self._kinds = places.kinds[number][self._rows]

    def values(self, *, packed: bool) -> Any:
        self._check_kinds()
        kind = _KINDS[self._field.dtype][0]
        if kind == BYTES:
            return self._packed() if packed and self._field.shape == () else self._texts()
        flat, counts = self._ints() if kind == INTS else self._floats()
        if self._field.shape is None:
            return self._jagged(torch.from_numpy(flat), counts)
        self._check_counts(counts)
        dense = torch.from_numpy(flat).view(len(self._rows), *self._field.shape)
        return self._filled(dense)

    def _check_kinds(self) -> None:
        kind, name = _KINDS[self._field.dtype]
        other = np.flatnonzero(self._kinds != kind)
        if other.size:
            row, got = self._rows[other[0]], _LISTS[int(self._kinds[other[0]])]
            msg = (
                f"Expected feature {self._field.name!r} to hold {name} values, got {got} in "
                f"record {row} of this batch. Change its type in features=."
            )
            raise ValueError(msg)

    def _check_counts(self, counts: NDArray[np.int64]) -> None:
        """Also that no row lacks a feature that has no default."""
        assert self._field.shape is not None
        expected = prod(self._field.shape)
        wrong = np.flatnonzero(counts != expected)
        if wrong.size:
            msg = (
                f"Expected {expected} values of feature {self._field.name!r} with shape "
                f"{self._field.shape}, got {counts[wrong[0]]} in record "
                f"{self._rows[wrong[0]]} of this batch. For any number of them, describe it "
                "as (type, ...)."
            )
            raise ValueError(msg)
        if len(self._rows) < self._num_rows and self._field.default is None:
            row = np.setdiff1d(np.arange(self._num_rows), self._rows)[0]
            msg = (
                f"Expected feature {self._field.name!r}, but record {row} of this batch has none. "
                "Describe it as (type, shape, default), or take it out of features=."
            )
            raise ValueError(msg)

    def _ints(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        data = self._bytes_of_spans()
        lengths = self._stops - self._starts
        ends = data < 0x80
        border = np.concatenate(([0], lengths.cumsum()))
        before = np.concatenate(([0], ends.cumsum()))
        counts = before[border[1:]] - before[border[:-1]]
        # Nothing may run on from one row into the next, and 64 bits are ten bytes.
        cut = np.flatnonzero((lengths > 0) & ~ends[border[1:] - 1]) if data.size else counts[:0]
        if cut.size:
            self._refuse(cut[0], "an int64 that is cut off")
        lasts = np.flatnonzero(ends)
        firsts = np.concatenate(([0], lasts[:-1] + 1)) if lasts.size else lasts
        sizes = lasts - firsts + 1
        values = np.zeros(len(lasts), np.uint64)
        for number in range(int(sizes.max(initial=0))):
            if number == 10:
                row = np.searchsorted(border, lasts[sizes > 10][0], "right") - 1
                self._refuse(row, "an int64 of more than 10 bytes")
            has = sizes > number
            bits = (data[firsts[has] + number] & 0x7F).astype(np.uint64)
            values[has] |= bits << np.uint64(7 * number)
        return values.view(np.int64), counts

    def _floats(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        lengths = self._stops - self._starts
        odd = np.flatnonzero(lengths % 4)
        if odd.size:
            self._refuse(odd[0], f"float32 values of {lengths[odd[0]]} bytes together")
        return self._bytes_of_spans().view("<f4").astype(np.float32, copy=False), lengths // 4

    def _refuse(self, number: Any, what: str) -> None:
        msg = (
            f"Expected values of feature {self._field.name!r}, got {what} in record "
            f"{self._rows[number]} of this batch: it is damaged. Skip bad records, or fix it."
        )
        raise ValueError(msg)

    def _bytes_of_spans(self) -> NDArray[np.uint8]:
        """The bytes of all rows, one after another, in memory of their own."""
        return gather_spans(self._lanes.data, self._starts, self._stops)

    def _jagged(self, flat: torch.Tensor, counts: NDArray[np.int64]) -> torch.Tensor:
        lengths = np.zeros(self._num_rows + 1, np.int64)
        lengths[self._rows + 1] = counts
        offsets = torch.from_numpy(lengths.cumsum())
        return make_jagged(flat, offsets)

    def _filled(self, dense: torch.Tensor) -> torch.Tensor:
        if len(dense) == self._num_rows:
            return dense
        column: torch.Tensor = (
            _default(self._field).expand(self._num_rows, *dense.shape[1:]).clone()
        )
        column[torch.from_numpy(self._rows)] = dense
        return column

    def _packed(self) -> PackedStrings:
        self._check_counts(self._items.counts)
        starts, stops = self._items.starts, self._items.stops
        data = gather_spans(self._lanes.data, starts, stops)
        if len(starts) < self._num_rows or (self._field.dtype is str and not is_ascii(data)):
            return PackedStrings.from_list(self._texts(), self._field.dtype)
        offsets = np.concatenate(([0], (stops - starts).cumsum()))
        tensors = torch.from_numpy(data), torch.from_numpy(offsets)
        return PackedStrings(*tensors, dtype=self._field.dtype)

    def _texts(self) -> Any:
        field = self._field
        memory, counts = memoryview(self._lanes.data), self._items.counts  # type: ignore[arg-type]
        spans = zip(self._items.starts.tolist(), self._items.stops.tolist(), strict=True)
        items: list[Any] = [memory[start:stop].tobytes() for start, stop in spans]
        if field.dtype is str:
            items = [item.decode() for item in items]
        if field.shape is not None:
            self._check_counts(counts)
        if field.shape == ():
            return items if len(items) == self._num_rows else self._with_defaults(items)
        return self._objects(items, counts)

    def _with_defaults(self, items: list[Any]) -> list[Any]:
        column = [_default(self._field)] * self._num_rows
        for row, item in zip(self._rows.tolist(), items, strict=True):
            column[row] = item
        return column

    def _objects(self, items: list[Any], counts: NDArray[np.int64]) -> NDArray[Any]:
        shape = self._field.shape
        if shape is None:
            column = np.empty(self._num_rows, object)
            ends = np.zeros(self._num_rows, np.int64)
            ends[self._rows] = counts
            ends = ends.cumsum()
            for row, (start, stop) in enumerate(zip([0, *ends.tolist()], ends.tolist())):  # noqa: B905 - one more start
                column[row] = items[start:stop]
            return column
        column = np.empty((self._num_rows, *shape), object)
        if len(self._rows) < self._num_rows:
            column[...] = _default(self._field)
        flat = np.empty(len(items), object)
        flat[:] = items
        column[self._rows] = flat.reshape(len(self._rows), *shape)
        return column


def _default(field: Field) -> Any:
    """The default as one row: an item, or a tensor that broadcasts to a row."""
    assert field.shape is not None
    if field.dtype in (bytes, str):
        if isinstance(field.default, field.dtype):
            return field.default
    else:
        try:
            default = torch.as_tensor(field.default, dtype=field.dtype, device="cpu")
            return default.expand(field.shape)
        except (TypeError, ValueError, RuntimeError):
            pass
    msg = (
        f"Expected the default of feature {field.name!r} to be {field.dtype} of shape "
        f"{field.shape}, got {field.default!r}."
    )
    raise ValueError(msg)
