"""The kinds of leaves that a batch can have, in one table: what each does with its rows.

    kind     a leaf is                                    a row is          its spec has
    DENSE    a strided tensor                             ``leaf[row]``     a torch dtype
    JAGGED   a tensor of layout torch.jagged              of any length     layout torch.jagged
    ARRAY    an array that torch cannot share (strings)   ``leaf[row]``     a NumPy dtype
    PACKED   PackedStrings: bytes and offsets             str or bytes      those, and torch.jagged
    LIST     a list, or Examples                          any object        str, bytes or object
    MIXED    MixedRows, which are not finished yet        of any source     none

A new kind is one more class and one more place in ``KINDS``: nobody else asks what a leaf is.
Slices are views; leaves without rows never keep the storage of a large one alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any, final

import numpy as np
import torch

from torch_distinput.data.batch.jagged import JAGGED
from torch_distinput.data.batch.leaf_kind import (
    EXPECTED,
    LeafKind,
    Order,
    join,
    last_repeated,
    make_layout_error,
    open_shape,
    windows,
)
from torch_distinput.data.batch.mixed import Mixed, MixedRows
from torch_distinput.data.batch.packed import PACKED
from torch_distinput.data.batch.tree import Examples, flatten
from torch_distinput.packed_strings import PackedStrings
from torch_distinput.values import TensorSpec

_TEXT = {str, bytes}
_BLANKS = {str: "", bytes: b""}
_OBJECT_BYTES = 56
"""What a Python object takes beside its content, about."""
_SAMPLED = 64
"""So many rows of a list tell how large all are: to look at each one costs more than to cut it."""
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
"""Types for which torch has no index_select, and some releases no indexing: what has their bits."""


@final
class _Dense(LeafKind):
    leaf_type = torch.Tensor

    def has(self, leaf: Any) -> bool:
        return not leaf.is_nested

    def has_spec(self, spec: TensorSpec) -> bool:
        return isinstance(spec.dtype, torch.dtype) and spec.layout is not torch.jagged

    def count(self, leaf: Any) -> int:
        if leaf.ndim == 0:
            raise _make_no_dimension_error(leaf)
        if leaf.layout is not torch.strided or leaf.is_quantized or leaf.is_nested:
            raise make_layout_error(leaf)  # a quantizer would be lost where a batch has no rows
        return int(leaf.shape[0])

    # To autograd ordinary views are one tensor: what a user changes in place in one replica's
    # batch, or in one step's, would invalidate what was saved for backward of another's.
    def slice(self, leaf: Any, start: int, stop: int) -> Any:
        return torch.unsafe_split_with_sizes(leaf, (start, stop - start, leaf.size(0) - stop))[1]

    def split(self, leaf: Any, sizes: Sequence[int]) -> Sequence[Any]:
        return torch.unsafe_split_with_sizes(leaf, sizes)

    def take(self, leaf: Any, rows: torch.Tensor) -> Any:
        if not (leaf.is_cpu and rows.is_cpu):
            rows = rows.to(leaf.device)
        if is_selectable(leaf):
            return leaf.index_select(0, rows)
        if leaf.dtype in _SIGNED:
            return leaf.view(_SIGNED[leaf.dtype])[rows].view(leaf.dtype)
        return leaf[rows]

    def pool(self, leaves: Sequence[Any]) -> Callable[[torch.Tensor], Any]:
        return partial(self.take, join(self, leaves))

    def concat(self, leaves: Sequence[Any]) -> Any:
        return torch.cat(list(leaves))

    def iterate(self, leaf: Any) -> Iterable[Any]:
        return leaf.unbind()  # type: ignore[no-any-return]

    def empty_like(self, leaf: Any) -> Any:
        if leaf.shape[0]:
            return leaf.new_empty((0, *leaf.shape[1:]))
        return torch.empty_like(leaf)  # in less than half the time

    def copy(self, leaf: Any) -> Any:
        return leaf.clone()  # also of a slice: just its rows, in its memory format

    def is_part(self, leaf: Any) -> bool:
        return bool(leaf.nbytes < leaf.untyped_storage().nbytes())

    def num_bytes(self, leaf: Any) -> int:
        return int(leaf.nbytes) if leaf.layout is torch.strided else 0

    def pad(self, leaf: Any, count: int, num_rows: int) -> Any:
        return self.take(leaf, last_repeated(count, num_rows, leaf.device))

    def spec(self, leaf: Any) -> TensorSpec:
        return TensorSpec((None, *leaf.shape[1:]), leaf.dtype)

    def outline(self, leaf: Any) -> Any:
        return leaf.shape[1:], leaf.dtype

    def blank(self, spec: TensorSpec, num_rows: int, order: Order) -> Any:
        shape = open_shape(spec, num_rows)
        order = list(range(len(shape)) if order is None else order)
        leaf = torch.empty_permuted(shape, order, dtype=spec.dtype, device="cpu")
        return leaf.zero_() if num_rows else leaf  # which some dtypes of 4 bits cannot do


@final
class _Array(LeafKind):
    leaf_type = np.ndarray

    def has(self, leaf: Any) -> bool:  # noqa: ARG002
        return True

    def has_spec(self, spec: TensorSpec) -> bool:
        return isinstance(spec.dtype, np.dtype)

    def count(self, leaf: Any) -> int:
        if leaf.ndim == 0:
            raise _make_no_dimension_error(leaf)
        return int(leaf.shape[0])

    def slice(self, leaf: Any, start: int, stop: int) -> Any:
        return leaf[start:stop]

    def split(self, leaf: Any, sizes: Sequence[int]) -> Sequence[Any]:
        return [leaf[window] for window in windows(tuple(sizes))]

    def take(self, leaf: Any, rows: torch.Tensor) -> Any:
        return np.take(leaf, rows.numpy(), axis=0)

    def pool(self, leaves: Sequence[Any]) -> Callable[[torch.Tensor], Any]:
        return partial(self.take, join(self, leaves))

    def concat(self, leaves: Sequence[Any]) -> Any:
        return np.concatenate(leaves)

    def iterate(self, leaf: Any) -> Iterable[Any]:
        return leaf  # type: ignore[no-any-return]

    def empty_like(self, leaf: Any) -> Any:
        return np.empty((0, *leaf.shape[1:]), dtype=leaf.dtype)

    def copy(self, leaf: Any) -> Any:
        return leaf.copy()

    def is_part(self, leaf: Any) -> bool:
        return leaf.base is not None

    def num_bytes(self, leaf: Any) -> int:
        objects = bytes_of(leaf.tolist()) if leaf.dtype == object else 0
        return int(leaf.nbytes) + objects

    def pad(self, leaf: Any, count: int, num_rows: int) -> Any:
        return self.take(leaf, last_repeated(count, num_rows))

    def spec(self, leaf: Any) -> TensorSpec:
        return TensorSpec((None, *leaf.shape[1:]), leaf.dtype)

    def outline(self, leaf: Any) -> Any:
        return leaf.shape[1:], leaf.dtype

    def blank(self, spec: TensorSpec, num_rows: int, order: Order) -> Any:  # noqa: ARG002
        shape = open_shape(spec, num_rows)
        if num_rows and spec.dtype.hasobject:
            return np.full(shape, None)
        return np.zeros(shape, spec.dtype)


@final
class _List(LeafKind):
    leaf_type = list

    def has(self, leaf: Any) -> bool:  # noqa: ARG002
        return True

    def has_spec(self, spec: TensorSpec) -> bool:
        return isinstance(spec.dtype, type) and spec.layout is not torch.jagged

    def count(self, leaf: Any) -> int:
        return len(leaf)

    def slice(self, leaf: Any, start: int, stop: int) -> Any:
        return _like(leaf, leaf[start:stop])

    def split(self, leaf: Any, sizes: Sequence[int]) -> Sequence[Any]:
        return [_like(leaf, leaf[window]) for window in windows(tuple(sizes))]

    def take(self, leaf: Any, rows: torch.Tensor) -> Any:
        return _like(leaf, [leaf[row] for row in rows.tolist()])

    def pool(self, leaves: Sequence[Any]) -> Callable[[torch.Tensor], Any]:
        return partial(self.take, join(self, leaves))

    def concat(self, leaves: Sequence[Any]) -> Any:
        return type(leaves[0])(chain.from_iterable(leaves))

    def iterate(self, leaf: Any) -> Iterable[Any]:
        return leaf  # type: ignore[no-any-return]

    def empty_like(self, leaf: Any) -> Any:
        return _like(leaf, [])

    def copy(self, leaf: Any) -> Any:
        return leaf

    def is_part(self, leaf: Any) -> bool:  # noqa: ARG002
        return False

    def num_bytes(self, leaf: Any) -> int:
        # Each so-many-th, an odd number: files that are read in turn make even periods.
        sample = leaf[:: max(1, len(leaf) // _SAMPLED) | 1]
        if set(map(type, sample)) <= _TEXT:  # the usual case, without a call of ours for each row
            found = sum(map(len, sample)) + _OBJECT_BYTES * len(sample)
        else:
            found = sum(bytes_of(part) for row in sample for part in flatten(row)[0])
        return found * len(leaf) // max(1, len(sample))

    def pad(self, leaf: Any, count: int, num_rows: int) -> Any:
        return self.take(leaf, last_repeated(count, num_rows))

    def spec(self, leaf: Any) -> TensorSpec:
        return TensorSpec((None,), self.outline(leaf))

    def outline(self, leaf: Any) -> Any:
        first = type(leaf[0]) if leaf else object
        return first if first in _TEXT else object

    def blank(self, spec: TensorSpec, num_rows: int, order: Order) -> Any:  # noqa: ARG002
        return [_BLANKS.get(spec.dtype)] * num_rows


def kind_of(leaf: Any) -> LeafKind:
    """Return the kind of a leaf.

    Raises:
        TypeError: for what cannot have rows.
        ValueError: for a bare number.
    """
    found = _BY_TYPE.get(type(leaf))
    if found is not None:
        return found
    for kind in KINDS:
        if isinstance(leaf, kind.leaf_type) and kind.has(leaf):
            return kind
    is_number = isinstance(leaf, (int, float, complex, np.generic))
    if type(leaf) in _TEXT:
        cure = "Make a list of the strings in a tuple, as default_collate gives them, in collate_fn"
    elif is_number:
        cure = "If collate_fn makes a single value, repeat it for each row, shape (rows,)"
    else:
        cure = (
            "If it holds a whole batch, hand over the examples by collate_fn=list and join them in "
            "the loop"
        )
    msg = (
        f"{EXPECTED}; got {leaf!r} of type {type(leaf).__name__}. {cure}, or let examples be "
        "batched by global_batch_size."
    )
    raise (ValueError if is_number else TypeError)(msg)


def zero_row_maker(leaf: Any) -> Callable[[], Any]:
    """What makes leaves like one that has no rows, each in memory of its own."""
    kind = kind_of(leaf)
    if kind is DENSE:  # called by itself torch takes two thirds of the time
        return partial(torch.empty_like, leaf)
    return partial(kind.empty_like, leaf)


DENSE, ARRAY, LIST, MIXED = _Dense(), _Array(), _List(), Mixed(kind_of)
KINDS: tuple[LeafKind, ...] = (DENSE, JAGGED, ARRAY, PACKED, LIST, MIXED)
_BY_TYPE = {
    torch.Tensor: DENSE,
    np.ndarray: ARRAY,
    PackedStrings: PACKED,
    list: LIST,
    Examples: LIST,
    MixedRows: MIXED,
}
"""Types that tell the kind by themselves, as almost all do: leaves are looked at per step."""


def kind_of_spec(spec: TensorSpec) -> LeafKind:
    """Return the kind of the leaves that a spec describes."""
    return next(kind for kind in KINDS if kind.has_spec(spec))


def is_selectable(leaf: Any) -> bool:
    """Whether ``index_select`` serves; indexing is slower, but keeps memory formats."""
    if not isinstance(leaf, torch.Tensor) or leaf.is_nested:
        return False
    return leaf.is_contiguous() and leaf.dtype not in _SIGNED


def bytes_of(value: Any) -> int:
    """Bytes of a row, or of a part of it."""
    if isinstance(value, (torch.Tensor, np.ndarray, PackedStrings, list)):
        return kind_of(value).num_bytes(value)
    if isinstance(value, (str, bytes)):
        return len(value) + _OBJECT_BYTES
    return _OBJECT_BYTES


def _like(leaf: Any, rows: list[Any]) -> list[Any]:
    return Examples(rows) if isinstance(leaf, Examples) else rows


def _make_no_dimension_error(leaf: Any) -> ValueError:
    msg = (
        f"A leaf of a batch needs rows (dimension 0), got a 0-dim {type(leaf).__name__} of dtype "
        f"{leaf.dtype}. Give it shape (rows, ...)."
    )
    return ValueError(msg)
