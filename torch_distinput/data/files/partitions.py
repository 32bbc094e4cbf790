"""Partitions of units, which are what is assigned: reading them from any row on, some ahead."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from torch_distinput.data.files.interleave import turn_place
from torch_distinput.data.files.read_ahead import ReadAhead
from torch_distinput.data.files.unit_reader import ReadUnit
from torch_distinput.data.files.work_units import Unit
from torch_distinput.data.stream.chunk import Chunk, Cursor
from torch_distinput.plan.assignment.interleaving import find_last_turn
from torch_distinput.plan.progress.place import NEXT, TURN, Place, Start

PARTITION = "partition"
"""The kind of place at which a partition begins."""


def place_of_partition(number: int) -> Place:
    """The beginning of a partition."""
    return Place(PARTITION, (("number", number),))


def first_partition(start: Start, *, in_turn: bool) -> int:
    """The first partition not opened before a place; of a turn, beside those in it."""
    if start is None:
        return 0
    return start.check(TURN).number(NEXT) if in_turn else start.check(PARTITION).number("number")


def read_partition(
    number: int, units: Sequence[Unit], row: int, read: ReadUnit, *, jumps: bool
) -> Iterator[Chunk]:
    """Read the units of a partition from one of its rows on.

    ``jumps``: units whose records are counted can be passed over unread.
    """
    start, first = place_of_partition(number), 0  # row of the unit
    for unit in units:
        count = unit.part.num_records
        if jumps and count is not None and first + count <= row:
            first += count
            continue
        for chunk in read(unit):
            place = Cursor(start=start, skip=first, num_touched=number + 1)
            placed = chunk.moved(place)
            if first + chunk.num_rows > row:
                yield placed.slice(max(0, row - first), chunk.num_rows)
            first += chunk.num_rows


def place_in_partitions(lengths: list[int], cycle: tuple[int, int] | None, row: int) -> Cursor:
    """Where a row of counted partitions stands."""
    if cycle is not None:
        return turn_place(find_last_turn(lengths, cycle, row), row)
    ends = np.cumsum(lengths)
    partition = int(np.searchsorted(ends, row, side="right"))
    before = int(ends[partition - 1]) if partition else 0
    return Cursor(start=place_of_partition(partition), skip=row - before)


def start_ahead(
    starts: Iterator[tuple[int, Callable[[], Iterator[Chunk]]]], threads: int
) -> Iterator[tuple[int, Iterator[Chunk]]]:
    """Start numbered iterators in order, as many ahead of use as there are threads for them."""
    if not threads:
        yield from ((number, start()) for number, start in starts)
        return
    started: deque[tuple[int, Iterator[Chunk]]] = deque()
    while True:
        more = itertools.islice(starts, threads - len(started))
        started.extend((number, ReadAhead(start)) for number, start in more)
        if not started:
            return
        yield started.popleft()
