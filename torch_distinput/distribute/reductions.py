"""Values of all replicas in sync into one: sum, mean, gather, and gather in order.

Before the first collective the workers compare structures, shapes and dtypes, all leaves at once:
gloo aborts the process, or waits, when they differ. Where a value is on the host here and on an
accelerator there, all go over the host: a group may have a backend for each, which never meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from torch_distinput.data.batch.leaf_kinds import kind_of
from torch_distinput.data.batch.structure import Structure
from torch_distinput.data.batch.tree import flatten, leaf_names, unflatten
from torch_distinput.distribute.gathering import (
    check_rows,
    find_order,
    join_rows,
    read_indices,
)
from torch_distinput.distribute.replicas.worker_part import WorkerPart
from torch_distinput.errors import MismatchError, PeerFailedError
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
_UNLIKE_CURE = (
    "Only numbers of rows may differ, in a gather or over axis=0: pad other sizes to one, as by "
    'pad_collate(longest_of="step"), and convert to one dtype.'
)


def reduce_values(session: Session, value: Any, *, op: ReduceOp, axis: Axis) -> Any:
    """Reduce each leaf over all replicas; with ``axis`` first within each, weighted by rows."""

    def parts_of() -> tuple[list[WorkerPart], Structure]:
        part_of = partial(_part_of_sum, op=op, axis=axis)
        return _leaf_parts(session, value, part_of, may_be_bare=op is ReduceOp.MEAN)

    def combine(part: WorkerPart, count: int) -> Any:
        total = session.communicator.all_reduce(part.value)
        dtype = _choose_dtype(part.dtype, op)
        return part.deliver((total / count if op is ReduceOp.MEAN else total).to(dtype))

    parts, counts, structure = _compare(session, parts_of)
    return unflatten(structure, [combine(*pair) for pair in zip(parts, counts, strict=True)])


def gather_values(session: Session, value: Any, *, axis: int) -> Any:
    """Join each leaf of all replicas along an axis, in replica order."""

    def parts_of() -> tuple[list[WorkerPart], Structure]:
        return _leaf_parts(session, value, partial(_part_of_join, axis=axis))

    parts, _, structure = _compare(session, parts_of)
    join = partial(join_rows, axis=axis, communicator=session.communicator)
    return unflatten(structure, [part.deliver(join(part.value)) for part in parts])


def gather_in_order(session: Session, index: Any, value: Any) -> Any:
    """Join the rows of all replicas and sort them by their indices.

    Raises:
        ValueError: if a leaf has not as many rows as there are indices; PeerFailedError on the
            other workers. On all of them, if the indices are not each of 0..n-1 exactly once, or
            if a pair of file and record number comes twice.
    """

    def parts_of() -> tuple[list[WorkerPart], Structure]:
        own = read_indices(_values("index", index, session))

        def part_of(name: str, values: Values) -> WorkerPart:
            check_rows(name, values, own)
            return _part_of_join(name, values, axis=0)

        parts, structure = _leaf_parts(session, value, part_of)
        return [_part_of_join("index", own, axis=0), *parts], structure

    parts, _, structure = _compare(session, parts_of)
    indices, *leaves = (
        part.deliver(join_rows(part.value, 0, session.communicator)) for part in parts
    )
    order = find_order(indices)
    return unflatten(structure, [kind_of(leaf).take(leaf, order) for leaf in leaves])


def _leaf_parts(
    session: Session,
    value: Any,
    part_of: Callable[[str, Values], WorkerPart],
    *,
    may_be_bare: bool = False,
) -> tuple[list[WorkerPart], Structure]:
    leaves, structure = flatten(value)
    pairs = list(zip(leaf_names(structure, "value"), leaves, strict=True))
    columns = (_values(name, leaf, session, may_be_bare=may_be_bare) for name, leaf in pairs)
    return [part_of(name, own) for (name, _), own in zip(pairs, columns, strict=True)], structure


def _compare(
    session: Session, parts_of: Callable[[], tuple[list[WorkerPart], Structure]]
) -> tuple[list[WorkerPart], list[int], Structure]:
    """Make this worker's parts, compare their facts over the workers, and add up their counts.

    With them goes where loops have ended: values of other steps must not be combined.
    """
    communicator, loops = session.communicator, session.ended_loops
    try:
        parts, structure = parts_of()
    except Exception as error:
        communicator.gather_objects(f"{type(error).__name__}: {error}")  # the others wait for it
        raise
    own = [(part.facts, part.count, part.is_number, _kind(part)) for part in parts]
    told = communicator.gather_objects((own, loops.told(session.loss_steps.last_dataset)))
    _check_made(told)
    loops.compare([ended for _, ended in told])
    shown = [own for own, _ in told]
    _check_alike(shown)
    columns = list(zip(*shown, strict=True))
    counts = [sum(count for _, count, _, _ in column) for column in columns]
    for place, column in enumerate(columns):
        # Such as a total to which nothing was added here: a float of Python.
        if parts[place].is_number and not all(is_number for _, _, is_number, _ in column):
            parts[place] = parts[place].as_tensor()
        if len({kind for *_, kind in column}) > 1:
            parts[place] = parts[place].over_host(session.devices[0])
    return parts, counts, structure


def _kind(part: WorkerPart) -> str | None:
    """Which kind of device its value is on."""
    device = part.find_device()
    return None if device is None else device.type


def _check_made(told: list[Any]) -> None:
    for worker, other in enumerate(told):
        if isinstance(other, str):
            msg = f"Expected a value from every worker, but worker {worker} failed: {other}"
            raise PeerFailedError(msg)


def _check_alike(shown: list[Any]) -> None:
    for worker, other in enumerate(shown):
        for ours, theirs in zip_longest(shown[0], other, fillvalue=("no such leaf", 0)):
            if ours[0] != theirs[0]:
                msg = (
                    "Expected one name, operation, axis, dtype and shape on all workers, got "
                    f"{ours[0]} on worker 0 and {theirs[0]} on worker {worker}. {_UNLIKE_CURE}"
                )
                raise MismatchError(msg)


def _part_of_sum(name: str, values: Values, op: ReduceOp, axis: Axis) -> WorkerPart:
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


def _choose_dtype(given: torch.dtype, op: ReduceOp) -> torch.dtype:
    if given.is_floating_point or given.is_complex:
        return given
    if op is ReduceOp.MEAN:
        return torch.float32
    return given if given is torch.uint64 else torch.int64


def _part_of_join(name: str, values: Values, axis: int) -> WorkerPart:
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


def _values(
    name: str, leaf: Any, session: Session, *, may_be_bare: bool = False
) -> Values:
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
    return ValueError(f"{msg} {_UNLIKE_CURE}")


def _shape(tensor: torch.Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype}"
