"""Rows of batches as short digests, to see whether two processes deliver the same ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

_ELEMENTS = 1024
"""Of a row with more, so many are taken, evenly spaced."""


def digest_example(example: Any) -> str:
    """Return a digest of one example, by what it contains."""
    digest = blake2b(digest_size=8)
    for leaf in _leaves(example):
        digest.update(_bytes_of(leaf))
    return digest.hexdigest()


def digest_rows(batch: Any) -> list[str]:
    """Return a digest for each row of a collated batch; none where rows cannot be told apart.

    Leaves are tensors and arrays ``(rows, ...)``, and lists or tuples of strings or numbers.
    """
    leaves = list(_leaves(batch, whole_lists=True))
    sized = [leaf for leaf in leaves if _num_rows(leaf) is not None]
    rows = {_num_rows(leaf) for leaf in sized}
    if len(rows) != 1:
        return []
    (count,) = rows
    return [digest_example([leaf[row] for leaf in sized]) for row in range(count or 0)]


def count_rows(batch: Any) -> int:
    """Return the rows of a batch: the first dimension of its first leaf; 1 where there is none."""
    for leaf in _leaves(batch, whole_lists=True):
        rows = _num_rows(leaf)
        if rows is not None:
            return rows
    return 1


def _num_rows(leaf: Any) -> int | None:
    if isinstance(leaf, (torch.Tensor, np.ndarray)):
        return len(leaf) if leaf.ndim else None
    return len(leaf) if isinstance(leaf, (list, tuple)) else None


def _leaves(value: Any, *, whole_lists: bool = False) -> Iterator[Any]:
    """What is in a tree; a list of strings or numbers is one leaf where rows are wanted."""
    if isinstance(value, dict) or hasattr(value, "keys"):
        for key in list(value.keys()):  # a mapping of the user's may iterate otherwise
            yield from _leaves(value[key], whole_lists=whole_lists)
    elif isinstance(value, (list, tuple)):
        if whole_lists and value and isinstance(value[0], (str, bytes, int, float)):
            yield value
            return
        for element in value:
            yield from _leaves(element, whole_lists=whole_lists)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _leaves(getattr(value, field.name), whole_lists=whole_lists)
    else:
        yield value


def _bytes_of(leaf: Any) -> bytes:
    if isinstance(leaf, torch.Tensor):
        if leaf.layout != torch.strided or leaf.is_quantized:
            return repr(tuple(leaf.shape)).encode()
        flat = leaf.detach().reshape(-1)
        flat = flat[:: max(1, len(flat) // _ELEMENTS)].cpu()
        flat = flat.clone(memory_format=torch.contiguous_format)  # also of one element: stride 1
        return repr(tuple(leaf.shape)).encode() + flat.view(torch.uint8).numpy().tobytes()
    if isinstance(leaf, np.ndarray) and leaf.dtype != object:
        flat_array = leaf.reshape(-1)
        flat_array = flat_array[:: max(1, len(flat_array) // _ELEMENTS)]
        return repr(leaf.shape).encode() + flat_array.tobytes()
    return repr(leaf).encode() if isinstance(leaf, (str, bytes, int, float, Sequence)) else b"?"
