"""Where global batches begin, end and stop."""

from __future__ import annotations

import itertools

import numpy as np

from torch_distinput.plan.assignment.bounds import BatchBudget, FixedBounds, find_begins


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


def test_a_batch_holds_what_fits_a_budget():
    """What fits exactly is in; so are rows of no length behind it."""
    lengths = np.array([3, 4, 0, 1, 7, 7])
    totals = np.concatenate([[0], np.cumsum(lengths)])
    budget = BatchBudget(num_tokens=7)
    assert [0, 3, 4, 5, 6] == find_begins(totals, budget).tolist()
    assert 3 == budget.count_fitting(lengths)
    assert [0] == find_begins(totals[:1], budget).tolist()
    assert 0 == budget.count_fitting(lengths[:0])


def test_rows_that_are_too_long_do_not_wrap_round():
    """Two of these lengths add up to a negative int64."""
    lengths = np.array([1, 2**62, 2**62, 5])
    assert 1 == BatchBudget(num_tokens=9).count_fitting(lengths)
    assert 0 == BatchBudget(num_tokens=9).count_fitting(lengths[1:])


def test_a_long_row_counts_for_less():
    assert [3, 9] == BatchBudget(num_tokens=9).cap(np.array([3, 9])).tolist()
    assert [3, 5] == BatchBudget(num_tokens=9, max_length=5).cap(np.array([3, 9])).tolist()
