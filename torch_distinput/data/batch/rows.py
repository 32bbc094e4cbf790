"""The rows of batches: count, slice, take, concatenate, and none at all; leaf by leaf."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from torch_distinput.data.batch.leaf_kind import is_masked, make_masked_array_error
from torch_distinput.data.batch.leaf_kinds import bytes_of, kind_of
from torch_distinput.data.batch.structure import Structure
from torch_distinput.data.batch.tree import (
    Batch,
    flatten,
    flatten_example,
    leaf_names,
    leaves_like,
    map_leaves,
    name_child,
    unflatten,
)

_PAIR = 2
"""Columns that are nearly always there: inputs and labels."""
_MOST_NAMED = 16
"""Leaves in a message."""


def num_rows(batch: Batch) -> int:
    """Return the number of rows that all leaves share.

    Raises:
        TypeError: for a leaf that cannot have rows.
        ValueError: for a leaf with 0 dimensions, leaves of different row counts, or no leaf.
    """
    leaves, structure = flatten(batch)
    counts = [kind_of(leaf).count(leaf) for leaf in leaves]
    if counts and all(count == counts[0] for count in counts):
        return counts[0]
    pairs = list(zip(leaf_names(structure), counts, strict=True))
    named = ", ".join(f"{name}: {count}" for name, count in pairs[:_MOST_NAMED])
    more = f" and {len(pairs) - _MOST_NAMED} more" if len(pairs) > _MOST_NAMED else ""
    msg = (
        "All leaves of a batch need the same number of rows (dimension 0), got "
        f"{named or 'a batch without any leaf'}{more}. Check the collate_fn or the dataset."
    )
    raise ValueError(msg)


def check_row_count(batch: Batch, num_examples: int) -> None:
    """Refuse a batch that has merged or dropped examples: the counts would lie."""
    try:
        count = num_rows(batch)
    except (TypeError, ValueError):
        refuse_lists(batch, num_examples)
        raise
    if count != num_examples:
        refuse_lists(batch, num_examples)
        pack = " tdi.pack() joins documents into rows of one length." if count == 1 else ""
        msg = (
            "Expected the collate_fn to return one row per example, got "
            f"{count} {'row' if count == 1 else 'rows'} for {num_examples} examples. Filter the "
            f"dataset instead of the batch.{pack}"
        )
        raise ValueError(msg)


def refuse_lists(batch: Batch, num_examples: int) -> None:
    """Refuse lists with something of each of the examples: they are lists of columns.

    Of two examples a pair of columns is as long.
    """
    if num_examples <= _PAIR:
        return
    for name, parts in find_lists(batch, num_examples):
        if all(parts):
            raise _make_list_error(name, num_examples)


def refuse_own_lists(batch: Batch, examples: Sequence[Any]) -> None:
    """Refuse lists that hold a value of each example; these may be as long by chance.

    A tensor that was made of a value is known by what is in it: not where it is in the next example
    as well, nor of two examples, since a pair of columns may be equal to them, too.
    """
    others = [*examples[1:], *examples[:1]]
    for name, parts in find_lists(batch, len(examples)):
        is_own = _hold_each(parts, examples, operator.is_)
        if not is_own and len(examples) > _PAIR and _hold_each(parts, examples, _is_equal):
            is_own = not _hold_each(parts, others, _is_equal)
        if is_own:
            raise _make_list_error(name, len(examples))


def refuse_made_lists(batch: Batch, examples: Sequence[Any]) -> None:
    """Refuse lists with a part of one kind for each example, in its shape; more than a pair.

    They were made of the examples, most likely. Columns are seldom of one kind, nor have they the
    shape of an example each.
    """
    for name, parts in find_lists(batch, len(examples)):
        dense = [filter(_is_dense, part) for part in parts]
        kinds = {tuple((leaf.dtype, leaf.shape[1:]) for leaf in part) for part in dense}
        is_pair = len(parts) <= _PAIR
        if not is_pair and len(kinds) == 1 and _hold_each(parts, examples, _is_alike):
            raise _make_list_error(name, len(examples))


def _hold_each(
    parts: list[list[Any]], examples: Sequence[Any], fits: Callable[[Any, Any], bool]
) -> bool:
    """Whether a leaf of each part fits a tensor, array or list that is in its example."""
    return all(
        any(fits(leaf, value) for leaf in part for value in _values_in(example))
        for part, example in zip(parts, examples, strict=True)
    )


def _values_in(example: Any) -> Iterator[Any]:
    """The tensors and arrays of an example, and its lists, which are containers there."""
    yield from filter(_is_dense, flatten_example(example)[0])
    waiting = [example]
    while waiting:
        value = waiting.pop()
        if isinstance(value, (list, tuple, dict)):
            waiting += value.values() if isinstance(value, dict) else value
            if isinstance(value, list):
                yield value


def _is_equal(leaf: Any, value: Any) -> bool:
    """Whether it may be a tensor that was made of that value."""
    if not _is_dense(leaf):
        return leaf is value
    size = value.shape if _is_dense(value) else (len(value), *leaf.shape[1:])
    if not leaf.shape or tuple(leaf.shape) != tuple(size):
        return False
    try:
        return bool(np.array_equal(np.asarray(leaf), np.asarray(value)))
    except (TypeError, ValueError, RuntimeError):  # on a device, with gradients, not of numbers
        return False


def _is_alike(leaf: Any, value: Any) -> bool:
    return _is_dense(leaf) and _is_dense(value) and tuple(leaf.shape) == tuple(value.shape)


def _is_dense(leaf: Any) -> bool:
    return isinstance(leaf, (torch.Tensor, np.ndarray))


def find_lists(batch: Batch, length: int) -> Iterator[tuple[str, list[list[Any]]]]:
    """Lists and tuples of so many containers or tensors: their names, and the leaves of each part.

    Not those of one, which may as well be its only column.
    """
    leaves, structure = flatten(batch)
    if length > 1:
        for name, bounds in _find_lists(structure, length, "batch", 0):
            yield name, [leaves[start:stop] for start, stop in pairwise(bounds)]


def _find_lists(
    structure: Structure, length: int, name: str, first: int
) -> Iterator[tuple[str, list[int]]]:
    """The names of those lists, and where the leaves of each part lie, from ``first`` on."""
    if structure.num_leaves < length:
        return
    children = structure.children
    sizes = [child.num_leaves for child in children]
    if structure.kind in (list, tuple) and len(children) == length:
        yield name, list(accumulate(sizes, initial=first))
    for key, child, size in zip(structure.keys, children, sizes, strict=True):
        if size >= length:
            yield from _find_lists(child, length, name_child(name, key), first)
        first += size


def _make_list_error(name: str, num_examples: int) -> ValueError:
    return ValueError(
        f"Expected the collate_fn to return columns, each with one row for each of {num_examples} "
        f"examples, got a list or tuple with something for each example at {name}: it would be "
        f"taken for {num_examples} columns. Stack or pad what is in it (torch.stack, pad_collate), "
        "make it one jagged tensor (torch.nested.nested_tensor(..., layout=torch.jagged)), or "
        "keep each example in an object of a class of your own, which is one row. If there are as "
        "many columns as examples, return them in a dict."
    )


def slice_rows(batch: Batch, start: int, stop: int) -> Batch:
    """Return the rows from ``start`` (inclusive) to ``stop`` (exclusive) as views."""
    if start == stop:
        return drop_rows(batch)
    leaves, structure = flatten(batch)
    return structure.build([kind_of(leaf).slice(leaf, start, stop) for leaf in leaves])


def take_rows(batch: Batch, indices: NDArray[np.int64]) -> Batch:
    """Return the rows at ``indices``, in that order, as copies."""
    rows = torch.from_numpy(indices)
    return map_leaves(lambda leaf: kind_of(leaf).take(leaf, rows), batch)


def concat_rows(batches: Sequence[Batch]) -> Batch:
    """Join batches of one structure; a single one is returned as it is."""
    if len(batches) == 1:
        return batches[0]
    structure, columns = _columns(batches)
    return unflatten(structure, [kind_of(column[0]).concat(column) for column in columns])


@final
class RowPool:
    """Rows of batches of one structure, to be taken in any order without joining text first."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        """Keep the batches; numbers, which are small, are joined."""
        self._structure, columns = _columns(batches)
        self._takes = [kind_of(column[0]).pool(column) for column in columns]

    def take(self, indices: NDArray[np.int64]) -> Batch:
        """Return the rows at ``indices``, counted through all batches, as copies."""
        rows = torch.from_numpy(indices)
        return unflatten(self._structure, [take(rows) for take in self._takes])


def _columns(batches: Sequence[Batch]) -> tuple[Structure, list[tuple[Any, ...]]]:
    """The structure of batches that are to be joined, and for each leaf those of all batches."""
    structure = flatten(batches[0])[1]
    flat = [leaves_like(batch, structure) for batch in batches]
    odd = next((batch for batch, leaves in zip(batches, flat, strict=True) if leaves is None), None)
    if odd is not None:
        expected, got = (", ".join(leaf_names(s)) for s in (structure, flatten(odd)[1]))
        msg = (
            f"Expected batches of one structure to join, got one of {expected} and one of {got}. "
            "Give all of them the same keys and containers."
        )
        raise ValueError(msg)
    return structure, list(zip(*(leaves for leaves in flat if leaves is not None), strict=True))


def iterate_rows(batch: Batch) -> Iterator[Any]:
    """Yield the rows one by one, in the structure of the batch; rows of tensors are views."""
    leaves, structure = flatten(batch)
    if structure.kind is None:
        yield from kind_of(leaves[0]).iterate(leaves[0])
        return
    for row in zip(*(kind_of(leaf).iterate(leaf) for leaf in leaves), strict=True):
        yield unflatten(structure, row)


def drop_rows(batch: Batch) -> Batch:
    """Return a batch like this one with zero rows and storage of its own."""
    return map_leaves(lambda leaf: kind_of(leaf).empty_like(leaf), batch)


def copy_rows(batch: Batch) -> Batch:
    """Return a batch that shares no memory with this one."""
    return map_leaves(lambda leaf: kind_of(leaf).copy(leaf), batch)


def compact(batch: Batch) -> Batch:
    """Copy the leaves that are part of something larger, which they would keep alive or send."""
    return map_leaves(_compact_leaf, batch)


def _compact_leaf(leaf: Any) -> Any:
    kind = kind_of(leaf)
    return kind.copy(leaf) if kind.is_part(leaf) else leaf


def num_bytes(batch: Batch) -> int:
    """Bytes held by tensors and arrays, and roughly by strings."""
    return sum(map(bytes_of, flatten(batch)[0]))


def with_tensors(batch: Batch) -> Batch:
    """Turn NumPy arrays into tensors, as ``default_convert`` does; shares memory if it can."""
    return map_leaves(as_tensor, batch)


def with_shared_tensors(batch: Batch) -> Batch:
    """Turn into tensors the NumPy arrays whose memory torch can share; copy none of them."""
    return map_leaves(lambda leaf: as_tensor(leaf) if _is_shareable(leaf) else leaf, batch)


def as_tensor(leaf: Any) -> Any:
    """Turn an array into a tensor that shares its memory if it can.

    Raises:
        TypeError: for an array with a mask.
    """
    if not isinstance(leaf, np.ndarray):
        return leaf
    if is_masked(type(leaf)):
        raise make_masked_array_error("a leaf")
    if not _is_shareable(leaf):
        leaf = leaf.astype(leaf.dtype.newbyteorder("="))  # a copy, forwards in memory
    try:
        return torch.from_numpy(leaf)
    except TypeError:  # torch has no strings and no objects: they stay arrays
        return leaf


def _is_shareable(leaf: Any) -> bool:
    """Whether torch may use an array's memory: no way backwards, and it writes if told to."""
    if not isinstance(leaf, np.ndarray):
        return False
    forwards = all(stride >= 0 for stride in leaf.strides)
    return bool(leaf.dtype.isnative and leaf.flags.writeable and forwards)
