"""The rows of leaves and batches: count, slice, take, concatenate, and none at all.

Each function is a dispatch over the kinds of leaf: dense tensors, jagged tensors, NumPy arrays and
lists. Slices are views; a batch without rows never keeps the storage of a large one alive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torch_distinput.data.batch.jagged import jagged, longest_of
from torch_distinput.data.batch.tree import (
    Batch,
    Examples,
    flatten,
    leaf_names,
    leaves_like,
    map_leaves,
    unflatten,
)

_TEXT = {str, bytes}
_OBJECT_BYTES = 56
"""What a Python object takes beside its content, about."""
_INDEXED_ONLY = {torch.uint16, torch.uint32, torch.uint64}
"""Types for which torch has no index_select."""
_KINDS = "Leaves are dense or jagged tensors, NumPy arrays and lists, with one row per example"


def num_rows(batch: Batch) -> int:
    """Return the number of rows that all leaves share.

    Raises:
        TypeError: for a leaf that cannot have rows.
        ValueError: for a leaf with 0 dimensions, leaves of different row counts, or no leaf.
    """
    leaves, structure = flatten(batch)
    counts = [leaf_rows(leaf) for leaf in leaves]
    if counts and all(count == counts[0] for count in counts):
        return int(counts[0])
    named = ", ".join(f"{n}: {c}" for n, c in zip(leaf_names(structure), counts, strict=True))
    msg = (
        "All leaves of a batch need the same number of rows (dimension 0), got "
        f"{named or 'a batch without any leaf'}. Check the collate_fn or the dataset."
    )
    raise ValueError(msg)


def check_row_count(batch: Batch, num_examples: int) -> None:
    """Refuse a batch that has merged or dropped examples: the counts would lie."""
    count = num_rows(batch)
    if count != num_examples:
        msg = (
            f"Expected the collate_fn to return one row per example, got {count} rows for "
            f"{num_examples} examples. Filter the dataset instead of the batch."
        )
        raise ValueError(msg)


def leaf_rows(leaf: Any) -> int:
    """Return the number of rows of one leaf."""
    if isinstance(leaf, (torch.Tensor, np.ndarray)):
        if leaf.ndim == 0:
            msg = (
                "A leaf of a batch needs rows (dimension 0), got a 0-dim "
                f"{type(leaf).__name__} of dtype {leaf.dtype}. Give it shape (rows, ...)."
            )
            raise ValueError(msg)
        if isinstance(leaf, torch.Tensor):
            _check_layout(leaf)
        return int(leaf.shape[0])
    if isinstance(leaf, list):
        return len(leaf)
    msg = (
        f"{_KINDS}; got {leaf!r} of type {type(leaf).__name__}. Give a bare value a row of its "
        "own, shape (1,), or let examples be batched by global_batch_size."
    )
    raise (ValueError if isinstance(leaf, (int, float, complex, np.generic)) else TypeError)(msg)


def _check_layout(tensor: torch.Tensor) -> None:
    """Refuse sparse and quantized tensors, and nested ones whose rows do not follow each other."""
    if tensor.is_nested:
        sound = tensor.layout is torch.jagged and tensor.lengths() is None  # type: ignore[attr-defined]
    else:  # a quantizer would be lost where a batch has no rows
        sound = tensor.layout is torch.strided and not tensor.is_quantized
    if not sound:
        what = "nested " * tensor.is_nested + "quantized " * tensor.is_quantized
        msg = (
            f"{_KINDS}; got a {what}tensor of layout {tensor.layout}. Convert it with to_dense() "
            "or dequantize(), or to a contiguous jagged tensor."
        )
        raise TypeError(msg)


def with_tensors(batch: Batch) -> Batch:
    """Turn NumPy arrays into tensors, as ``default_convert`` does; shares memory if it can."""
    return map_leaves(as_tensor, batch)


def with_shared_tensors(batch: Batch) -> Batch:
    """Turn into tensors the NumPy arrays whose memory torch can share; copy none of them."""
    return map_leaves(lambda leaf: as_tensor(leaf) if _is_shareable(leaf) else leaf, batch)


def slice_rows(batch: Batch, start: int, stop: int) -> Batch:
    """Return the rows from ``start`` (inclusive) to ``stop`` (exclusive) as views."""
    if start == stop:
        return no_rows(batch)
    return map_leaves(lambda leaf: _slice(leaf, start, stop), batch)


def split_leaf(leaf: Any, sizes: Sequence[int]) -> Sequence[Any]:
    """Cut the rows of a leaf into views, one for each size."""
    if isinstance(leaf, torch.Tensor) and not leaf.is_nested:
        return _pieces(leaf, sizes)
    return [_slice(leaf, window.start, window.stop) for window in windows(tuple(sizes))]


@lru_cache(maxsize=64)
def windows(sizes: tuple[int, ...]) -> tuple[slice, ...]:
    """Where pieces of these sizes lie, one behind the other."""
    return tuple(slice(*bounds) for bounds in pairwise(accumulate(sizes, initial=0)))


def take_rows(batch: Batch, indices: NDArray[np.int64]) -> Batch:
    """Return the rows at ``indices``, in that order, as copies."""
    rows = torch.from_numpy(indices)
    return map_leaves(lambda leaf: take_leaf(leaf, rows), batch)


def concat_rows(batches: Sequence[Batch]) -> Batch:
    """Join batches of one structure; a single one is returned as it is."""
    if len(batches) == 1:
        return batches[0]
    structure = flatten(batches[0])[1]
    flat = [leaves_like(batch, structure) for batch in batches]
    odd = next((batch for batch, leaves in zip(batches, flat, strict=True) if leaves is None), None)
    if odd is not None:
        expected, got = (", ".join(leaf_names(s)) for s in (structure, flatten(odd)[1]))
        msg = f"Expected batches of one structure to join, got one of {expected} and one of {got}."
        raise ValueError(msg)
    columns = zip(*(leaves for leaves in flat if leaves is not None), strict=True)
    return unflatten(structure, [_concat(column) for column in columns])


def examples(batch: Batch) -> Iterator[Any]:
    """Yield the rows one by one, in the structure of the batch; rows of tensors are views."""
    leaves, structure = flatten(batch)
    if structure.kind is None:
        yield from _unbound(leaves[0])
        return
    for row in zip(*map(_unbound, leaves), strict=True):
        yield unflatten(structure, row)


def no_rows(batch: Batch) -> Batch:
    """Return a batch like this one with zero rows and storage of its own."""
    return map_leaves(empty_leaf, batch)


def copied(batch: Batch) -> Batch:
    """Return a batch that shares no memory with this one."""
    return map_leaves(_copy, batch)


def compact(batch: Batch) -> Batch:
    """Copy the leaves that are part of something larger, which they would keep alive or send."""
    return map_leaves(lambda leaf: _copy(leaf) if _is_part(leaf) else leaf, batch)


def num_bytes(batch: Batch) -> int:
    """Bytes held by tensors and arrays, and roughly by strings."""
    return sum(map(leaf_bytes, flatten(batch)[0]))


def _is_shareable(leaf: Any) -> bool:
    """Whether torch may use an array's memory: no way backwards, and it writes if told to."""
    if not isinstance(leaf, np.ndarray):
        return False
    forwards = all(stride >= 0 for stride in leaf.strides)
    return bool(leaf.dtype.isnative and leaf.flags.writeable and forwards)


