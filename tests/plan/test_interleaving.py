"""Files that are read in turn: arithmetic against a play of every turn."""

from __future__ import annotations

import itertools

import pytest

from torch_distinput.plan.assignment.interleaving import NOBODY, Turn, count_opened, find_last_turn

LISTS = [
    lengths for count in range(5) for lengths in itertools.product((0, 1, 2, 4), repeat=count)
]
CYCLES = list(itertools.product((1, 2, 3), (1, 2, 3)))


def play(lengths, cycle):
    """The beginning of each turn, and the files that rows come from."""
    cycle_length, block_length = cycle
    places, next_file, files, turns = [None] * cycle_length, 0, [], []
    while True:
        shown = tuple((NOBODY, 0) if place is None else place for place in places)
        turns.append(Turn(next_file=next_file, places=shown, row=len(files)))
        if next_file == len(lengths) and not any(places):
            return turns, files
        for number, place in enumerate(places):
            if place is None:
                if next_file == len(lengths):
                    continue
                place, next_file = (next_file, 0), next_file + 1  # noqa: PLW2901
            file, done = place
            count = min(block_length, lengths[file] - done)
            files += [file] * count
            places[number] = (file, done + count) if count == block_length else None


@pytest.mark.parametrize("cycle", CYCLES)
def test_the_last_turn_before_a_row(cycle):
    """From it, reading gives the same rows: the state of each place is that of the play."""
    for lengths in LISTS:
        turns, files = play(lengths, cycle)
        for row in range(len(files) + 1):
            expected = [turn for turn in turns if turn.row <= row][-1]
            assert expected == find_last_turn(lengths, cycle, row), (lengths, row)


@pytest.mark.parametrize("cycle", CYCLES)
def test_every_file_that_rows_are_from_has_been_opened(cycle):
    """And no more than the turn of the last row may open."""
    for lengths in LISTS:
        turns, files = play(lengths, cycle)
        for num_rows in range(len(files) + 1):
            opened = count_opened(lengths, cycle, num_rows)
            assert max(files[:num_rows], default=-1) < opened <= len(lengths)
            turn = [turn for turn in turns if turn.row < max(1, num_rows)][-1]
            assert opened <= turn.next_file + cycle[0]
            assert num_rows or not opened
