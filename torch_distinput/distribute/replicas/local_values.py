"""What the local replicas have of one leaf, summed up or joined on this worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from torch_distinput.distribute.replicas.worker_part import WorkerPart
from torch_distinput.options import ReduceOp
from torch_distinput.packed_strings import PackedStrings
from torch_distinput.values import PerReplica

if TYPE_CHECKING:
    from torch_distinput.distribute.session import Session

Axis = int | tuple[int, ...] | None
Values = Sequence[Any]
"""One leaf of each local replica."""

_SUMMABLE = (torch.float64, torch.float32, torch.complex64, torch.complex128)
"""Added up as they are. Halves and bytes are added in float32, as torch's own sums are inside:
of two halves that fit, the sum may not. Whole numbers are added in int64."""
UNLIKE_CURE = (
    "Only numbers of rows may differ, in a gather or over axis=0: pad other sizes to one, as by "
    'pad_collate(longest_of="step"), and convert to one dtype.'
)


def sum_locally(name: str, values: Values, op: ReduceOp, axis: Axis) -> WorkerPart:
    """The sum over local replicas; with ``axis`` first over the rows of each, which are counted."""
    given = [_tensor(name, value) for value in values]
    if is_number := _are_floats(values, given):
        shown = torch.get_default_dtype()
        given = [torch.as_tensor(value, dtype=torch.float64) for value in values]
    else:
        given = _with_one_dtype(name, values, given)
        shown = given[0].dtype
    tensors = [_widen(tensor, op) for tensor in given]
    if axis is None:
        local, count = _sum_up(name, tensors), len(tensors)
    else:
        axes = (axis,) if isinstance(axis, int) else tuple(axis)
        pairs = [_sum_over(name, tensor, axes) for tensor in tensors]
        local = _sum_up(name, [total for total, _ in pairs])
        count = sum(count for _, count in pairs)
    dtype = given[0].dtype
    facts = (name, op.value, axis, str(shown), tuple(local.shape))
    return WorkerPart(facts=facts, value=local, count=count, dtype=dtype, is_number=is_number)


def _with_one_dtype(name: str, values: Values, given: list[torch.Tensor]) -> list[torch.Tensor]:
    """Numbers of Python take the dtype of tensors; what differs, or would be cut, is refused."""
    pairs = list(zip(values, given, strict=True))
    dtypes = {tensor.dtype for value, tensor in pairs if not _is_of_python(value)}
    if not dtypes:
        return given
    dtype = next(iter(dtypes))
    numbers = filter(_is_of_python, values)
    if len(dtypes) > 1 or not all(_can_be(number, dtype) for number in numbers):
        shown = ", ".join(map(_shape, given))
        msg = f"Expected tensors of one dtype at {name} on all replicas, got {shown}. Convert them."
        raise ValueError(msg)
    return [
        torch.as_tensor(value, dtype=dtype) if _is_of_python(value) else tensor
        for value, tensor in pairs
    ]


def _are_floats(values: Values, given: list[torch.Tensor]) -> bool:
    """Whether tensors were made of Python's numbers, and floats, rounded to the default dtype."""
    of_python = all(isinstance(value, list) or _is_of_python(value) for value in values)
    return of_python and any(tensor.dtype is torch.get_default_dtype() for tensor in given)


def _can_be(number: float, dtype: torch.dtype) -> bool:
    """Whether a number is there in a dtype; floats may be rounded."""
    if dtype.is_floating_point or dtype.is_complex:
        return True
    try:
        return bool(torch.as_tensor(number, dtype=dtype).item() == number)
    except (RuntimeError, OverflowError, ValueError):  # too large, or NaN
        return False


def _is_of_python(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, np.generic)


def _widen(tensor: torch.Tensor, op: ReduceOp) -> torch.Tensor:
    if tensor.dtype in _SUMMABLE:
        return tensor
    if tensor.is_complex():
        return tensor.to(torch.complex64)
    if op is ReduceOp.MEAN and tensor.dtype in (torch.int64, torch.uint64):
        return tensor.to(torch.float64)  # a sum that does not fit would wrap around
    return tensor.to(torch.float32 if tensor.is_floating_point() else torch.int64)


def choose_dtype(given: torch.dtype, op: ReduceOp) -> torch.dtype:
    """Of a result, by that of the values."""
    if given.is_floating_point or given.is_complex:
        return given
    if op is ReduceOp.MEAN:
        return torch.float32
    return given if given is torch.uint64 else torch.int64


