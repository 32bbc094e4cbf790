"""Sums over the names of examples: equal when the same examples were delivered, in any order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_LIMIT = 1 << 64
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
_BLOCK = 1 << 13
"""Ids that are summed at a time: they stay in the cache."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IdSum:
    """How many examples, and the sum of a 64-bit hash of their ids."""

    count: int = 0
    digest: int = 0

    def __add__(self, other: IdSum) -> IdSum:
        """Both together."""
        digest = (self.digest + other.digest) % _LIMIT
        return IdSum(count=self.count + other.count, digest=digest)


def summed(ids: NDArray[np.int64]) -> IdSum:
    """Sum ids of shape ``(rows,)`` or ``(rows, k)``."""
    blocks = (ids[start : start + _BLOCK] for start in range(0, len(ids), _BLOCK))
    return IdSum(count=len(ids), digest=sum(map(_digest, blocks)) % _LIMIT)


@lru_cache(maxsize=4)
def sum_of_range(start: int, stop: int) -> IdSum:
    """The sum of consecutive ids: the same in every epoch."""
    blocks = range(start, stop, _BLOCK)
    parts = (summed(np.arange(first, min(stop, first + _BLOCK))) for first in blocks)
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
