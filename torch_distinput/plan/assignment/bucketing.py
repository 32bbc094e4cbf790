"""Buckets: examples of about one length share a global batch, inside windows of the order.

Of two windows of 8 examples, in global batches of 2, with a bucket up to length 4 and one above::

    order     a b c d e f g h | i j k l ...     as it would be played without
    length    9 2 3 8 1 7 2 9 |
    bucket    1 0 0 1 0 1 0 1 |
    by bucket b c, e g, a d, f h                sorted, stable, and cut into global batches
    played    a d, b c, f h, e g                the batches in another order: else each window
                                                would go from short to long

Each window is worked out by itself, so any place of the order can be asked for. Windows hold whole
global batches; what is left over at the end of all, less than a batch, stays where it is. So
``drop_last`` drops what it would drop without buckets.

Batches by a token budget are cut from a window when it is sorted, and none goes on in the next one.
The last of them, which may not be full, stays the last of its window.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from torch_distinput.plan.assignment.bounds import BatchBudget, Size, find_begins
from torch_distinput.plan.assignment.order import ExampleOrder
from torch_distinput.plan.assignment.permutation import Indices, permute

BucketNumbers = NDArray[np.uint16]
MOST_BOUNDARIES = np.iinfo(np.uint16).max
"""Buckets are 16-bit numbers, which are sorted in a fifth of the time."""
_KEY = 0xB0C4
"""Part of the key of the order of batches: no other order has the same key."""
_MOST_KEPT = 2
"""Windows of an order that are kept: the one that is played, and the next."""


def round_window(window: int, global_batch_size: int) -> int:
    """Return the size of windows of whole global batches."""
    return -(-window // global_batch_size) * global_batch_size


def find_buckets(lengths: Indices, boundaries: tuple[int, ...]) -> BucketNumbers:
    """Return the bucket of each length: bucket i holds those up to ``boundaries[i]``."""
    return np.searchsorted(np.array(boundaries), lengths).astype(np.uint16)


def make_window_key(seed: int, epoch: int, window: int) -> tuple[int, ...]:
    """The key of the order of the batches in a window of an epoch."""
    return (seed, epoch, window, _KEY)


def sort_window(
    buckets: BucketNumbers, global_batch_size: int, *, key: tuple[int, ...] | None
) -> Indices:
    """Return the places of a window in the order in which they are played.

    Args:
        buckets: of each place, as they come.
        global_batch_size: examples of a batch; what does not fill one comes last, unchanged.
        key: of the permutation of the batches; None: each comes in the turn of its first example.
    """
    count = len(buckets)
    full = count - count % global_batch_size
    by_bucket = np.argsort(buckets[:full], kind="stable")
    batches = np.sort(by_bucket.reshape(-1, global_batch_size), axis=1)
    turns = np.argsort(batches[:, 0]) if key is None else permute(len(batches), key=key)
    return np.concatenate([batches[turns].ravel(), np.arange(full, count)])


def sort_window_by_budget(
    buckets: BucketNumbers, counted: Indices, budget: BatchBudget, *, key: tuple[int, ...] | None
) -> tuple[Indices, Indices]:
    """Return the places of a window in the order in which they are played, and the batches' sizes.

    Args:
        buckets: of each place, as they come.
        counted: the tokens that each counts for, of which each fits into the budget.
        budget: what a batch may hold.
        key: as in :func:`sort_window`.
    """
    by_bucket = np.argsort(buckets, kind="stable")
    totals = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counted[by_bucket])])
    begins = find_begins(totals, budget)
    batches = list(map(np.sort, np.split(by_bucket, begins[1:-1])))
    firsts = [int(batch[0]) for batch in batches[:-1]]
    turns = np.argsort(firsts) if key is None else permute(len(firsts), key=key)
    played = [*(batches[turn] for turn in turns.tolist()), batches[-1]]
    return np.concatenate(played), np.array(list(map(len, played)), dtype=np.int64)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Bucketing:
    """How examples by index are put into buckets.

    Attributes:
        buckets: of each index.
        window: examples that are sorted together; of batches of one size, a multiple of that.
        size: examples of a batch, or tokens.
        shuffle: batches come in an order of the epoch, else in the turn of their first examples.
        counted: the tokens that each index counts for, where batches hold tokens.
    """

    buckets: BucketNumbers
    window: int
    size: Size
    shuffle: bool
    counted: Indices | None = None

    def apply(self, order: ExampleOrder, *, seed: int, epoch: int) -> BucketedOrder:
        """Return the order of an epoch with buckets."""
        return BucketedOrder(order=order, bucketing=self, seed=seed, epoch=epoch)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BucketedOrder:
    """An order whose windows are sorted by bucket, and its batches put in another order.

    Attributes:
        order: the one that is sorted.
        bucketing: how.
        seed: the caller's.
        epoch: which epoch it is of.
    """

    order: ExampleOrder
    bucketing: Bucketing
    seed: int
    epoch: int
    _kept: dict[int, tuple[Indices, Indices]] = field(default_factory=dict)

    @property
    def num_examples(self) -> int:
        """As many as without buckets."""
        return self.order.num_examples

    def take_range(self, start: int, stop: int) -> Indices:
        """Return the indices of the positions ``start`` (inclusive) to ``stop`` (exclusive)."""
        return self.take(np.arange(start, min(stop, self.num_examples)))

    def take(self, positions: Indices) -> Indices:
        """Return the indices at positions, in an array of their own."""
        flat = positions.ravel()
        windows, places = np.divmod(flat, self.bucketing.window)
        found = np.empty_like(flat)
        # Runs of one window: positions that follow one another make as many as there are windows.
        ends = [*(np.flatnonzero(np.diff(windows)) + 1).tolist(), len(flat)]
        start = 0
        for end in ends:
            if start < end:
                indices, _ = self._window(int(windows[start]))
                found[start:end] = indices[places[start:end]]
            start = end
        return found.reshape(positions.shape)

    def find_begins(self) -> Indices:
        """The places at which batches by a budget begin, and the end of the last one."""
        num_windows = -(-self.num_examples // self.bucketing.window)
        sizes = [self._window(number)[1] for number in range(num_windows)]
        return np.cumsum(np.concatenate([np.zeros(1, dtype=np.int64), *sizes]))

    def _window(self, number: int) -> tuple[Indices, Indices]:
        """The indices of a window as they are played, and the sizes of batches by a budget."""
        kept = self._kept.get(number)
        if kept is not None:
            return kept
        how = self.bucketing
        first = number * how.window
        indices = self.order.take_range(first, min(first + how.window, self.num_examples))
        key = make_window_key(self.seed, self.epoch, number) if how.shuffle else None
        while len(self._kept) >= _MOST_KEPT:
            self._kept.pop(next(iter(self._kept)))
        buckets, sizes = how.buckets[indices], np.empty(0, dtype=np.int64)
        if isinstance(how.size, BatchBudget):
            assert how.counted is not None, "a budget counts something"
            counted = how.counted[indices]
            places, sizes = sort_window_by_budget(buckets, counted, how.size, key=key)
        else:
            places = sort_window(buckets, how.size, key=key)
        self._kept[number] = found = (indices[places], sizes)
        return found
