"""The shape of a batch without its rows: specs, and zero-row batches made from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from torch_distinput.data.batch.leaf_kinds import kind_of, kind_of_spec
from torch_distinput.data.batch.tree import Batch, flatten, leaf_names, map_leaves, unflatten
from torch_distinput.values import TensorSpec


def spec_of(batch: Batch) -> Any:
    """Return the structure of a batch with a :class:`TensorSpec` for each leaf."""
    return map_leaves(lambda leaf: kind_of(leaf).spec(leaf), batch)


def outline_of(leaves: Iterable[Any]) -> list[Any]:
    """What tells the specs of leaves apart, at less cost than the specs."""
    return [kind_of(leaf).outline(leaf) for leaf in leaves]


def zero_rows(spec: Any) -> Batch:
    """Return a batch of zero rows that fits a spec; unknown trailing sizes are 0."""
    return map_leaves(lambda leaf: kind_of_spec(leaf).blank(leaf, 0, None), spec)


def merge_specs(one: Any, other: Any) -> Any:
    """Return the spec that two batches share: sizes that differ between them become None."""
    leaves, structure = flatten(one)
    others, other_structure = flatten(other)
    if structure != other_structure:
        return one
    pairs = zip(leaves, others, strict=True)
    return unflatten(structure, [_merge_leaf(left, right) for left, right in pairs])


def same_kinds(one: Any, other: Any) -> bool:
    """Whether specs have one structure and dtypes; sizes, and what lists hold, may vary."""
    leaves, structure = flatten(one)
    others, other_structure = flatten(other)
    return structure == other_structure and all(map(same_kind, leaves, others))


def name_difference(one: Any, other: Any) -> tuple[str, str]:
    """What each of two specs has where their kinds differ first: a leaf, or all their leaves."""
    leaves, structure = flatten(one)
    others, other_structure = flatten(other)
    names = leaf_names(structure, "batch")
    if structure != other_structure:
        return f"the leaves {names}", f"{leaf_names(other_structure, 'batch')}"
    for name, left, right in zip(names, leaves, others, strict=True):
        if not same_kind(left, right):
            return f"{_shown(left)} at {name}", _shown(right)
    return repr(one), repr(other)


def _shown(spec: TensorSpec) -> str:
    packed = "packed " if isinstance(spec.dtype, type) and spec.layout is torch.jagged else ""
    return packed + (spec.dtype.__name__ if isinstance(spec.dtype, type) else str(spec.dtype))


def same_kind(one: TensorSpec, other: TensorSpec) -> bool:
    """Whether two leaves have the same dtype, or are both lists, or both packed alike.

    Arrays that torch cannot share need the same kind of dtype only: text may be longer in one. But
    times of other units do not join: NumPy takes the finer one, in which far dates become others.
    """
    if isinstance(one.dtype, type) or isinstance(other.dtype, type):
        lists = isinstance(one.dtype, type) and isinstance(other.dtype, type)
        packed = torch.jagged in (one.layout, other.layout)  # of which text and bytes do not join
        return lists and (not packed or (one.dtype, one.layout) == (other.dtype, other.layout))
    if isinstance(one.dtype, np.dtype) and isinstance(other.dtype, np.dtype):
        times = one.dtype.kind in "mM"
        return one.dtype == other.dtype if times else one.dtype.kind == other.dtype.kind
    return bool(one.dtype == other.dtype)


def _merge_leaf(one: TensorSpec, other: TensorSpec) -> TensorSpec:
    if one == other or len(one.shape) != len(other.shape):
        return one
    sizes = zip(one.shape, other.shape, strict=True)
    shape = tuple(left if left == right else None for left, right in sizes)
    return TensorSpec(shape, one.dtype, one.layout)
