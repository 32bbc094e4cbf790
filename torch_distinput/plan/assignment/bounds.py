"""Where each global batch begins and ends. Only this module knows; all others ask it.

    row    first              begin(1)           begin(2)           begin(3)      stop
           |     batch 0      |     batch 1      |     batch 2      |   batch 3   |
                                                                      partial: dropped or kept

A row is one of a worker's stream, of the stream that all workers share, or a place in an order.
Batches by a budget begin where the one before is full; see ``budget_batches.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

LARGEST_BUDGET = 1 << 48
"""Tokens of a batch: what is added to these, and thousands of rows beyond, is an int64 still."""
BatchNumber = TypeVar("BatchNumber", int, NDArray[np.int64])


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedBounds:
    """Global batches of one size; the last may be partial.

    Attributes:
        size: rows of a full batch.
        first: the row with which batch 0 begins.
    """

    size: int
    first: int = 0

    def begin(self, batch: BatchNumber) -> BatchNumber:
        """Return the row with which a batch begins, or each of some batches."""
        return self.first + batch * self.size

    def end(self, batch: int) -> int:
        """Return the row after the last one of a batch, if it is full."""
        return self.begin(batch + 1)

    def count_batches(self, stop: int, *, drop_last: bool) -> int:
        """Count the batches of the rows before ``stop``."""
        num_rows = stop - self.first
        return num_rows // self.size if drop_last else -(-num_rows // self.size)

    def find_last_end(self, stop: int, *, drop_last: bool) -> int:
        """Return the row after the last batch of the rows before ``stop``."""
        return min(stop, self.begin(self.count_batches(stop, drop_last=drop_last)))


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchBudget:
    """What a global batch may hold, where examples have lengths.

    Attributes:
        num_tokens: the most that the lengths of its examples may add up to.
        max_length: what a longer example counts for; None: each counts for its length.
    """

    num_tokens: int
    max_length: int | None = None

    def cap(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return what examples of some lengths count for."""
        return lengths if self.max_length is None else np.minimum(lengths, self.max_length)

    def count_fitting(self, counted: NDArray[np.int64]) -> int:
        """Count the rows that fit into a batch, from the first on."""
        # What fits into no batch counts for one too many: larger numbers add up beyond an int64.
        counted = np.minimum(counted, self.num_tokens + 1)
        return int(np.searchsorted(np.cumsum(counted), self.num_tokens, side="right"))


Size = int | BatchBudget
"""Of a full global batch: its examples, or its tokens."""


def find_begins(totals: NDArray[np.int64], budget: BatchBudget) -> NDArray[np.int64]:
    """Return the rows with which batches begin, and the end of the last one.

    Where a batch would end is found for all rows at once; then only some of these ends are used:

        row            0   1   2   3   4   5
        its batch ends 2   2   4   5   5   6      0 -> 2 -> 4 -> 5 -> 6

    Args:
        totals: the tokens before each row, and before the end; each row fits by itself.
        budget: what a batch may hold.
    """
    ends = np.searchsorted(totals, totals[:-1] + budget.num_tokens, side="right") - 1
    follow, row, stop = ends.tolist(), 0, len(totals) - 1
    begins = [0]
    while row < stop:
        row = follow[row]
        begins.append(row)
    return np.array(begins, dtype=np.int64)