def as_tensor(leaf: Any) -> Any:
    """Turn an array into a tensor that shares its memory if it can."""
    if not isinstance(leaf, np.ndarray):
        return leaf
    if not _is_shareable(leaf):
        leaf = leaf.astype(leaf.dtype.newbyteorder("="))  # a copy, forwards in memory
    try:
        return torch.from_numpy(leaf)
    except TypeError:  # torch has no strings and no objects: they stay arrays
        return leaf


def _unbound(leaf: Any) -> Iterable[Any]:
    return leaf.unbind() if isinstance(leaf, torch.Tensor) else leaf


def leaf_bytes(leaf: Any) -> int:
    """Bytes of one leaf."""
    if isinstance(leaf, torch.Tensor):
        dense = leaf.values() if leaf.is_nested else leaf
        return int(dense.nbytes) if dense.layout is torch.strided else 0
    if isinstance(leaf, np.ndarray):
        return int(leaf.nbytes) + (leaf_bytes(leaf.tolist()) if leaf.dtype == object else 0)
    if isinstance(leaf, (str, bytes)):
        return len(leaf) + _OBJECT_BYTES
    if isinstance(leaf, (list, tuple)):
        if set(map(type, leaf)) <= _TEXT:  # the usual case, without a call of ours for each row
            return sum(map(len, leaf)) + _OBJECT_BYTES * len(leaf)
        return sum(num_bytes(row) for row in leaf)
    return _OBJECT_BYTES


