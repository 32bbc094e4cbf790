"""Values of all replicas in sync into one: sum, mean, gather, and gather in order.

Before a collective the workers compare shapes and dtypes: gloo aborts the process when they differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_distinput.communicator import Communicator
from torch_distinput.data.structure import flatten, leaf_names, unflatten
from torch_distinput.errors import MismatchError
from torch_distinput.options import ReduceOp
from torch_distinput.values import PerReplica

Axis = int | tuple[int, ...] | None
Values = Sequence[Any]
"""One leaf of each local replica."""


def per_leaf(
    value: Any, num_replicas: int, combine: Callable[[str, Values], Any]
) -> Any:
    """Combine each leaf of a structure; a leaf is PerReplica, or bare with one replica."""
    leaves, structure = flatten(value)
    names = leaf_names(structure, "value")
    return unflatten(
        structure,
        [combine(n, _values(leaf, num_replicas)) for n, leaf in zip(names, leaves, strict=True)],
    )


def reduce_leaf(
    name: str, values: Values, *, op: ReduceOp, axis: Axis, communicator: Communicator
) -> torch.Tensor:
    """Reduce one leaf over all replicas; with ``axis`` first within each, weighted by rows."""
    tensors = [_tensor(name, value) for value in values]
    if axis is None:
        local, count = _summed(name, tensors), len(tensors)
    else:
        axes = (axis,) if isinstance(axis, int) else tuple(axis)
        parts = [_sum_over(name, tensor, axes) for tensor in tensors]
        local = _summed(name, [part for part, _ in parts])
        count = sum(count for _, count in parts)
    described = (op.value, axis, str(local.dtype), tuple(local.shape), count)
    counts = _compared(communicator, name, described)
    total = communicator.all_reduce(local)
    if op is ReduceOp.SUM:
        return total
    return (total if total.is_floating_point() or total.is_complex() else total.float()) / counts


def gather_leaf(name: str, values: Values, *, axis: int, communicator: Communicator) -> Any:
    """Join one leaf of all replicas along an axis, in replica order."""
    if all(isinstance(value, list) for value in values):
        lists = communicator.gather_objects([row for value in values for row in value])
        return [row for part in lists for row in part]
    tensors = [_tensor(name, value) for value in values]
    for tensor in tensors:
        _check_axis(name, tensor, axis, "A 0-dim value needs unsqueeze(0) first.")
    moved = [tensor.movedim(axis, 0) for tensor in tensors]
    first = moved[0]
    for tensor in moved:
        if tensor.shape[1:] != first.shape[1:] or tensor.dtype != first.dtype:
            raise _differing(name, [_shape(t) for t in tensors])
    described = ("gather", axis, str(first.dtype), tuple(first.shape[1:]), 1)
    _compared(communicator, name, described)
    device = first.device
    joined = torch.cat([tensor.to(device) for tensor in moved])
    return torch.cat(communicator.all_gather(joined)).movedim(0, axis)


def in_order(index: torch.Tensor, value: Any) -> Any:
    """Sort the rows of gathered values by their gathered indices.

    Raises:
        ValueError: if the indices are not each of 0..n-1 exactly once.
    """
    sorted_index, order = torch.sort(index)
    expected = torch.arange(len(index), device=index.device)
    if not torch.equal(sorted_index, expected):
        counts = Counter(sorted_index.tolist())
        missing = sorted(set(range(max(counts, default=-1) + 1)) - counts.keys())
        repeated = [number for number, count in counts.items() if count > 1]
        msg = (
            f"gather_in_order needs every index from 0 to n - 1 once, got {len(index)} indices; "
            f"missing: {missing[:5] or 'none'}, repeated: {repeated[:5] or 'none'}. "
            "Gather each example exactly once, without filtering."
        )
        raise ValueError(msg)
    rows = order.tolist()
    leaves, structure = flatten(value)
    picked = [[leaf[r] for r in rows] if isinstance(leaf, list) else leaf[order] for leaf in leaves]
    return unflatten(structure, picked)


def _values(leaf: Any, num_replicas: int) -> Values:
    """A bare value stands for the same value on each local replica."""
    return leaf if isinstance(leaf, PerReplica) else (leaf,) * num_replicas


def _tensor(name: str, value: Any) -> torch.Tensor:
    try:
        return torch.as_tensor(value).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        msg = f"Expected a tensor or number at {name}, got {value!r} ({type(value).__name__})."
        raise TypeError(msg) from error


def _summed(name: str, tensors: list[torch.Tensor]) -> torch.Tensor:
    first = tensors[0]
    if any(tensor.shape != first.shape for tensor in tensors):
        raise _differing(name, [_shape(tensor) for tensor in tensors])
    if first.dtype == torch.bool:
        tensors = [tensor.long() for tensor in tensors]
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total += tensor.to(total.device)
    return total


def _sum_over(name: str, tensor: torch.Tensor, axes: tuple[int, ...]) -> tuple[torch.Tensor, int]:
    """The sum over some axes, and how many numbers went into each sum."""
    count = 1
    for axis in axes:
        _check_axis(name, tensor, axis, "Use axis=None to combine whole values.")
        count *= tensor.shape[axis]
    dtype = torch.int64 if tensor.dtype == torch.bool else tensor.dtype
    return tensor.sum(dim=axes, dtype=dtype), count


def _check_axis(name: str, tensor: torch.Tensor, axis: int, cure: str) -> None:
    if not -tensor.ndim <= axis < tensor.ndim:
        msg = (
            f"Expected tensors with an axis {axis} at {name}, got shape {tuple(tensor.shape)}. "
            f"{cure}"
        )
        raise ValueError(msg)


def _compared(
    communicator: Communicator, name: str, described: tuple[Any, ...]
) -> int:
    """Compare everything but the count, which is summed, over the workers."""
    shown = communicator.gather_objects((name, *described))
    for worker, other in enumerate(shown):
        if other[:-1] != shown[0][:-1]:
            msg = (
                "Expected one name, operation, axis, dtype and shape on all workers, got "
                f"{shown[0][:-1]} on worker 0 and {other[:-1]} on worker {worker}. "
                "Reduce over axis=0 or gather where the numbers of rows differ."
            )
            raise MismatchError(msg)
    return int(sum(other[-1] for other in shown))


def _differing(name: str, shown: list[str]) -> ValueError:
    msg = (
        f"Expected tensors of one shape at {name} on all replicas, got {', '.join(shown)}. "
        "Reduce over axis=0 or gather where the numbers of rows differ."
    )
    return ValueError(msg)


def _shape(tensor: torch.Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype}"
