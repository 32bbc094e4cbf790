"""Every fast path for every batch, or none: what the contracts promise must not depend on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from torch_distinput.data.batch import tree
from torch_distinput.data.loader import shared_memory
from torch_distinput.data.sources import indexed
from torch_distinput.plan.assignment import order, permutation

NAMES = ("fast paths", "plain paths")
# For each path a name of a module, and the value with which it is never taken.
PATHS = {
    "memory that is used again": (indexed, "LARGE", 1 << 62),
    "loader processes' shared memory": (shared_memory, "_MOST_SLOTS", 0),
    "code for each structure": (tree, "_MOST_KNOWN", 0),
    "tables of an order": (permutation, "_LARGEST_TABLE", 0),
    "blocks of batches": (order, "_BLOCK", 1),
}


@contextmanager
def switched(name: str) -> Iterator[None]:
    """Take the fast paths also where they do not pay, but for one that is named; or leave all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree, "_known_batches", {})
        patch.setattr(tree, "_known_examples", {})
        permutation.make_network.cache_clear()
        patch.setattr(indexed, "LARGE", 1)  # also small batches in memory that is used again
        for path, switch in PATHS.items():
            if name in ("plain paths", path):
                patch.setattr(*switch)
        yield
