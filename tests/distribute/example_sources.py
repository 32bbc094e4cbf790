"""Sources of every kind, and what they give on simulated workers."""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    Dataset,
    IterableDataset,
)

from tests.distribute.street import Shards, one

Point = namedtuple("Point", ["x", "y"])


@dataclasses.dataclass(frozen=True)
class Item:
    """An example of a class of its own."""

    image: torch.Tensor
    label: int

    def __post_init__(self):
        """Batches must not run the checks of examples."""
        if not isinstance(self.label, int):
            raise TypeError


class Squares(Dataset):
    """A map-style dataset."""

    def __init__(self, count, *, many=False):
        self.count = count
        self.asked = []
        if many:
            self.__getitems__ = self.get_many

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return index * index

    def get_many(self, indices):
        """Note how many are asked for at once."""
        self.asked.append(len(indices))
        return [index * index for index in indices]


class Stream(IterableDataset):
    """An IterableDataset with a length, which has ``__getitem__`` from its base class."""

    def __len__(self):
        return 7

    def __iter__(self):
        return iter(range(7))


def first(source, size, **keywords):
    """The first step on one replica."""
    return next(iter(one().distribute_dataset(source, global_batch_size=size, **keywords)))


def flat(workers):
    """All examples."""
    return [x for worker in workers for step in worker for batch in step for x in batch]


def densely(examples):
    """From sparse examples to a dense batch."""
    return torch.stack([example.to_dense() for example in examples])


def numpy_batch(examples):
    """A batch of arrays."""
    return {"x": np.array(examples), "names": np.array([str(x) for x in examples])}


def batches():
    """Global batches of several sizes, one without rows."""
    numbers = iter(range(100))
    for size in (5, 3, 0, 7, 1):
        yield np.array([next(numbers) for _ in range(size)], dtype=np.int64)


class Batches(Shards):
    """Shards whose elements are global batches."""

    def shard(self, num_shards, index):
        """Every num_shards-th list."""
        return Batches(self.shards[index::num_shards])


def in_shards(make):
    """Seven lists of things."""
    numbers = iter(range(100))
    return [[make(numbers, size) for size in range(1, k + 1)] for k in (3, 1, 2, 0, 1, 2, 1)]


NUMBERS: Any = range(13)
SHARDS = Shards(in_shards(lambda numbers, _: next(numbers)))
BATCHES = Batches(in_shards(lambda numbers, size: np.array([next(numbers) for _ in range(size)])))
