"""Static shapes: replica batches filled up to one number of rows, and a mask of the real ones.

Real rows come first. A full batch is passed through as it is; anything else is fresh memory, so
that nothing is written where the source, or a user who keeps batches, may still read.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, final

import torch

from torch_distinput.data.batch.leaf_kind import Order
from torch_distinput.data.batch.leaf_kinds import DENSE, kind_of, kind_of_spec
from torch_distinput.data.batch.structure import Structure
from torch_distinput.data.batch.tree import flatten, map_leaves
from torch_distinput.data.steps.local_step import ReplicaBatch
from torch_distinput.values import TensorSpec

_log = logging.getLogger(__name__)


@final
@dataclass(kw_only=True, slots=True)
class Padding:
    """How many rows the batches of a dataset are filled up to.

    Attributes:
        num_rows: that many; 0 where no batch has told it yet.
        grows: whether nobody knows it beforehand. Then it is that of the largest batch so far, so
            that sizes change seldom, and never back.
        name: what the dataset is called.
        has_warned: whether growing was warned of, which is done once.
    """

    num_rows: int
    grows: bool = False
    name: str = ""
    has_warned: bool = False

    @property
    def static_rows(self) -> int | None:
        """The rows that all batches have; None where that is found out as they come."""
        return None if self.grows else self.num_rows

    def make_room(self, parts: Sequence[ReplicaBatch]) -> int:
        """The rows for the batches of a step; at least one, so that a mask has something to say."""
        if self.grows:
            most = max(len(part.ids) for part in parts)
            if 0 < self.num_rows < most and not self.has_warned:
                self.has_warned = True
                _log.warning(
                    "%s: expected batches of %d rows or less, as before, got one of %d: from now "
                    "on batches are padded to the largest so far, and each larger one is a shape "
                    "to compile. Let the first batch be a full one.",
                    self.name,
                    self.num_rows,
                    most,
                )
            self.num_rows = max(self.num_rows, most)
        return max(1, self.num_rows)


def pad_batch(part: ReplicaBatch, num_rows: int) -> ReplicaBatch:
    """Fill a part that has rows up to ``num_rows``, and add the mask as its last leaf.

    The last real row is repeated, because what a loss makes of it is as finite as before: of rows
    of zeros a logarithm, or a norm's gradient, would not be. Jagged leaves get rows of no length.
    The ids stay those of the real rows.
    """
    count = len(part.ids)
    assert 0 < count <= num_rows, "no rule gives a replica more rows than its share of a full batch"
    leaves = part.leaves
    if count < num_rows:
        leaves = [kind_of(leaf).pad(leaf, count, num_rows) for leaf in leaves]
    return _add_mask(part, leaves, num_rows)


def make_blank(
    part: ReplicaBatch, num_rows: int, spec: Any, orders: Sequence[Order] | None
) -> ReplicaBatch:
    """Fill a part without rows by zeros, empty strings and None; its mask is False throughout.

    Args:
        part: the part.
        num_rows: rows to fill it with.
        spec: of the batch.
        orders: for each leaf the order of its dimensions in memory, which compiled code depends on
            as on its shape; None where nothing is known of it.
    """
    specs = flatten(spec)[0]
    pairs = zip(specs, orders or [None] * len(specs), strict=True)
    leaves = [kind_of_spec(leaf).blank(leaf, num_rows, order) for leaf, order in pairs]
    return _add_mask(part, leaves, num_rows)


def order_of(leaf: Any) -> Order:
    """How the dimensions of a leaf lie in memory; None if it is no dense tensor."""
    if kind_of(leaf) is not DENSE:
        return None
    return sorted(range(leaf.ndim), key=leaf.stride, reverse=True)


def pad_spec(spec: Any, num_rows: int | None) -> Any:
    """The spec of a batch together with its mask, from that of the batch; None is any number."""
    filled = map_leaves(lambda leaf: replace(leaf, shape=(num_rows, *leaf.shape[1:])), spec)
    return filled, TensorSpec((num_rows,), torch.bool)


def _add_mask(part: ReplicaBatch, leaves: Sequence[Any], num_rows: int) -> ReplicaBatch:
    # A new mask for each batch: users may write into theirs.
    mask = torch.ones(num_rows, dtype=torch.bool, device="cpu")
    if len(part.ids) < num_rows:
        mask[len(part.ids) :] = False
    return ReplicaBatch([*leaves, mask], _with_mask(part.structure), part.ids)


@lru_cache(maxsize=8)  # else the code that builds it would be compiled for each step
def _with_mask(structure: Structure) -> Structure:
    return Structure(tuple, (0, 1), (structure, Structure(None)))
