"""Static shapes: replica batches filled up to one number of rows, and a mask of the real ones.

Real rows come first. A full batch is passed through as it is; anything else is fresh memory, so
that nothing is written where the source, or a user who keeps batches, may still read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from torch_distinput.data.batch import rows
from torch_distinput.data.batch.jagged import jagged, longest_of
from torch_distinput.data.batch.tree import Structure, flatten, map_leaves
from torch_distinput.data.steps.local_step import ReplicaBatch
from torch_distinput.values import TensorSpec

Order = Sequence[int] | None
"""The dimensions of a dense tensor from the outermost in memory to the innermost."""

_BLANKS = {str: "", bytes: b""}


def padded(part: ReplicaBatch, num_rows: int) -> ReplicaBatch:
    """Fill a part that has rows up to ``num_rows``, and add the mask as its last leaf.

    The last real row is repeated, because what a loss makes of it is as finite as before: of rows
    of zeros a logarithm, or a norm's gradient, would not be. Jagged leaves get rows of no length.
    The ids stay those of the real rows.
    """
    count = len(part.ids)
    assert 0 < count <= num_rows, "no rule gives a replica more rows than its share of a full batch"
    leaves = part.leaves
    if count < num_rows:
        leaves = [_filled(leaf, count, num_rows) for leaf in leaves]
    return _masked(part, leaves, num_rows)


def blank(
    part: ReplicaBatch, num_rows: int, spec: Any, orders: Sequence[Order] | None
) -> ReplicaBatch:
    """Fill a part without rows by zeros, empty strings and None; its mask is False throughout.

    Args:
        part: the part.
        num_rows: rows to fill it with.
        spec: of the batch.
        orders: for each leaf the order of its dimensions in memory, which compiled code depends on
            as on its shape; None where nothing is known of it.
    """
    specs = flatten(spec)[0]
    pairs = zip(specs, orders or [None] * len(specs), strict=True)
    return _masked(part, [_blank(leaf, num_rows, order) for leaf, order in pairs], num_rows)


def order_of(leaf: Any) -> Order:
    """How the dimensions of a leaf lie in memory; None if it is no dense tensor."""
    if not isinstance(leaf, torch.Tensor) or leaf.is_nested:
        return None
    return sorted(range(leaf.ndim), key=leaf.stride, reverse=True)


def padded_spec(spec: Any, num_rows: int) -> Any:
    """The spec of a batch together with its mask, from that of the batch."""
    filled = map_leaves(lambda leaf: replace(leaf, shape=(num_rows, *leaf.shape[1:])), spec)
    return filled, TensorSpec((num_rows,), torch.bool)


def _masked(part: ReplicaBatch, leaves: Sequence[Any], num_rows: int) -> ReplicaBatch:
    # A new mask for each batch: users may write into theirs.
    mask = torch.ones(num_rows, dtype=torch.bool, device="cpu")
    if len(part.ids) < num_rows:
        mask[len(part.ids) :] = False
    return ReplicaBatch([*leaves, mask], _with_mask(part.structure), part.ids)


@lru_cache(maxsize=8)  # else the code that builds it would be compiled for each step
def _with_mask(structure: Structure) -> Structure:
    return Structure(tuple, (0, 1), (structure, Structure(None)))


def _filled(leaf: Any, count: int, num_rows: int) -> Any:
    if isinstance(leaf, torch.Tensor) and leaf.is_nested:
        offsets = leaf.offsets()  # type: ignore[attr-defined]
        ends = offsets[-1:].expand(num_rows - count)
        return jagged(leaf.values().clone(), torch.cat([offsets, ends]), longest_of(leaf))
    device = leaf.device if isinstance(leaf, torch.Tensor) else "cpu"
    return rows.take_leaf(leaf, torch.arange(num_rows, device=device).clamp_(max=count - 1))


def _blank(spec: TensorSpec, num_rows: int, order: Order) -> Any:
    shape = (num_rows, *(size or 0 for size in spec.shape[1:]))
    if spec.layout is torch.jagged:
        values = torch.empty((0, *shape[2:]), dtype=spec.dtype, device="cpu")
        return jagged(values, torch.zeros(num_rows + 1, dtype=torch.int64, device="cpu"))
    if isinstance(spec.dtype, torch.dtype):
        order = list(range(len(shape)) if order is None else order)
        return torch.empty_permuted(shape, order, dtype=spec.dtype, device="cpu").zero_()
    if isinstance(spec.dtype, np.dtype):
        return np.full(shape, None) if spec.dtype.hasobject else np.zeros(shape, spec.dtype)
    return [_BLANKS.get(spec.dtype)] * num_rows
