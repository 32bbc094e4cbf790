"""Jagged tensors: the one place where they are made, and what is done with their rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, final

import torch

from torch_distinput.data.batch.leaf_kind import (
    LeafKind,
    Order,
    join,
    make_layout_error,
    open_shape,
    windows,
)
from torch_distinput.values import TensorSpec

_torchs_log = logging.getLogger("torch.fx._symbolic_trace")


@final
class _Jagged(LeafKind):
    leaf_type = torch.Tensor

    def has(self, leaf: Any) -> bool:
        return bool(leaf.is_nested)

    def has_spec(self, spec: TensorSpec) -> bool:
        return spec.layout is torch.jagged and isinstance(spec.dtype, torch.dtype)

    def count(self, leaf: Any) -> int:
        if leaf.layout is not torch.jagged or leaf.lengths() is not None:  # rows with gaps between
            raise make_layout_error(leaf)
        if not has_ragged_rows(leaf):
            msg = (
                "Expected jagged tensors of shape (rows, length, ...), got one of shape "
                f"{tuple(leaf.shape)}, transposed. Transpose it where the batch is used."
            )
            raise TypeError(msg)
        return int(leaf.shape[0])

    def slice(self, leaf: Any, start: int, stop: int) -> Any:
        offsets = leaf.offsets()[start : stop + 1]
        values = leaf.values()[offsets[0] : offsets[-1]]
        # The batch's, so that a piece is padded to one width, however many there are.
        return make_jagged(values, offsets - offsets[0], longest_row(leaf))

    def split(self, leaf: Any, sizes: Sequence[int]) -> Sequence[Any]:
        return [self.slice(leaf, window.start, window.stop) for window in windows(tuple(sizes))]

    def take(self, leaf: Any, rows: torch.Tensor) -> Any:
        return self.concat([self.slice(leaf, row, row + 1) for row in rows.tolist()])

    def pool(self, leaves: Sequence[Any]) -> Callable[[torch.Tensor], Any]:
        return partial(self.take, join(self, leaves))

    def concat(self, leaves: Sequence[Any]) -> Any:
        lengths = torch.cat([leaf.offsets().diff() for leaf in leaves])
        offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
        longest = max(map(longest_row, leaves))
        values = [leaf.values()[leaf.offsets()[0] : leaf.offsets()[-1]] for leaf in leaves]
        return make_jagged(torch.cat(values), offsets, longest)

    def iterate(self, leaf: Any) -> Iterable[Any]:
        return leaf.unbind()  # type: ignore[no-any-return]

    def empty_like(self, leaf: Any) -> Any:
        values = leaf.values()
        none, offsets = values.new_empty((0, *values.shape[1:])), leaf.offsets().new_zeros(1)
        return make_jagged(none, offsets, longest_row(leaf))

    def copy(self, leaf: Any) -> Any:
        return leaf.clone()

    def is_part(self, leaf: Any) -> bool:
        return bool(leaf.values().nbytes < leaf.values().untyped_storage().nbytes())

    def num_bytes(self, leaf: Any) -> int:
        return int(leaf.values().nbytes)

    def pad(self, leaf: Any, count: int, num_rows: int) -> Any:
        offsets = leaf.offsets()
        ends = offsets[-1:].expand(num_rows - count)
        return make_jagged(leaf.values().clone(), torch.cat([offsets, ends]), longest_row(leaf))

    def spec(self, leaf: Any) -> TensorSpec:
        return TensorSpec((None, None, *leaf.values().shape[1:]), leaf.dtype, torch.jagged)

    def outline(self, leaf: Any) -> Any:
        return self.spec(leaf)

    def blank(self, spec: TensorSpec, num_rows: int, order: Order) -> Any:  # noqa: ARG002
        trailing = open_shape(spec, num_rows)[2:]
        values = torch.empty((0, *trailing), dtype=spec.dtype, device="cpu")
        return make_jagged(values, torch.zeros(num_rows + 1, dtype=torch.int64, device="cpu"))


JAGGED = _Jagged()


def make_jagged(
    values: torch.Tensor, offsets: torch.Tensor, longest: int | None = None
) -> torch.Tensor:
    """``torch.nested.nested_tensor_from_jagged``, with a ``max_seqlen``.

    It is the width that rows are padded to, as with ``torch.nested.nested_tensor``; without one
    torch would take the length of all rows together.

    Args:
        values: the rows, one after another.
        offsets: where they begin, and the end.
        longest: of the batch that the rows are from; None: that of the rows.
    """
    if longest is None:
        longest = _longest(offsets)
    before = _torchs_log.disabled
    _torchs_log.disabled = True  # torch 2.13 warns of a function of its own that will be renamed
    try:
        return torch.nested.nested_tensor_from_jagged(values, offsets, max_seqlen=longest)
    finally:
        _torchs_log.disabled = before


def has_ragged_rows(tensor: torch.Tensor) -> bool:
    """Whether dimension 1 is that of the lengths; else it was transposed, and so are its values."""
    return type(tensor.shape[1]) is not int


def longest_row(tensor: torch.Tensor) -> int:
    """The ``max_seqlen`` of a jagged tensor, which may be set higher; else its longest row."""
    found: int | None = getattr(tensor, "_maybe_max_seqlen", None)  # torch has no public name
    return _longest(tensor.offsets()) if found is None else found  # type: ignore[attr-defined]


def _longest(offsets: torch.Tensor) -> int:
    return int(offsets.diff().max()) if len(offsets) > 1 else 0