def join_locally(name: str, values: Values, axis: int) -> WorkerPart:
    """The rows of all local replicas, along an axis."""
    if all(isinstance(value, list) for value in values):
        rows = [row for value in values for row in value]
        return WorkerPart(facts=(name, "gather", axis, "list"), value=rows)
    if all(isinstance(value, PackedStrings) for value in values):
        return _part_of_packed(name, values, axis)
    tensors = [_tensor(name, value) for value in values]
    for tensor in tensors:
        _check_axis(name, tensor, axis, "A 0-dim value needs unsqueeze(0) first.")
    moved = [tensor.movedim(axis, 0) for tensor in tensors]
    first = moved[0]
    for tensor in moved:
        if tensor.shape[1:] != first.shape[1:] or tensor.dtype != first.dtype:
            raise _make_shape_error(name, [_shape(t) for t in tensors])
    facts = (name, "gather", axis, str(first.dtype), tuple(first.shape[1:]))
    value = torch.cat([tensor.to(first.device) for tensor in moved])
    return WorkerPart(facts=facts, value=value)


def _part_of_packed(name: str, values: Sequence[PackedStrings], axis: int) -> WorkerPart:
    device = values[0].data.device
    joined = PackedStrings.concat([strings.to(device) for strings in values])
    return WorkerPart(facts=(name, "gather", axis, f"packed {joined.dtype.__name__}"), value=joined)


def values_of(name: str, leaf: Any, session: Session, *, may_be_bare: bool = False) -> Values:
    """The value of each local replica.

    A bare one stands for the same on each of them: in a mean that changes nothing, and what a
    ``merge_call`` got, or ``run`` returned, was the same on each. Else it may be the worker's own,
    and is refused, as by TensorFlow.
    """
    if isinstance(leaf, PerReplica):
        return leaf
    num_replicas = len(session.devices)
    is_own = num_replicas > 1 and not (may_be_bare or session.is_merging)
    if is_own and leaf not in session.of_each_replica:
        msg = (
            f"Expected a PerReplica at {name}, with what each of the {num_replicas} local replicas "
            f"has, got one {type(leaf).__name__}, which would count {num_replicas} times. Pass "
            "what strategy.run returns. For what the worker has once, such as a gradient of "
            "strategy.replicate, pass PerReplica((value, *rest)), where the rest are zeros, or "
            "have no rows."
        )
        raise ValueError(msg)
    return (leaf,) * num_replicas


def _tensor(name: str, value: Any) -> torch.Tensor:
    try:
        tensor = torch.as_tensor(value).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        msg = f"Expected a tensor or number at {name}, got {value!r} ({type(value).__name__})."
        raise TypeError(f"{msg} Leave it out, or make a tensor of it.") from error
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        msg = (
            f"Expected a dense tensor at {name}, got one of layout {tensor.layout} and dtype "
            f"{tensor.dtype}. Convert it first: to_dense(), to_padded_tensor() or dequantize()."
        )
        raise TypeError(msg)
    return tensor


def _sum_up(name: str, tensors: list[torch.Tensor]) -> torch.Tensor:
    first = tensors[0]
    if any(tensor.shape != first.shape for tensor in tensors):
        raise _make_shape_error(name, [_shape(tensor) for tensor in tensors])
    total = first.clone()
    for tensor in tensors[1:]:
        total += tensor.to(total.device)
    return total


def _sum_over(name: str, tensor: torch.Tensor, axes: tuple[int, ...]) -> tuple[torch.Tensor, int]:
    """The sum over some axes, and how many numbers went into each sum."""
    count = 1
    for axis in axes:
        _check_axis(name, tensor, axis, "Use axis=None to combine whole values.")
        count *= tensor.shape[axis]
    if len({axis % tensor.ndim for axis in axes}) < len(axes):
        msg = f"Expected each axis once at {name}, got axis={axes} of shape {tuple(tensor.shape)}."
        raise ValueError(f"{msg} Leave the repeated one out.")
    return tensor.sum(dim=axes) if axes else tensor, count  # torch takes () for all axes


def _check_axis(name: str, tensor: torch.Tensor, axis: int, cure: str) -> None:
    if not -tensor.ndim <= axis < tensor.ndim:
        msg = (
            f"Expected tensors with an axis {axis} at {name}, got shape {tuple(tensor.shape)}. "
            f"{cure}"
        )
        raise ValueError(msg)


def _make_shape_error(name: str, shown: list[str]) -> ValueError:
    msg = f"Expected tensors of one shape at {name} on all replicas, got {', '.join(shown)}."
    return ValueError(f"{msg} {UNLIKE_CURE}")


def _shape(tensor: torch.Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype}"
