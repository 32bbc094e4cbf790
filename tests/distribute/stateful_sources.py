"""Sources that bring a state of their own."""

from __future__ import annotations

from functools import partial

import torch
from torch.utils.data import IterableDataset, Sampler
from torchdata import nodes
from torchdata.stateful_dataloader import StatefulDataLoader


class Counting(IterableDataset):
    """A stream that can say where it is, and go on there."""

    def __init__(self, count, seen=None):
        self.count, self.position, self.seen = count, 0, seen

    def __iter__(self):
        """From the position on."""
        while self.position < self.count:
            self.position += 1
            if self.seen is not None:
                self.seen.append(self.position - 1)
            yield self.position - 1
        self.position = 0

    def state_dict(self):
        """With something that JSON changes."""
        return {"position": self.position, "more": (1, torch.arange(2))}

    def load_state_dict(self, state):
        """Go on there."""
        assert state["more"][0] == 1
        self.position = state["position"]


COUNT = 13


def order_of(epoch, count=COUNT):
    """Another one in each epoch."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(epoch)).tolist()


class Shuffled(IterableDataset):
    """A generator whose order depends on its own epoch; it resets itself when it begins to run."""

    position, epoch, loaded = 0, 0, None

    def __iter__(self):
        """One epoch, or the rest of it."""
        self.position, self.loaded = self.loaded or 0, None
        order = order_of(self.epoch)
        while self.position < COUNT:
            self.position += 1
            yield order[self.position - 1]
        self.epoch += 1

    def state_dict(self):
        """Where it is."""
        return {"position": self.position, "epoch": self.epoch}

    def load_state_dict(self, state):
        """Go on there."""
        self.loaded, self.epoch = state["position"], state["epoch"]


class Late(Shuffled):
    """It has no state before its first example."""

    def state_dict(self):
        """Made while it runs."""
        if not self.position:
            raise AttributeError
        return super().state_dict()


class OwnIterator(IterableDataset):
    """It is its own iterator, and starts an epoch in ``__iter__``."""

    epoch, loaded, calls = -1, False, 0

    def __iter__(self):
        """The next epoch, or the rest of the one that was loaded."""
        self.calls += 1
        if not self.loaded:
            self.position, self.epoch = 0, self.epoch + 1
        return self

    def __next__(self):
        """The next example."""
        self.loaded = False
        if self.position == COUNT:
            raise StopIteration
        self.position += 1
        return order_of(self.epoch)[self.position - 1]

    def state_dict(self):
        """There is none before ``__iter__``."""
        return {"position": self.position, "epoch": self.epoch}

    def load_state_dict(self, state):
        """Go on there."""
        self.position, self.epoch, self.loaded = state["position"], state["epoch"], True


class Forgetful(OwnIterator):
    """It can be loaded when it is iterated, as torchdata does, and not before."""

    def __iter__(self):
        """Forgets what was loaded."""
        self.calls, self.position = self.calls + 1, 0
        self.epoch += 1
        return self

    def load_state_dict(self, state):
        """Go on there."""
        assert self.calls
        self.position, self.epoch = state["position"], state["epoch"]


class Told(IterableDataset):
    """Begins where its epoch says, and keeps both in its state."""

    def __init__(self):
        self.epoch = self.place = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        while self.place < COUNT:
            self.place += 1
            yield (self.epoch + self.place) % COUNT
        self.place = 0

    def state_dict(self):
        return {"epoch": self.epoch, "place": self.place}

    def load_state_dict(self, state):
        self.epoch, self.place = state["epoch"], state["place"]


class Draws:
    """An iterator of an order, that keeps its state."""

    def __init__(self, epoch):
        self.position, self.order = 0, order_of(epoch)

    def __iter__(self):
        return self

    def __next__(self):
        """The next example."""
        if self.position == COUNT:
            raise StopIteration
        self.position += 1
        return self.order[self.position - 1]

    def state_dict(self):
        """With the order."""
        return vars(self)

    def load_state_dict(self, state):
        """Go on there."""
        vars(self).update(state)


class OfIterators(IterableDataset):
    """The state is on the iterator."""

    def __iter__(self):
        return Draws(0)


class OfBoth(IterableDataset):
    """It knows the epoch, its iterator the position."""

    epoch = 0

    def __iter__(self):
        iterator = Draws(self.epoch)
        self.epoch += 1
        return iterator

    def state_dict(self):
        """The next epoch."""
        return {"epoch": self.epoch}

    def load_state_dict(self, state):
        """The epoch to play on."""
        self.epoch = state["epoch"] - 1


class Keyed(Sampler):
    """A sampler with the usual recipe."""

    epoch = 0

    def __len__(self):
        return COUNT

    def set_epoch(self, epoch):
        """As in DistributedSampler."""
        self.epoch = epoch

    def __iter__(self):
        return iter(order_of(self.epoch))


def mixed():
    """Two nodes, weighted."""
    parts = {name: nodes.SamplerWrapper(Keyed()) for name in "ab"}
    return nodes.MultiNodeWeightedSampler(
        parts, {"a": 1.0, "b": 3.0}, rank=0, world_size=1, stop_criteria="ALL_DATASETS_EXHAUSTED"
    )


def mapped(make):
    """In threads, read ahead."""
    return nodes.Prefetcher(nodes.ParallelMapper(make(), int, num_workers=2), 2)


EXAMPLES = {
    "a generator": Shuffled,
    "no state before the first example": Late,
    "its own iterator": OwnIterator,
    "its own iterator, loaded when it is iterated": Forgetful,
    "state on the iterator": OfIterators,
    "state on both": OfBoth,
    "IterableWrapper": lambda: nodes.IterableWrapper(Shuffled()),
    "SamplerWrapper": lambda: nodes.SamplerWrapper(Keyed()),
    "threads": partial(mapped, lambda: nodes.IterableWrapper(Shuffled())),
    "threads over a sampler": partial(mapped, lambda: nodes.SamplerWrapper(Keyed())),
    "weighted": mixed,
    "Loader": lambda: nodes.Loader(nodes.IterableWrapper(Shuffled())),
}
BATCHES = {
    "StatefulDataLoader": lambda: StatefulDataLoader(Shuffled(), batch_size=4),
    "StatefulDataLoader, its own iterator": lambda: StatefulDataLoader(OwnIterator(), batch_size=4),
    "StatefulDataLoader, 2 processes": lambda: StatefulDataLoader(
        Shuffled(), batch_size=4, num_workers=2
    ),
    "Batcher": lambda: nodes.Mapper(
        nodes.Batcher(nodes.SamplerWrapper(Keyed()), 4, drop_last=False), torch.tensor
    ),
}
