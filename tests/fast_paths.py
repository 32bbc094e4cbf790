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


@contextmanager
def switched(name: str) -> Iterator[None]:
    """Take the fast paths also where they do not pay, or leave them all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree, "_known_batches", {})
        patch.setattr(tree, "_known_examples", {})
        if name == "fast paths":
            patch.setattr(indexed, "LARGE", 1)  # also small batches in memory that is used again
        else:
            patch.setattr(indexed, "LARGE", 1 << 62)  # each batch in fresh memory
            patch.setattr(shared_memory, "_MOST_SLOTS", 0)  # loaders send results torch's way
            patch.setattr(tree, "_MOST_KNOWN", 0)  # batches are walked over
            patch.setattr(permutation, "_LARGEST_TABLE", 0)  # orders are worked out
            patch.setattr(order, "_BLOCK", 1)  # a batch at a time
        yield
