"""What each worker gets in an epoch, counted without playing it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torch_distinput.options import Rebatch

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
NEVER = -1
"""In place of a step."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class EpochTotals:
    """An epoch over all workers; arrays have an element for each, in order.

    Attributes:
        steps: steps delivered.
        num_dropped: examples that ``drop_last`` leaves out.
        examples: examples of its replicas.
        zero_row_batches: batches without examples that its replicas get.
        first_zero_row_step: the first step in which one of them gets such a batch, or -1.
        zero_row_steps: steps in which any replica in sync gets one.
    """

    steps: int
    num_dropped: int
    examples: Integers
    zero_row_batches: Integers
    first_zero_row_step: Integers
    zero_row_steps: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Pieces:
    """How batches are cut: the rules of ``plan/assignment/batching.py`` for many workers at once.

    Attributes:
        num_workers: workers.
        per_worker: local replicas of each.
        rebatch: the rule.
        full_size: rows of a full batch; 0 where batches have sizes of their own.
    """

    num_workers: int
    per_worker: int
    rebatch: Rebatch
    full_size: int

    @property
    def in_sync(self) -> int:
        """Pieces of a batch."""
        return self.num_workers * self.per_worker

    @property
    def first(self) -> Integers:
        """The first piece of each worker."""
        return np.arange(self.num_workers, dtype=np.int64) * self.per_worker

    def bound(self, num_rows: Any, piece: Any) -> Any:
        """The row with which a piece begins, without rotation."""
        if self.rebatch is Rebatch.SPLIT:
            return np.minimum(num_rows, piece * -(-num_rows // self.in_sync))
        rows = self.full_size if self.rebatch is Rebatch.CYCLE else num_rows
        size, longer = np.divmod(rows, self.in_sync)
        return np.minimum(num_rows, piece * size + np.minimum(piece, longer))

    def count_filled(self, num_rows: Any) -> Any:
        """How many pieces of a batch have rows; they are the first ones, without rotation."""
        if self.rebatch is not Rebatch.SPLIT:
            assert self.rebatch is Rebatch.EVEN or np.ndim(num_rows) == 0, "cycle is rotated first"
            return np.minimum(num_rows, self.in_sync)
        return -(-num_rows // np.maximum(1, -(-num_rows // self.in_sync)))
