"""Files that are read in turn, from the beginning or from the start of any turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch_distinput.data.stream.chunk import Chunk, Cursor
from torch_distinput.data.stream.chunk_reader import ChunkReader
from torch_distinput.plan.assignment.interleaving import NOBODY, Turn
from torch_distinput.plan.progress.place import NEXT, TURN, Place, Start

OpenPartition = Callable[[int, int], Iterator[Chunk]]
"""Reads a partition by its number, from one of its rows on."""


@dataclass(slots=True)
class _Visited:
    """A partition on a place of the cycle, and how many of its rows were handed over."""

    partition: int
    row: int
    reader: ChunkReader


def interleaved(
    opened: Iterator[tuple[int, Iterator[Chunk]]],
    open_partition: OpenPartition,
    cycle: tuple[int, int],
    start: Start,
) -> Iterator[Chunk]:
    """Read ``cycle_length`` partitions in turn, a block from each.

    As in ``tf.data.Dataset.interleave``: a partition that ends gives its place to the next one,
    whose turn comes when the place is visited again. Rows stand behind the beginning of their turn.

    Args:
        opened: the partitions that come next, with their numbers.
        open_partition: opens the partitions that a turn began with.
        cycle: its length, and that of a block.
        start: the beginning of a turn.
    """
    cycle_length, block_length = cycle
    places: list[_Visited | None] = [None] * cycle_length
    next_partition = 0
    if start is not None:
        next_partition = start.number(NEXT)
        places = [
            place and _Visited(place[0], place[1], ChunkReader(open_partition(*place)))
            for place in start.check(TURN).several("visited", cycle_length)
        ]
    more = True
    while more or any(places):
        turn, skip = _turn(next_partition, places), 0
        for number in range(cycle_length):
            if places[number] is None and more:
                came = next(opened, None)
                more = came is not None
                if came is not None:
                    places[number] = _Visited(came[0], 0, ChunkReader(came[1]))
                    next_partition = came[0] + 1
            places[number], block = _block(places[number], block_length)
            if block is not None:
                place = Cursor(start=turn, skip=skip, num_touched=next_partition)
                yield block.moved(place)
                skip += block.num_rows


def turn_place(turn: Turn, row: int) -> Cursor:
    """Where a row stands behind a turn that begins before it."""
    visited = tuple(None if place[0] == NOBODY else place for place in turn.places)
    return Cursor(start=place_of_turn(turn.next_file, visited), skip=row - turn.row)


def place_of_turn(next_partition: int, visited: tuple[tuple[int, int] | None, ...]) -> Place:
    """The beginning of a turn.

    Args:
        next_partition: the first partition that has not been opened.
        visited: for each place the partition on it and a row of that; None where it is free.
    """
    return Place(TURN, ((NEXT, next_partition), ("visited", visited)))


def _turn(next_partition: int, places: list[_Visited | None]) -> Place:
    visited = (None if place is None else (place.partition, place.row) for place in places)
    return place_of_turn(next_partition, tuple(visited))


def _block(visited: _Visited | None, length: int) -> tuple[_Visited | None, Chunk | None]:
    """Take a block; a partition that fell short has ended."""
    block = visited.reader.take(length) if visited else None
    if visited is None or block is None:
        return None, None
    visited.row += block.num_rows
    return (visited if block.num_rows == length else None), block
