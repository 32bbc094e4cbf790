"""Rows of all workers joined, and put in order by what names them: an index, or file and record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch

from torch_distinput.communicator import Communicator
from torch_distinput.packed_strings import PackedStrings

_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_PAIR = 2
"""Numbers of a file and record."""
_ALONE = torch.iinfo(torch.int64).min
"""In the place of the record number, beside an index that is no pair."""
_MISSING = -1
"""The length of a row that is None, on its way."""


def join_rows(own: Any, axis: int, communicator: Communicator) -> Any:
    """Return the rows of all workers in their order, along an axis.

    Args:
        own: this worker's: a tensor whose first dimension is to be that axis, a list of rows, or
            packed strings; the same kind on all workers.
        axis: where the rows of a tensor are to be counted.
        communicator: with the other workers; all of them call this.
    """
    if isinstance(own, list):
        return [row for rows in communicator.gather_objects(own) for row in rows]
    if isinstance(own, PackedStrings):
        return _join_packed(own, communicator)
    return torch.cat(communicator.all_gather(own)).movedim(0, axis)


def _join_packed(strings: PackedStrings, communicator: Communicator) -> PackedStrings:
    """Two gatherings whatever is in them; which rows are missing goes with the lengths."""
    lengths = strings.lengths().masked_fill(strings.where_missing(), _MISSING)
    lengths = torch.cat(communicator.all_gather(lengths))
    data = torch.cat(communicator.all_gather(strings.data))
    missing = lengths == _MISSING
    offsets = torch.nn.functional.pad(lengths.clamp_min(0).cumsum(0), (1, 0))
    return PackedStrings(data, offsets, missing if bool(missing.any()) else None, strings.dtype)


def read_indices(values: Sequence[Any]) -> list[torch.Tensor]:
    """The indices of each local replica as int64 tensors of shape (rows, 2).

    Beside an index that stands alone is ``_ALONE``: a replica without any does not know whether
    those of the others are pairs.

    Raises:
        ValueError: for other shapes than ``(rows,)`` and ``(rows, 2)``, or other numbers.
    """
    for value in values:
        if isinstance(value, list) and any(getattr(item, "ndim", 0) for item in value):
            msg = (
                "Expected one tensor or array of indices, got a list of "
                f"{len(value)} of them. Concatenate those of several steps, and their values: "
                "torch.cat(...), np.concatenate(...)."
            )
            raise ValueError(msg)
    indices = [torch.as_tensor(value) for value in values]
    for number, index in enumerate(indices):
        if index.numel() == 0 and index.ndim <= 2:  # an empty list is of floats by default
            indices[number] = index.new_empty((0, _PAIR), dtype=torch.int64)
    for index in indices:
        has_places = index.ndim == 1 or (index.ndim == 2 and index.shape[1] == 2)
        if index.dtype not in _WHOLE or not has_places:
            msg = (
                "Expected int64 indices of shape (rows,), or (rows, 2) with file and record "
                f"numbers, got shape {tuple(index.shape)} {index.dtype}. Pass last_step.ids, or a "
                "column that numbers the examples."
            )
            raise ValueError(msg)
    return [_as_pairs(index.to(torch.int64)) for index in indices]


def _as_pairs(index: torch.Tensor) -> torch.Tensor:
    pairs = index.unsqueeze(1) if index.ndim == 1 else index
    return torch.nn.functional.pad(pairs, (0, _PAIR - pairs.shape[1]), value=_ALONE)


def check_rows(name: str, values: Sequence[Any], indices: Sequence[torch.Tensor]) -> None:
    """Refuse a leaf that has not a row for each index: rows would be put to wrong places."""
    for replica, (value, index) in enumerate(zip(values, indices, strict=True)):
        rows = isinstance(value, (list, PackedStrings))
        shape = (len(value),) if rows else torch.as_tensor(value).shape
        if tuple(shape[:1]) != (len(index),):
            msg = (
                f"Expected a row at {name} for each of {len(index)} indices, got shape "
                f"{tuple(shape)} on local replica {replica}. Indices name the examples only: of "
                "padded batches pass values[mask]."
            )
            raise ValueError(msg)


def find_order(index: torch.Tensor) -> torch.Tensor:
    """Where each row of the sorted whole is found.

    Raises:
        ValueError: if the indices are not each of 0..n-1 exactly once, or a pair is there twice.
            Pairs may have gaps: of a file nobody here knows how many records it has, or which of
            them were filtered out.
    """
    is_alone = index[:, 1] == _ALONE
    if bool(is_alone.all()):
        found, order = torch.sort(index[:, 0])
        _check_complete(found)
        return order
    if bool(is_alone.any()):
        msg = (
            f"gather_in_order needs indices of one kind, got {int(is_alone.sum())} that stand "
            f"alone and {int((~is_alone).sum())} pairs of file and record. Pass the same kind on "
            "all ranks."
        )
        raise ValueError(msg)
    by_record = torch.argsort(index[:, 1], stable=True)
    order = by_record[torch.argsort(index[by_record, 0], stable=True)]
    found = index[order]
    repeated = found[1:][(found[1:] == found[:-1]).all(1)]
    if len(repeated):
        shown = [tuple(pair) for pair in repeated[:5].tolist()]
        msg = (
            f"gather_in_order needs every file and record number once, got {len(index)} of them; "
            f"repeated: {shown}. Gather each example exactly once; records that repeat() reads "
            "again need numbers of your own."
        )
        raise ValueError(msg)
    return order


def _check_complete(found: torch.Tensor) -> None:
    if not torch.equal(found, torch.arange(len(found), device=found.device)):
        counts = Counter(found.tolist())
        places = range(max(len(found), max(counts, default=-1) + 1))
        missing = list(islice((place for place in places if place not in counts), 5))
        repeated = [number for number, count in counts.items() if count > 1]
        below = [number for number in counts if number < 0]
        msg = (
            f"gather_in_order needs every index from 0 to n - 1 once, got {len(found)} indices; "
            f"missing: {missing or 'none'}, repeated: {repeated[:5] or 'none'}"
            f"{f', below 0: {below[:5]}' if below else ''}. "
            "Gather each example exactly once, without filtering."
        )
        raise ValueError(msg)
