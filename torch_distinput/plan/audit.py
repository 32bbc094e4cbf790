"""Sums over the names of examples: equal when the same examples were delivered, in any order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_LIMIT = 1 << 64
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)


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
    """Sum ids of shape ``(rows,)`` or ``(rows, k)``. The products wrap around on purpose."""
    words = ids.view(np.uint64) if ids.flags.c_contiguous else ids.astype(np.uint64)
    mixed = words[:, 0] if words.ndim > 1 else words
    mixed = (mixed + np.uint64(1)) * _SPREAD
    for column in range(1, words.shape[1] if words.ndim > 1 else 1):
        mixed = (mixed ^ (mixed >> _HALF)) * _MIX + words[:, column]
    mixed = (mixed ^ (mixed >> _HALF)) * _MIX
    mixed ^= mixed >> _HALF
    return IdSum(count=len(ids), digest=int(mixed.sum(dtype=np.uint64)))
