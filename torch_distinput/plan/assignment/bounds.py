"""Where each global batch begins and ends. Only this module knows; all others ask it.

    row    first              begin(1)           begin(2)           begin(3)      stop
           |     batch 0      |     batch 1      |     batch 2      |   batch 3   |
                                                                      partial: dropped or kept

A row is one of a worker's stream, of the stream that all workers share, or a place in an order.
Batches of sizes that are given, or that follow from a budget, would answer the same questions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

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
