"""Which replica gets which rows of a global batch, where rows differ in what they cost.

A step lasts as long as its slowest replica. So rows are dealt out largest first, each to the
replica that has least to do until then:

    rows        0 1 2 3 4 5                     replica 0     replica 1
    cost        9 1 8 2 7 3
    plain cut   0 1 2 | 3 4 5                   9+1+8 = 18    2+7+3 = 12
    largest     9, 8, 7, 3, 2, 1                9             8 7
    first                                       9 3 2 1
    dealt       0 1 3 5 | 2 4                   9+1+2+3 = 15  8+7   = 15

That takes a third more than the best of all ways at most, and usually some thousandths: Karmarkar
and Karp's differencing, and swapping rows afterwards, gained two thousandths on real documents at
most. Where the plain cut is better all the same, it is taken.

If a replica pads its rows to the longest of them, each of them costs as much as that one. Then rows
of similar cost belong together, and the best way of all is found:

    sorted      9 8 7 3 2 1                     replica 0     replica 1
    padded      9 8 | 7 3 2 1                   2 x 9 = 18    4 x 7 = 28
    dealt       9 8 7 | 3 2 1                   3 x 9 = 27    3 x 3 = 9

All is done in integers, so that every rank finds the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heapreplace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torch_distinput.plan.assignment.permutation import Indices

LARGEST_COST = 1 << 44
"""Of one row; the sum of half a million of these is an int64 still."""


class StepCosts(NamedTuple):
    """What a step costs the replicas among which its rows were dealt.

    Attributes:
        before: the cost of the slowest replica, had the batch been cut as it is without balance.
        after: that of the slowest replica as it was dealt.
        total: that of all rows, without padding.
        num_replicas: how many these are.
    """

    before: int
    after: int
    total: int
    num_replicas: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Deal:
    """The rows of each replica.

    Attributes:
        rows: of replica 0, then of replica 1, and so on; of each in the order of the batch.
        sizes: how many each of them gets.
        costs: before and after.
    """

    rows: Indices
    sizes: tuple[int, ...]
    costs: StepCosts


def deal_rows(
    costs: Indices,
    plain: Sequence[int],
    *,
    most_rows: int | None = None,
    is_padded: bool = False,
) -> Deal:
    """Deal the rows of a batch to as many replicas as there are ``plain`` sizes.

    The slowest replica never costs more than that of the plain cut. A replica is without rows only
    if there are fewer rows than replicas.

    Args:
        costs: of each row, from 0 to ``LARGEST_COST``.
        plain: rows of each replica in the plain cut; together as many as there are costs.
        most_rows: no replica gets more; at least as many as the largest of the plain cut.
        is_padded: each row of a replica costs as much as the dearest of them.
    """
    num_replicas = len(plain)
    cut: NDArray[np.int64] = np.repeat(np.arange(num_replicas), plain)
    add_up = _pad_up if is_padded else _sum_up
    before = int(add_up(costs, cut, num_replicas).max())
    if is_padded:
        owners = _deal_padded(costs, num_replicas, most_rows, enough=before)
    else:
        owners = _deal_largest_first(costs, num_replicas, most_rows)
    after = int(add_up(costs, owners, num_replicas).max())
    if after > before:
        owners = _fill_idle(cut, num_replicas)
        after = int(add_up(costs, owners, num_replicas).max())
    return Deal(
        rows=np.argsort(owners, kind="stable"),
        sizes=tuple(np.bincount(owners, minlength=num_replicas).tolist()),
        costs=StepCosts(before, after, int(costs.sum()), num_replicas),
    )


def _sum_up(costs: Indices, owners: Indices, num_replicas: int) -> Indices:
    loads: Indices = np.zeros(num_replicas, dtype=np.int64)
    np.add.at(loads, owners, costs)
    return loads


def _pad_up(costs: Indices, owners: Indices, num_replicas: int) -> Indices:
    largest: Indices = np.zeros(num_replicas, dtype=np.int64)
    np.maximum.at(largest, owners, costs)
    return largest * np.bincount(owners, minlength=num_replicas)


def _deal_largest_first(costs: Indices, num_replicas: int, most_rows: int | None) -> Indices:
    """The replica of each row.

    What a replica has is one integer in a heap, ``(cost, rows, replica)`` with the cost in the
    highest place: of equal ones comes first who has fewer rows, so that nobody stays without any.
    """
    of_row = num_replicas
    of_cost = of_row * (len(costs) + 1)
    full = of_cost if most_rows is None else of_row * most_rows
    heap = list(range(num_replicas))
    order = np.argsort(-costs, kind="stable")
    dealt: list[int] = []
    for cost in costs[order].tolist():
        has = heap[0]
        dealt.append(has % num_replicas)
        has += cost * of_cost + of_row
        if has % of_cost < full:
            heapreplace(heap, has)
        else:
            heappop(heap)
    owners = np.empty_like(order)
    owners[order] = dealt
    return owners


def _deal_padded(
    costs: Indices, num_replicas: int, most_rows: int | None, *, enough: int
) -> Indices:
    """The replica of each row: the least bound for which filling one after another suffices.

    Among the best ways is one in which replicas have neighbours of the sorted rows: to sort rows
    into the sizes of any way, those with the largest row first, makes no replica's largest larger.
    """
    order = np.argsort(-costs, kind="stable")
    falling = costs[order].tolist()
    most = len(falling) if most_rows is None else most_rows
    least, sizes = falling[0], _fill(falling, num_replicas, most, enough)
    while least < enough:
        bound = (least + enough) // 2
        found = _fill(falling, num_replicas, most, bound)
        if sum(found) == len(falling):
            enough, sizes = bound, found
        else:
            least = bound + 1
    owners = np.empty_like(order)
    owners[order] = np.repeat(np.arange(num_replicas), sizes)
    return owners


def _fill(falling: Sequence[int], num_replicas: int, most_rows: int, bound: int) -> list[int]:
    """Rows of each replica, if each takes all it can within a bound, and leaves others one."""
    sizes, left = [], len(falling)
    for others in range(num_replicas - 1, -1, -1):
        largest = falling[-left] if left else 0
        fitting = min(bound // largest, most_rows) if largest else most_rows
        size = min(fitting, max(left - others, min(left, 1)))
        sizes.append(size)
        left -= size
    return sizes


def _fill_idle(owners: Indices, num_replicas: int) -> Indices:
    """Give idle replicas a row of who has most: that makes nobody slower."""
    owners = owners.copy()
    sizes = np.bincount(owners, minlength=num_replicas)
    for idle in np.flatnonzero(sizes == 0).tolist():
        largest = int(sizes.argmax())
        if sizes[largest] < 2:
            break
        owners[np.flatnonzero(owners == largest)[-1]] = idle
        sizes[largest] -= 1
        sizes[idle] += 1
    return owners
