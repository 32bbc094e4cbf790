"""Which tokens of which documents each packed row has: integers, the same on all workers.

A row is made of *pieces*: tokens of one document that follow each other. Rows of 8 tokens, of
documents of 5, 6, 3, 10 and 2 tokens:

    best_fit       0 0 0 0 0 2 2 2 | 1 1 1 1 1 1 3 3 | 3 3 3 3 3 3 3 3 | 4 4 . . . . . .
    concatenate    0 0 0 0 0 1 1 1 | 1 1 1 2 2 2 3 3 | 3 3 3 3 3 3 3 3 | 4 4 . . . . . .

*Best fit* takes windows of documents. A document longer than a row is cut into whole rows and a
rest. Then the longest piece of the window goes first, each into the row in which it leaves least
space, of the first row among equals, or into a new row. No piece is cut, so a document that fits
into a row is whole. Documents stay in order: in a row, and from row to row by the first of each.

*Concatenation* cuts documents where a row is full. Only the last row has space left.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from itertools import chain, pairwise
from operator import neg
from typing import final

import numpy as np

from torch_distinput.plan.assignment.permutation import Indices

BEST_FIT, CONCATENATE = "best_fit", "concatenate"
WAYS_TO_PACK = (BEST_FIT, CONCATENATE)


@final
@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PackedRows:
    """Rows of one length, and the pieces of documents in each.

    Attributes:
        row_length: tokens of a row, of which the last ones may be padding.
        first_pieces: ``(rows + 1,)``: the piece with which each row begins, and their number.
        documents: ``(pieces,)``: the document of each.
        starts: ``(pieces,)``: its first token, counted in the document.
        lengths: ``(pieces,)``: how many tokens it has, at least one.
    """

    row_length: int
    first_pieces: Indices
    documents: Indices
    starts: Indices
    lengths: Indices

    @property
    def num_rows(self) -> int:
        """How many there are."""
        return len(self.first_pieces) - 1

    @property
    def num_tokens(self) -> int:
        """Tokens of all rows, without padding."""
        return int(self.lengths.sum())

    @property
    def waste(self) -> float:
        """The share of padding in all rows."""
        size = self.num_rows * self.row_length
        return (size - self.num_tokens) / size if size else 0.0

    def count_contents(self) -> Indices:
        """``(rows, 3)``: of each row its pieces, their tokens, and its places with padding."""
        firsts, places = self.first_pieces, np.full(self.num_rows, self.row_length)
        before = np.append(0, np.cumsum(self.lengths))
        return np.column_stack([np.diff(firsts), np.diff(before[firsts]), places])

    def lay_out(self, rows: Indices) -> RowLayout:
        """Say what is where in some rows."""
        firsts = self.first_pieces[rows]
        counts = self.first_pieces[rows + 1] - firsts
        pieces = np.repeat(firsts, counts) + count_up(counts)
        lengths = self.lengths[pieces]
        ends = np.cumsum(counts)
        filled = np.add.reduceat(lengths, ends - counts) if len(rows) else lengths
        return RowLayout(
            row_length=self.row_length,
            documents=self.documents[pieces],
            starts=self.starts[pieces],
            lengths=lengths,
            numbers=count_up(counts) + 1,
            ends=ends,
            filled=filled,
        )


@final
@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RowLayout:
    """Some rows, one behind the other.

    Attributes:
        row_length: tokens of a row with its padding.
        documents: ``(pieces,)``: the document of each piece, row by row.
        starts: ``(pieces,)``: its first token, counted in the document.
        lengths: ``(pieces,)``: how many tokens it has.
        numbers: ``(pieces,)``: 1, 2, ... in each row.
        ends: ``(rows,)``: the piece after the last one of each row.
        filled: ``(rows,)``: tokens of each row without padding.
    """

    row_length: int
    documents: Indices
    starts: Indices
    lengths: Indices
    numbers: Indices
    ends: Indices
    filled: Indices

    @property
    def num_rows(self) -> int:
        """How many there are."""
        return len(self.ends)


def count_up(counts: Indices) -> Indices:
    """0, 1, 2, ... for each of some counts, one behind the other."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)


