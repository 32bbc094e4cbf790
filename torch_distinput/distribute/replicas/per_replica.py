"""From one structure for each local replica to one structure of :class:`PerReplica` leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch_distinput.data.batch.structure import Structure
from torch_distinput.data.batch.tree import flatten_values, unflatten
from torch_distinput.errors import MismatchError
from torch_distinput.values import PerReplica

_PLAIN = (str, bytes, bool, int, float, complex)


def regroup_leaves(structures: Sequence[Structure], leaves: Sequence[Sequence[Any]]) -> Any:
    """Put one batch together whose leaves are :class:`PerReplica`; of one replica they are bare."""
    structure = structures[0]
    if len(leaves) == 1:
        return structure.build(leaves[0])
    _check_alike(structures)
    return structure.build([PerReplica(column) for column in zip(*leaves, strict=True)])


def regroup_values(values: Sequence[Any], keep: Callable[..., bool] | None = None) -> Any:
    """From one structure per replica to one structure of :class:`PerReplica` leaves.

    One replica's structure is returned as it is; so is a leaf of which ``keep(*leaf)`` says so.
    """
    if len(values) == 1:
        return values[0]
    return _regroup([flatten_values(value) for value in values], keep)


def is_shared(first: Any, *others: Any) -> bool:
    """Whether replicas have one object; of plain values Python may or may not keep only one."""
    return type(first) not in _PLAIN and all(other is first for other in others)


def is_common(first: Any, *others: Any) -> bool:
    """Whether replicas have one object or one plain value: a setting, say."""
    if type(first) not in _PLAIN:
        return is_shared(first, *others)
    return all(type(other) is type(first) and other == first for other in others)


def _regroup(flat: Sequence[tuple[list[Any], Structure]], keep: Callable[..., bool] | None) -> Any:
    structure = flat[0][1]
    _check_alike([other for _, other in flat])
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    return unflatten(structure, [_leaf(column, keep) for column in columns])


def _check_alike(structures: Sequence[Structure]) -> None:
    first = structures[0]
    if any(other is not first and other != first for other in structures):
        msg = (
            "Expected one structure on all local replicas, got structures that differ. Let all "
            "replicas have the same keys and containers."
        )
        raise MismatchError(msg)


def _leaf(column: tuple[Any, ...], keep: Callable[..., bool] | None) -> Any:
    return column[0] if keep is not None and keep(*column) else PerReplica(column)
