"""The shape of a batch without its rows: specs, and zero-row batches made from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
import torch

from torch_distinput.data.batch.leaf_kinds import kind_of, kind_of_spec
from torch_distinput.data.batch.structure import Structure
from torch_distinput.data.batch.tree import (
    Batch,
    flatten,
    leaf_names,
    map_leaves,
    name_child,
    unflatten,
)
from torch_distinput.values import TensorSpec

_MOST_NAMED = 8
_LIST = "a list, or None"
"""Whatever a list holds; where no example of a batch has a text, say, there is None."""


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


def same_kind(one: TensorSpec, other: TensorSpec) -> bool:
    """Whether two leaves have the same dtype, or are both lists, or both packed alike."""
    return _name_kind(one) == _name_kind(other)


def name_kinds(spec: Any, *, of_examples: bool = False) -> dict[str, str]:
    """The kind of each leaf and the class of each container, by their names in a batch.

    Equal for batches of one structure whose leaves are of the same kinds; keys of mappings may come
    in any order.

    Args:
        spec: of a batch.
        of_examples: it is made of examples. A list of numbers in each of them is a container, which
            may be longer in another batch; and where no example has a text, there is None. The
            number of dimensions is that of each example.
    """
    leaves, structure = flatten(spec)
    name = _name_stacked if of_examples else _name_kind
    return dict(_name_nodes(structure, map(name, leaves), "batch", of_examples))


def _name_nodes(
    structure: Structure, kinds: Iterator[str], name: str, of_examples: bool
) -> Iterator[tuple[str, str]]:
    if structure.kind is None:
        yield name, next(kinds)
    elif structure.kind is type(None) and of_examples:
        yield name, _LIST
    else:
        yield name, structure.kind.__name__
        children = [
            list(_name_nodes(child, kinds, name_child(name, key), of_examples))
            for key, child in zip(structure.keys, structure.children, strict=True)
        ]
        is_list = structure.kind is tuple and all(len(child) == 1 for child in children)
        if of_examples and is_list and len({kind for ((_, kind),) in children}) == 1:
            yield f"{name}[...]", children[0][0][1]
        else:
            yield from chain.from_iterable(children)


def name_texts(spec: Any) -> dict[str, str]:
    """Which lists are of text and which of bytes, by their names; of lists of None nobody knows."""
    leaves, structure = flatten(spec)
    return {
        name: f"a list of {leaf.dtype.__name__}"
        for name, leaf in zip(leaf_names(structure), leaves, strict=True)
        if leaf.dtype in (str, bytes) and leaf.layout is not torch.jagged
    }


def name_difference(one: Mapping[str, str], other: Mapping[str, str]) -> tuple[str, str]:
    """What each of two batches has where their kinds, which are not the same, differ first."""
    for name, kind in one.items():
        if other.get(name, kind) != kind:
            return f"{kind} at {name}", other[name]
    return _name_parts(one, other), _name_parts(other, one)


def _name_parts(own: Mapping[str, str], other: Mapping[str, str]) -> str:
    """The names of leaves and containers, those first that the other batch has not."""
    names = sorted(own, key=other.__contains__)
    more = len(names) - _MOST_NAMED
    return f"the parts {names[:_MOST_NAMED]}{f' and {more} more' if more > 0 else ''}"


def _name_kind(leaf: TensorSpec) -> str:
    """What two leaves have in common that are of the same kind.

    Arrays that torch cannot share need the same kind of dtype only: text may be longer in one. But
    times of other units do not join: NumPy takes the finer one, in which far dates become others.
    Nor do packed text and bytes, while a list holds anything.
    """
    if isinstance(leaf.dtype, np.dtype):
        is_time = leaf.dtype.kind in "mM"
        return f"array of {leaf.dtype}" if is_time else f"array of kind {leaf.dtype.kind!r}"
    if isinstance(leaf.dtype, type):
        return f"packed {leaf.dtype.__name__}" if leaf.layout is torch.jagged else _LIST
    return str(leaf.dtype)


def _name_stacked(leaf: TensorSpec) -> str:
    """What examples have in common that may be in one batch."""
    if isinstance(leaf.dtype, type) or len(leaf.shape) == 1:
        return _name_kind(leaf)
    return f"{_name_kind(leaf)} of {len(leaf.shape)} dimensions"


def _merge_leaf(one: TensorSpec, other: TensorSpec) -> TensorSpec:
    if one == other or len(one.shape) != len(other.shape):
        return one
    sizes = zip(one.shape, other.shape, strict=True)
    shape = tuple(left if left == right else None for left, right in sizes)
    return TensorSpec(shape, one.dtype, one.layout)
