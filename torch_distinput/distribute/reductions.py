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

from torch_distinput.data.batch.leaf_kinds import kind_of
from torch_distinput.data.batch.tree import flatten, leaf_names, unflatten
from torch_distinput.distribute.gathering import (
    check_rows,
    find_order,
    join_rows,
    read_indices,
)
from torch_distinput.distribute.replicas.local_values import (
    UNLIKE_CURE,
    Axis,
    Values,
    choose_dtype,
    join_locally,
    sum_locally,
    values_of,
)
from torch_distinput.distribute.replicas.worker_part import WorkerPart
from torch_distinput.errors import MismatchError, PeerFailedError
from torch_distinput.options import ReduceOp

if TYPE_CHECKING:
    from torch_distinput.distribute.session import Session

Rebuild = Callable[[Sequence[Any]], Any]
"""Makes of results in the order of their names what has the structure of the value."""


def reduce_values(session: Session, value: Any, *, op: ReduceOp, axis: Axis) -> Any:
    """Reduce each leaf over all replicas; with ``axis`` first within each, weighted by rows."""

    def parts_of() -> tuple[list[WorkerPart], Rebuild]:
        part_of = partial(sum_locally, op=op, axis=axis)
        return _leaf_parts(session, value, part_of, may_be_bare=op is ReduceOp.MEAN)

    def combine(part: WorkerPart, count: int) -> Any:
        total = session.communicator.all_reduce(part.value)
        dtype = choose_dtype(part.dtype, op)
        return part.deliver((total / count if op is ReduceOp.MEAN else total).to(dtype))

    parts, counts, rebuild = _compare(session, parts_of)
    return rebuild([combine(*pair) for pair in zip(parts, counts, strict=True)])


def gather_values(session: Session, value: Any, *, axis: int) -> Any:
    """Join each leaf of all replicas along an axis, in replica order."""

    def parts_of() -> tuple[list[WorkerPart], Rebuild]:
        return _leaf_parts(session, value, partial(join_locally, axis=axis))

    parts, _, rebuild = _compare(session, parts_of)
    join = partial(join_rows, axis=axis, communicator=session.communicator)
    return rebuild([part.deliver(join(part.value)) for part in parts])


def gather_in_order(session: Session, index: Any, value: Any) -> Any:
    """Join the rows of all replicas and sort them by their indices.

    Raises:
        ValueError: if a leaf has not as many rows as there are indices; PeerFailedError on the
            other workers. On all of them, if the indices are not each of 0..n-1 exactly once, or
            if a pair of file and record number comes twice.
    """

    def parts_of() -> tuple[list[WorkerPart], Rebuild]:
        own = read_indices(values_of("index", index, session))

        def part_of(name: str, values: Values) -> WorkerPart:
            check_rows(name, values, own)
            return join_locally(name, values, axis=0)

        parts, rebuild = _leaf_parts(session, value, part_of)
        return [join_locally("index", own, axis=0), *parts], rebuild

    parts, _, rebuild = _compare(session, parts_of)
    indices, *leaves = (
        part.deliver(join_rows(part.value, 0, session.communicator)) for part in parts
    )
    order = find_order(indices)
    return rebuild([kind_of(leaf).take(leaf, order) for leaf in leaves])


def _leaf_parts(
    session: Session,
    value: Any,
    part_of: Callable[[str, Values], WorkerPart],
    *,
    may_be_bare: bool = False,
) -> tuple[list[WorkerPart], Rebuild]:
    """In the order of their names, alike on all workers: dicts may hold them in another order."""
    leaves, structure = flatten(value)
    names = leaf_names(structure, "value")
    order = sorted(range(len(names)), key=names.__getitem__)

    def part(name: str, leaf: Any) -> WorkerPart:
        return part_of(name, values_of(name, leaf, session, may_be_bare=may_be_bare))

    def rebuild(results: Sequence[Any]) -> Any:
        placed = dict(zip(order, results, strict=True))
        return unflatten(structure, [placed[number] for number in range(len(names))])

    return [part(names[number], leaves[number]) for number in order], rebuild


def _compare(
    session: Session, parts_of: Callable[[], tuple[list[WorkerPart], Rebuild]]
) -> tuple[list[WorkerPart], list[int], Rebuild]:
    """Make this worker's parts, compare their facts over the workers, and add up their counts.

    With them goes where loops have ended: values of other steps must not be combined.
    """
    communicator, loops = session.communicator, session.ended_loops
    try:
        parts, rebuild = parts_of()
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
    return parts, counts, rebuild


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
                    f"{ours[0]} on worker 0 and {theirs[0]} on worker {worker}. {UNLIKE_CURE}"
                )
                raise MismatchError(msg)
