"""Where files stand when they are read in turn, by arithmetic over their numbers of records.

Files take the places of a cycle; each visit of a place hands over a block of records. A file of n
records holds its place for ``n // block_length + 1`` visits: in the last one it falls short, or has
nothing left. Then the next file takes the place, at the visit after.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NOBODY = -1
"""The file on a place that is free."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """The beginning of one turn around the cycle.

    Attributes:
        next_file: the first file that has not been opened.
        places: for each place the file on it and how many of its records have been handed over.
        row: how many records of all files have.
    """

    next_file: int
    places: tuple[tuple[int, int], ...]
    row: int


def find_last_turn(lengths: Sequence[int], cycle: tuple[int, int], row: int) -> Turn:
    """The last turn that begins at or before a row."""
    cycle_length, block_length = cycle
    counts = np.array(lengths, dtype=np.int64)
    visits = counts // block_length + 1
    opened, places = _schedule(visits.tolist(), cycle_length)
    first, last = 0, int((opened + visits).max(initial=0))
    while first < last:  # the last turn in first..last before which at most ``row`` were handed out
        middle = (first + last + 1) // 2
        if _handed_out(counts, opened, block_length, middle).sum() <= row:
            first = middle
        else:
            last = middle - 1
    done = _handed_out(counts, opened, block_length, first)
    on_places = [(NOBODY, 0)] * cycle_length
    for file in np.flatnonzero((opened < first) & (first < opened + visits)).tolist():
        on_places[places[file]] = (file, int(done[file]))
    next_file = int((opened < first).sum())
    return Turn(next_file=next_file, places=tuple(on_places), row=int(done.sum()))


def count_opened(lengths: Sequence[int], cycle: tuple[int, int], num_rows: int) -> int:
    """How many files have been opened when so many rows were handed out."""
    turn = find_last_turn(lengths, cycle, max(0, num_rows - 1))
    return min(len(lengths), turn.next_file + cycle[0]) if num_rows else 0


def _schedule(visits: Sequence[int], cycle_length: int) -> tuple[NDArray[np.int64], list[int]]:
    """The turn in which each file is opened, and its place."""
    free = [(0, place) for place in range(cycle_length)]
    opened, places = [], []
    for number in visits:
        turn, place = heapq.heappop(free)
        opened.append(turn)
        places.append(place)
        heapq.heappush(free, (turn + number, place))
    return np.array(opened, dtype=np.int64), places


def _handed_out(
    counts: NDArray[np.int64], opened: NDArray[np.int64], block_length: int, turn: int
) -> NDArray[np.int64]:
    """Records of each file that were handed out before a turn."""
    return np.clip((turn - opened) * block_length, 0, counts)
