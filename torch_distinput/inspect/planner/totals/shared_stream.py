"""An epoch of one stream that all workers share (DATA): one step a batch, piece p to replica p."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from torch_distinput.inspect.planner.totals.epoch_totals import NEVER, EpochTotals, Integers, Pieces
from torch_distinput.plan.assignment.order import Run


def total_shared_stream(pieces: Pieces, runs: Iterable[Run], num_dropped: int) -> EpochTotals:
    """Count what each worker gets of batches; those of one size are counted together."""
    per_worker = pieces.per_worker
    examples, filled = np.zeros((2, pieces.num_workers), dtype=np.int64)
    first_zero = np.full(pieces.num_workers, NEVER, dtype=np.int64)
    steps = zero_row_steps = 0
    known: dict[int, tuple[Integers, Integers]] = {}
    for run in runs:
        if not run.size:
            continue
        if run.size not in known:
            known[run.size] = rows, full = _deal(pieces, run.size)
            first_zero[(full < per_worker) & (first_zero == NEVER)] = steps
        rows, full = known[run.size]
        examples += run.count * rows
        filled += run.count * full
        steps += run.count
        zero_row_steps += run.count * bool((full < per_worker).any())
    return EpochTotals(
        steps=steps,
        num_dropped=num_dropped,
        examples=examples,
        zero_row_batches=steps * per_worker - filled,
        first_zero_row_step=first_zero,
        zero_row_steps=zero_row_steps,
    )


def _deal(pieces: Pieces, size: int) -> tuple[Integers, Integers]:
    """The rows of each worker in a batch, and how many of its replicas have some."""
    bounds = pieces.bound(size, np.arange(pieces.in_sync + 1))
    sizes = np.diff(bounds).reshape(pieces.num_workers, pieces.per_worker)
    return sizes.sum(axis=1), (sizes > 0).sum(axis=1)