def _slice(leaf: Any, start: int, stop: int) -> Any:
    if isinstance(leaf, torch.Tensor) and leaf.is_nested:
        offsets = leaf.offsets()[start : stop + 1]  # type: ignore[attr-defined]
        values = leaf.values()[offsets[0] : offsets[-1]]
        # The batch's, so that a piece is padded to one width, however many there are.
        return jagged(values, offsets - offsets[0], longest_of(leaf))
    if isinstance(leaf, torch.Tensor):
        return _pieces(leaf, (start, stop - start, len(leaf) - stop))[1]
    rows = leaf[start:stop]
    return Examples(rows) if isinstance(leaf, Examples) else rows


def _pieces(tensor: torch.Tensor, sizes: Sequence[int]) -> Sequence[torch.Tensor]:
    """Cut a tensor into tensors that share its memory, and nothing else.

    To autograd ordinary views are one tensor: what a user changes in place in one replica's batch,
    or in one step's, would invalidate what was saved for backward of another's.
    """
    return torch.unsafe_split_with_sizes(tensor, sizes)


def take_leaf(leaf: Any, rows: torch.Tensor) -> Any:
    """Return the rows of a leaf, as a copy."""
    if isinstance(leaf, list):
        taken = [leaf[row] for row in rows.tolist()]
        return Examples(taken) if isinstance(leaf, Examples) else taken
    if isinstance(leaf, np.ndarray):
        return np.take(leaf, rows.numpy(), axis=0)
    if leaf.is_nested:
        return _concat([_slice(leaf, row, row + 1) for row in rows.tolist()])
    return leaf.index_select(0, rows) if is_selectable(leaf) else leaf[rows]


def is_selectable(leaf: Any) -> bool:
    """Whether ``index_select`` serves; indexing is slower, but keeps memory formats."""
    if not isinstance(leaf, torch.Tensor) or leaf.is_nested:
        return False
    return leaf.is_contiguous() and leaf.dtype not in _INDEXED_ONLY


def _concat(leaves: Sequence[Any]) -> Any:
    first = leaves[0]
    if isinstance(first, list):
        return type(first)(row for leaf in leaves for row in leaf)
    if isinstance(first, np.ndarray):
        return np.concatenate(leaves)
    if first.is_nested:
        lengths = torch.cat([leaf.offsets().diff() for leaf in leaves])
        offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
        longest = max(map(longest_of, leaves))
        return jagged(torch.cat([leaf.values() for leaf in leaves]), offsets, longest)
    return torch.cat(list(leaves))


def empty_leaf(leaf: Any) -> Any:
    """Return a leaf like this one with zero rows and storage of its own."""
    if isinstance(leaf, Examples):
        return Examples()
    if isinstance(leaf, list):
        return []
    if isinstance(leaf, np.ndarray):
        return np.empty((0, *leaf.shape[1:]), dtype=leaf.dtype)
    if leaf.is_nested:
        values = leaf.values()
        none, offsets = values.new_empty((0, *values.shape[1:])), leaf.offsets().new_zeros(1)
        return jagged(none, offsets, longest_of(leaf))
    return leaf.new_empty((0, *leaf.shape[1:]))


def _copy(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.clone()  # also of a slice: just its rows, in its memory format
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def _is_part(leaf: Any) -> bool:
    if isinstance(leaf, torch.Tensor):
        dense = leaf.values() if leaf.is_nested else leaf
        return bool(dense.nbytes < dense.untyped_storage().nbytes())
    return isinstance(leaf, np.ndarray) and leaf.base is not None
