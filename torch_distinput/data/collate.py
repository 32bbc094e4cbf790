"""From examples to a batch that keeps their structure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from torch_distinput.data.element_spec import zero_rows
from torch_distinput.data.structure import (
    Batch,
    Structure,
    example_leaves,
    flatten_example,
    leaf_names,
    unflatten,
)

_PLAIN_DTYPES = frozenset(map(np.dtype, ("?", "B", "b", "h", "i", "l", "e", "f", "d")))

CollateFn = Callable[[list[Any]], Batch]


def collate_examples(examples: Sequence[Any]) -> Batch:
    """Stack examples leaf by leaf; tuples stay tuples and dataclasses keep their class.

    Leaves follow ``torch.utils.data.default_collate``: tensors, arrays and numbers become tensors
    of shape ``(rows, ...)``, strings and bytes become lists. Arrays of strings become an array.

    Raises:
        ValueError: if the structures or shapes of the examples differ.
    """
    structure = flatten_example(examples[0])[1]
    rows = [_leaves(number, example, structure) for number, example in enumerate(examples)]
    columns = list(zip(*rows, strict=True))
    names = leaf_names(structure, "example")
    return unflatten(structure, [_stack(n, c) for n, c in zip(names, columns, strict=True)])


def _leaves(number: int, example: Any, structure: Structure) -> list[Any]:
    leaves, own = flatten_example(example)
    if own is structure or own == structure:
        return leaves
    reordered = example_leaves(example, structure)
    if reordered is None:
        msg = (
            "All examples of a batch need one structure, got leaves "
            f"{leaf_names(structure, 'example')} in example 0 and "
            f"{leaf_names(own, 'example')} in example {number}. Pass a collate_fn."
        )
        raise ValueError(msg)
    return reordered


def collate(spec: Any) -> CollateFn:
    """Return a collate function that also accepts no examples at all.

    For plain DataLoaders behind a :class:`RebatchSampler`, whose index lists may be empty where
    ``default_collate([])`` raises.

    Args:
        spec: the element spec of a batch, as ``DistributedDataset.element_spec`` gives it: a
            structure with a :class:`TensorSpec` for each leaf. An empty list of examples becomes
            its zero-row batch.
    """
    return _CollateOrNone(spec)


class _CollateOrNone:
    """Picklable, so that it can travel to loader processes."""

    def __init__(self, spec: Any) -> None:
        self._spec = spec

    def __call__(self, examples: list[Any]) -> Batch:
        return collate_examples(examples) if examples else zero_rows(self._spec)


def _are_plain_arrays(column: Sequence[Any]) -> bool:
    """Whether all are arrays of one dtype that torch knows."""
    first = column[0]
    if type(first) is not np.ndarray or first.dtype not in _PLAIN_DTYPES:
        return False
    return all(type(leaf) is np.ndarray and leaf.dtype is first.dtype for leaf in column)


def _stack(name: str, column: Sequence[Any]) -> Any:
    try:
        if _are_plain_arrays(column):  # as default_collate does, without a tensor for each
            return torch.from_numpy(np.stack(column))
        if all(type(leaf) is np.ndarray and leaf.dtype.kind in "OUS" for leaf in column):
            return np.stack([leaf.astype(object) for leaf in column])  # strings, or other objects
        if all(type(leaf) is torch.Tensor and leaf.layout is torch.strided for leaf in column):
            return torch.stack(list(column))  # in a loader process default_collate would share it
        return default_collate(list(column))
    except (TypeError, RuntimeError, ValueError) as error:
        shapes = sorted({str(tuple(getattr(leaf, "shape", ()))) for leaf in column})
        msg = (
            f"Cannot stack {len(column)} values of type {type(column[0]).__name__} with shapes "
            f"{', '.join(shapes)} at {name}: {error}. Pass a collate_fn."
        )
        raise ValueError(msg) from error