def pack_documents(lengths: Indices, row_length: int, *, how: str, window: int) -> PackedRows:
    """Plan rows of documents.

    Args:
        lengths: tokens of each document, from 0 on.
        row_length: tokens of a row.
        how: one of :data:`WAYS_TO_PACK`.
        window: documents that are packed together for the best fit.
    """
    if how == CONCATENATE:
        return _concatenate(lengths, row_length)
    counts = -(-lengths // row_length)
    documents = np.repeat(np.arange(len(lengths)), counts)
    starts = count_up(counts) * row_length
    pieces = np.minimum(lengths[documents] - starts, row_length)
    if not len(pieces):
        return PackedRows(
            row_length=row_length,
            first_pieces=np.zeros(1, dtype=np.int64),
            documents=documents,
            starts=starts,
            lengths=pieces,
        )
    bounds = _find_bounds(documents // window)
    rows = _find_best_rows(pieces, bounds, row_length)
    # Rows are named by their first pieces, so that their order is that of these.
    firsts = np.empty(int(rows.max()) + 1, dtype=np.int64)
    firsts[rows[::-1]] = np.arange(len(rows))[::-1]  # of several the last assigned stays
    named = firsts[rows]
    sizes = np.diff(bounds)
    order = _sort_windows(named - np.repeat(bounds[:-1], sizes), bounds, int(sizes.max()))
    is_first = np.diff(named[order], prepend=-1) != 0
    return PackedRows(
        row_length=row_length,
        first_pieces=np.append(np.flatnonzero(is_first), len(order)),
        documents=documents[order],
        starts=starts[order],
        lengths=pieces[order],
    )


def _concatenate(lengths: Indices, row_length: int) -> PackedRows:
    """Cut where a document begins, and where a row does."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    begins = ends - lengths
    cuts = np.concatenate([begins[lengths > 0], np.arange(0, total, row_length)])
    cuts.sort(kind="stable")  # merges the two
    cuts = cuts[np.diff(cuts, prepend=-1) > 0]
    documents = np.searchsorted(ends, cuts, side="right")
    num_rows = -(-total // row_length)
    return PackedRows(
        row_length=row_length,
        first_pieces=np.searchsorted(cuts, np.arange(num_rows + 1) * row_length),
        documents=documents,
        starts=cuts - begins[documents],
        lengths=np.diff(cuts, append=total),
    )


def _find_bounds(windows: Indices) -> Indices:
    """The first piece of each window, and their number."""
    return np.append(np.flatnonzero(np.diff(windows, prepend=-1)), len(windows))


def _sort_windows(keys: Indices, bounds: Indices, largest: int) -> Indices:
    """The order of pieces by keys from 0 to ``largest``, stably, each window by itself."""
    small = keys.astype(np.min_scalar_type(largest))  # two bytes are sorted by their digits
    orders = [small[begin:end].argsort(kind="stable") for begin, end in pairwise(bounds.tolist())]
    return np.concatenate(orders) + np.repeat(bounds[:-1], np.diff(bounds))


def _find_best_rows(pieces: Indices, bounds: Indices, row_length: int) -> Indices:
    """The row of each piece; those of a window follow those of the window before."""
    order = _sort_windows(row_length - pieces, bounds, row_length)
    sizes = pieces[order]
    is_other = np.diff(sizes, prepend=0) != 0
    is_other[bounds[:-1]] = True
    runs = np.flatnonzero(is_other)  # of pieces of one size
    # What is left of a row and its number in one integer, so that the row with least space that is
    # enough, the first among equals, is the next one in a sorted list.
    counts = np.diff(bounds)
    shift = int(counts.max()).bit_length()
    ends = np.searchsorted(runs, bounds)
    wanted = _split(sizes[runs] << shift, ends)
    times = _split(np.diff(runs, append=len(sizes)), ends)
    found = [_fit_best(*own, row_length << shift) for own in zip(wanted, times, strict=True)]
    rows = count_up(counts)  # of pieces that have a row each; the others follow
    chosen = np.fromiter(chain.from_iterable(own for own, _, _ in found), dtype=np.int64)
    taken = np.fromiter(chain.from_iterable(own for _, own, _ in found), dtype=np.int64)
    rows[sizes <= row_length // 2] = np.repeat(chosen & ((1 << shift) - 1), taken)
    num_rows = np.array([num for _, _, num in found])
    rows += np.repeat(np.cumsum(num_rows) - num_rows, counts)
    placed = np.empty_like(rows)
    placed[order] = rows
    return placed


def _split(values: Indices, bounds: Indices) -> list[list[int]]:
    """Windows of values."""
    plain = values.tolist()
    return [plain[begin:end] for begin, end in pairwise(bounds.tolist())]


def _fit_best(
    sizes: list[int], counts: list[int], whole: int
) -> tuple[list[int], list[int], int]:
    """Choose rows for the pieces of a window: runs of pieces of one size, the longest first.

    Pieces longer than half a row have one each, in order. Where one piece of a run of shorter ones
    has gone, there is less space than in any other row that is long enough: the next one goes there
    too as long as it fits, and then into the row behind it in the list.

    Returns:
        Of the shorter pieces, for each few of a run what is left of their row and its number, and
        how many they are; and the number of rows.
    """
    smallest = sizes[-1]
    spaces: list[int] = []
    alone = bisect_left(sizes, -(whole // 2), key=neg)
    num_rows = 0
    for size, count in zip(sizes[:alone], counts[:alone], strict=True):
        if whole - size >= smallest:
            spaces += range(whole - size + num_rows, whole - size + num_rows + count)
        num_rows += count
    spaces.append(whole + num_rows)  # a row that is not begun
    chosen: list[int] = []
    taken: list[int] = []
    for size, count in zip(sizes[alone:], counts[alone:], strict=True):
        at, left = bisect_left(spaces, size), count
        while left:
            space = spaces[at]
            if space >= whole:
                num_rows += 1
                spaces.append(whole + num_rows)
            num = left if left * size <= space else space // size
            left -= num
            space -= num * size
            chosen.append(space)
            taken.append(num)
            if space < smallest:  # nothing of this window fits any more
                del spaces[at]
                continue
            if at and spaces[at - 1] > space:
                del spaces[at]
                insort(spaces, space, 0, at)
            else:
                spaces[at] = space
            at += 1
    return chosen, taken, num_rows
