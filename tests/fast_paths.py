"""Every fast path for every batch, or none: what the contracts promise must not depend on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from torch_distinput.data import indexed, slots, structure
from torch_distinput.plan import order, permutation

NAMES = ("fast paths", "plain paths")


@contextmanager
def switched(name: str) -> Iterator[None]:
    """Take the fast paths also where they do not pay, or leave them all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structure, "_known_batches", {})
        patch.setattr(structure, "_known_examples", {})
        if name == "fast paths":
            patch.setattr(indexed, "LARGE", 1)  # also small batches in memory that is used again
        else:
            patch.setattr(indexed, "LARGE", 1 << 62)  # each batch in fresh memory
            patch.setattr(slots, "_MOST_SLOTS", 0)  # loader processes send results torch's way
            patch.setattr(structure, "_MOST_KNOWN", 0)  # batches are walked over
            patch.setattr(permutation, "_LARGEST_TABLE", 0)  # orders are worked out
            patch.setattr(order, "_BLOCK", 1)  # a batch at a time
        yield
