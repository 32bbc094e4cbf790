"""Where global batches begin, end and stop."""

from __future__ import annotations

import itertools

import numpy as np

from torch_distinput.plan.assignment.bounds import FixedBounds


def test_batches_begin_where_the_one_before_ends():
    for size, first in itertools.product(range(1, 6), range(4)):
        bounds = FixedBounds(size=size, first=first)
        assert first == bounds.begin(0)
        for batch in range(5):
            assert bounds.begin(batch + 1) == bounds.end(batch) == bounds.begin(batch) + size


def test_many_batches_are_asked_for_at_once():
    bounds = FixedBounds(size=4, first=3)
    assert [3, 7, 11] == bounds.begin(np.arange(3)).tolist()


def test_batches_hold_every_row_before_the_end():
    """Each row lies in one batch; with ``drop_last`` what is left is less than a batch."""
    for size, first, num_rows in itertools.product(range(1, 6), range(4), range(20)):
        bounds, stop = FixedBounds(size=size, first=first), first + num_rows
        kept = bounds.count_batches(stop, drop_last=False)
        full = bounds.count_batches(stop, drop_last=True)
        batches = [range(bounds.begin(k), min(stop, bounds.end(k))) for k in range(kept)]
        assert list(range(first, stop)) == list(itertools.chain(*batches))
        assert all(batches)
        assert full == sum(len(batch) == size for batch in batches)
        assert stop == bounds.find_last_end(stop, drop_last=False)
        assert bounds.begin(full) == bounds.find_last_end(stop, drop_last=True)
