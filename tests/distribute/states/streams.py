"""The streams that states were recorded with. Never change one: a state holds its words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, Sampler

COUNT = 17


def order_of(epoch: int) -> list[int]:
    """Another order in each epoch."""
    return [(5 * place + 3 * epoch) % COUNT for place in range(COUNT)]


class Plain(IterableDataset):
    """It cannot tell where it is."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(COUNT))


class Stateful(IterableDataset):
    """A generator that counts its epochs; it resets itself when it begins to run."""

    position, epoch, loaded = 0, 0, 0

    def __init__(self, example: Callable[[int], Any] = int) -> None:
        self.example = example

    def __iter__(self) -> Iterator[Any]:
        self.position, self.loaded = self.loaded, 0
        while self.position < COUNT:
            self.position += 1
            yield self.example(order_of(self.epoch)[self.position - 1])
        self.epoch += 1

    def state_dict(self) -> dict[str, Any]:
        """Where it is."""
        return {"position": self.position, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on there."""
        self.loaded, self.epoch = state["position"], state["epoch"]


def batch_of(number: int) -> torch.Tensor:
    """Two, three or four numbers."""
    return torch.arange(10 * number, 10 * number + 2 + number % 3)


class Packed(IterableDataset):
    """Its state is none for JSON."""

    def __init__(self) -> None:
        self.inner = Stateful()

    def __iter__(self) -> Iterator[int]:
        return iter(self.inner)

    def state_dict(self) -> dict[str, Any]:
        """With a tuple and a tensor."""
        state = self.inner.state_dict()
        return {"where": (state["position"], torch.tensor(state["epoch"]))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on there."""
        position, epoch = state["where"]
        self.inner.load_state_dict({"position": position, "epoch": int(epoch)})


class OwnIterator(IterableDataset):
    """It is its own iterator, and starts an epoch in ``__iter__``."""

    position, epoch, goes_on = 0, -1, False

    def __iter__(self) -> OwnIterator:
        if not self.goes_on:
            self.position, self.epoch = 0, self.epoch + 1
        return self

    def __next__(self) -> int:
        self.goes_on = False
        if self.position == COUNT:
            raise StopIteration
        self.position += 1
        return order_of(self.epoch)[self.position - 1]

    def state_dict(self) -> dict[str, Any]:
        """Where it is."""
        return {"position": self.position, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on there."""
        self.position, self.epoch, self.goes_on = state["position"], state["epoch"], True


class _Draws:
    """An iterator that keeps its state."""

    def __init__(self, epoch: int) -> None:
        self.position, self.epoch = 0, epoch

    def __iter__(self) -> _Draws:
        return self

    def __next__(self) -> int:
        if self.position == COUNT:
            raise StopIteration
        self.position += 1
        return order_of(self.epoch)[self.position - 1]

    def state_dict(self) -> dict[str, Any]:
        return vars(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


class OfIterators(IterableDataset):
    """Its iterator has the state."""

    def __iter__(self) -> _Draws:
        return _Draws(0)


class OfBoth(IterableDataset):
    """It knows the epoch, its iterator the position."""

    epoch = 0

    def __iter__(self) -> _Draws:
        self.epoch += 1
        return _Draws(self.epoch - 1)

    def state_dict(self) -> dict[str, Any]:
        """The next epoch."""
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The epoch to play on."""
        self.epoch = state["epoch"] - 1


class Told(IterableDataset):
    """Begins where its epoch says, which it is told, and keeps both in its state."""

    epoch = place = 0

    def set_epoch(self, epoch: int) -> None:
        """As samplers of torch have it."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        while self.place < COUNT:
            self.place += 1
            yield (self.epoch + self.place) % COUNT
        self.place = 0

    def state_dict(self) -> dict[str, Any]:
        """Where it is."""
        return {"epoch": self.epoch, "place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on there."""
        self.epoch, self.place = state["epoch"], state["place"]


class Keyed(Sampler):
    """An order for each epoch, of which it is told."""

    epoch = 0

    def __len__(self) -> int:
        return COUNT

    def set_epoch(self, epoch: int) -> None:
        """As in DistributedSampler."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(order_of(self.epoch))


class KeyedBatches(Sampler):
    """Batches of 4, 3, none, and so on."""

    epoch = 0

    def __len__(self) -> int:
        return 6

    def set_epoch(self, epoch: int) -> None:
        """As in DistributedSampler."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        order = order_of(self.epoch)
        return iter([order[:4], order[4:7], [], order[7:12], order[12:13], order[13:]])


class Squares:
    """A map-style dataset."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> int:
        return index * index


class Shards:
    """Lists that can be dealt out."""

    def __init__(self, shards: list[list[Any]]) -> None:
        self.shards = shards

    @property
    def num_shards(self) -> int:
        """How many lists there are."""
        return len(self.shards)

    def shard(self, num_shards: int, index: int) -> Shards:
        """Every num_shards-th list."""
        return Shards(self.shards[index::num_shards])

    def __iter__(self) -> Iterator[Any]:
        return (example for shard in self.shards for example in shard)


def numbers() -> Iterator[int]:
    """A generator function over examples."""
    yield from range(COUNT)


def batches() -> Iterator[np.ndarray]:
    """Ready global batches of several sizes, one without rows."""
    first = 0
    for size in (5, 3, 0, 7, 1, 4):
        yield np.arange(first, first + size)
        first += size


def own_batches(pipeline: int) -> list[np.ndarray]:
    """Replica batches of one input pipeline; pipelines do not have equally many."""
    first = 100 * pipeline
    return [np.arange(first + k, first + k + 2) for k in range(0, 10 + pipeline, 2)]
