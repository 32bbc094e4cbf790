"""Sums over the names of examples: equal when the same examples were delivered, in any order.

And what each worker has read of a stream that all of them share: equal when it was the same one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_LIMIT = 1 << 64
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
_BLOCK = 1 << 13
"""Ids that are summed at a time: they stay in the cache."""
MOST_WINDOWS = 64
"""Of a reading: there are half as many at least, once it is long enough."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IdSum:
    """How many examples, and the sum of a 64-bit hash of their ids."""

    count: int = 0
    digest: int = 0

    def __add__(self, other: IdSum) -> IdSum:
        """Both together."""
        digest = (self.digest + other.digest) % _LIMIT
        return IdSum(count=self.count + other.count, digest=digest)


def sum_ids(ids: NDArray[np.int64]) -> IdSum:
    """Sum ids of shape ``(rows,)`` or ``(rows, k)``."""
    blocks = (ids[start : start + _BLOCK] for start in range(0, len(ids), _BLOCK))
    return IdSum(count=len(ids), digest=sum(map(_digest, blocks)) % _LIMIT)


@lru_cache(maxsize=4)
def sum_range(start: int, stop: int) -> IdSum:
    """The sum of consecutive ids: the same in every epoch."""
    blocks = range(start, stop, _BLOCK)
    parts = (sum_ids(np.arange(first, min(stop, first + _BLOCK))) for first in blocks)
    return sum(parts, IdSum())


def _digest(ids: NDArray[np.int64]) -> int:
    """The products wrap around on purpose."""
    words = ids.astype(np.uint64).reshape(len(ids), -1)
    mixed = words[:, 0]
    for column in range(words.shape[1]):
        if column:
            mixed = mixed + words[:, column]
        mixed = mixed * _SPREAD
        mixed ^= mixed >> _HALF
        mixed *= mixed | np.uint64(1)
    return int(mixed.sum(dtype=np.uint64))


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What one worker read of a stream that others read too.

    Attributes:
        unit: what the stream consists of: examples, or batches.
        first: the running number of the first of them that was read.
        count: how many were read.
        stop: the running number of the row after the last one.
        width: how many are in a window; the last one may have fewer.
        windows: a digest of each window.
    """

    unit: str
    first: int
    count: int
    stop: int
    width: int = 1
    windows: tuple[int, ...] = ()

    @property
    def digest(self) -> int:
        """Of all of it."""
        digest = self.count
        for window in (self.stop, *self.windows):
            digest = _together(digest, window)
        return digest

    def find_difference(self, other: Reading) -> range:
        """The numbers among which is the first item that differs from another worker's."""
        width = max(self.width, other.width)
        pairs = zip(self._widened(width), other._widened(width), strict=False)
        same = next((at for at, (one, two) in enumerate(pairs) if one != two), None)
        if same is None:  # one is the beginning of the other, but for what makes no whole window
            same = min(self.count, other.count) // width
        start = same * width
        stop = min(start + width, max(self.count, other.count))
        return range(self.first + start, self.first + stop)

    def _widened(self, width: int) -> tuple[int, ...]:
        """The digests of whole windows of another width."""
        windows, own = self.windows[: self.count // self.width], self.width
        while own < width:
            windows, own = join_windows(windows), 2 * own
        return windows


def join_windows(windows: Sequence[int]) -> tuple[int, ...]:
    """The digests of windows of twice the width; one that is left over is left out."""
    return tuple(map(_together, windows[::2], windows[1::2]))


def find_others(digests: Sequence[int]) -> tuple[int, list[int]]:
    """A worker that read what most have read, or else worker 0; and those that did not."""
    digest, count = Counter(digests).most_common(1)[0]
    if 2 * count <= len(digests):
        digest = digests[0]
    others = [worker for worker, own in enumerate(digests) if own != digest]
    return digests.index(digest), others


def _together(one: int, two: int) -> int:
    """A digest that depends on the order."""
    mixed = (one * int(_SPREAD) + two) % _LIMIT
    return (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9 % _LIMIT
