"""Files that are read in turn, from the beginning or from the start of any turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from torch_distinput.data.stream.chunk import Chunk, Cursor
from torch_distinput.data.stream.chunk_reader import ChunkReader
from torch_distinput.plan.assignment.interleaving import NOBODY, Turn
from torch_distinput.plan.progress.position import Start

OpenPile = Callable[[int, int], Iterator[Chunk]]
"""Reads a pile by its number, from one of its rows on."""


@dataclass(slots=True)
class _Visited:
    """A pile on a place of the cycle, and how many of its rows were handed over."""

    partition: int
    row: int
    reader: ChunkReader


def interleaved(
    opened: Iterator[tuple[int, Iterator[Chunk]]],
    open_pile: OpenPile,
    cycle: tuple[int, int],
    start: Start,
) -> Iterator[Chunk]:
    """Read ``cycle_length`` piles in turn, a block from each.

    As in ``tf.data.Dataset.interleave``: a pile that ends gives its place to the next one, whose
    turn comes when the place is visited again. Rows stand behind the beginning of their turn.

    Args:
        opened: the piles that come next, with their numbers.
        open_pile: opens the piles that a turn began with.
        cycle: its length, and that of a block.
        start: the next pile, and for each place a pile and a row of it; () at the beginning.
    """
    cycle_length, block_length = cycle
    places: list[_Visited | None] = [
        None
        if partition == NOBODY
        else _Visited(partition, row, ChunkReader(open_pile(partition, row)))
        for partition, row in zip(start[1::2], start[2::2], strict=True)
    ] or [None] * cycle_length
    next_pile = start[0] if start else 0
    more = True
    while more or any(places):
        turn, skip = _turn(next_pile, places), 0
        for number in range(cycle_length):
            if places[number] is None and more:
                came = next(opened, None)
                more = came is not None
                if came is not None:
                    places[number] = _Visited(came[0], 0, ChunkReader(came[1]))
                    next_pile = came[0] + 1
            places[number], block = _block(places[number], block_length)
            if block is not None:
                yield replace(block, place=Cursor(start=turn, skip=skip, num_touched=next_pile))
                skip += block.num_rows


def turn_place(turn: Turn, row: int) -> Cursor:
    """Where a row stands behind a turn that begins before it."""
    start = (turn.next_file, *(number for place in turn.places for number in place))
    return Cursor(start=start, skip=row - turn.row)


def _turn(next_pile: int, places: list[_Visited | None]) -> Start:
    pairs = (
        (NOBODY, 0) if visited is None else (visited.partition, visited.row) for visited in places
    )
    return (next_pile, *(number for pair in pairs for number in pair))


def _block(visited: _Visited | None, length: int) -> tuple[_Visited | None, Chunk | None]:
    """Take a block; a pile that fell short has ended."""
    block = visited.reader.take(length) if visited else None
    if visited is None or block is None:
        return None, None
    visited.row += block.num_rows
    return (visited if block.num_rows == length else None), block
