"""Loaders of other libraries that tell where they are, and whose states are not those of torchdata.

A loader like litdata's: it counts what its dataset has yielded, and tells it the epoch when it is
iterated. A state that was loaded belongs to the dataset until then; asked for it meanwhile, the
loader writes the epoch into it that the dataset was told before. Such a dataset alone must be told
how many examples were taken, so it has no state of its own.
"""

from __future__ import annotations

import functools
import itertools
import json

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import torch_distinput as tdi
from tests.distribute.stateful_sources import COUNT, Shuffled, order_of
from torch_distinput.data.user_sources.states import has_state


class Streaming(IterableDataset):
    """Keeps its place by what its loader counts."""

    epoch, loaded = 1, None

    def set_epoch(self, epoch):
        if self.loaded is None:
            self.epoch = epoch

    def __iter__(self):
        start = 0
        if self.loaded is not None:
            self.epoch, start = self.loaded["epoch"], self.loaded["count"]
        yield from order_of(self.epoch)[start:]

    def state_dict(self, count):
        state = {"count": count, "epoch": self.epoch}
        if self.loaded is None:
            return state
        self.loaded.update(state)
        return self.loaded


class StreamingLoader(DataLoader):
    epoch, count, resumes = 0, 0, False

    def __iter__(self):
        if not self.resumes:
            self.dataset.loaded, self.count = None, 0
            self.epoch += 1
        self.dataset.set_epoch(self.epoch)
        for batch in super().__iter__():
            self.count += len(batch)
            yield batch
        self.resumes = False

    def state_dict(self):
        return {"epoch": self.epoch, "count": self.count, "of": self.dataset.state_dict(self.count)}

    def load_state_dict(self, state):
        self.epoch, self.count = state["epoch"], state["count"]
        self.dataset.loaded = state["of"]
        self.resumes = 0 < self.count < COUNT


def distributed():
    one = tdi.OneDeviceStrategy("cpu")
    return one.distribute_dataset(StreamingLoader(Streaming(), batch_size=3))


@pytest.mark.parametrize("epoch", [0, 2])
@pytest.mark.parametrize("num_steps", range(6))
def test_a_state_is_not_asked_for_before_it_is_used(epoch, num_steps):
    dataset = distributed()
    for _ in range(epoch):
        list(dataset)
    iterator = iter(dataset)
    seen = list(itertools.islice(iterator, num_steps))
    resumed = distributed()
    resumed.load_state_dict(json.loads(json.dumps(dataset.state_dict())))
    seen += resumed  # nothing behind the last step
    assert order_of(epoch + 1) == torch.cat(seen).tolist()
    assert order_of(epoch + 2) == torch.cat(list(resumed)).tolist()


class Asking(Shuffled):
    """Must be told how far it was read, as a StreamingDataset of litdata: it cannot tell."""

    def state_dict(self, num_samples):
        return {"position": num_samples, "epoch": 0}


def test_a_source_that_must_be_told_its_place_is_read_again():
    one = tdi.OneDeviceStrategy("cpu")
    dataset = one.distribute_dataset(Asking(), global_batch_size=4)
    first, *others = [batch.tolist() for batch in dataset]
    assert order_of(0) == sum(others, first)
    dataset = one.distribute_dataset(Asking(), global_batch_size=4)
    next(iter(dataset))
    again = one.distribute_dataset(Asking(), global_batch_size=4)
    again.load_state_dict(json.loads(json.dumps(dataset.state_dict())))
    assert others == [batch.tolist() for batch in again]


def at_five(method):
    """Gives the number that it asks for."""

    @functools.wraps(method)
    def told(self):
        return method(self, 5)

    return told


def test_a_decorator_may_give_what_a_state_asks_for():
    class Decorated(Asking):
        state_dict = at_five(Asking.state_dict)

    assert not has_state(Asking())
    assert has_state(Decorated())
