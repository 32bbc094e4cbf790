"""Wherever a wrapper or a function holds a dataset, it is told the epoch."""

from __future__ import annotations

import dataclasses
import functools

import pytest
from torch.utils.data import Dataset

import torch_distinput as tdi


class Told(Dataset):
    """Each example is the epoch that it was told."""

    epoch = -1

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return self.epoch

    def __iter__(self):
        return iter([self.epoch] * 4)


STREAM = Told()


def rows_of_a_global():
    yield from STREAM


def make_rows(stream):
    def rows():
        yield from stream

    return rows


@dataclasses.dataclass(slots=True)
class Slots:
    told: Told

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return self.told[index]


class Fetching(Dataset):
    """Knows how to get an example, and not of what."""

    def __init__(self, fetch):
        self.fetch = fetch

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return self.fetch(index)


def get(told, index):
    return told[index]


HOLDERS = {
    "a global of a generator": lambda told: rows_of_a_global,
    "what a generator encloses": make_rows,
    "slots": Slots,
    "what a lambda encloses": lambda told: Fetching(lambda index: told[index]),
    "part of a call": lambda told: Fetching(functools.partial(get, told)),
    "a method": lambda told: Fetching(told.__getitem__),
}


@pytest.mark.parametrize("make", HOLDERS.values(), ids=HOLDERS)
def test_is_told(make):
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(make(Told()), global_batch_size=4)
    assert [[epoch] * 4 for epoch in range(3)] == [
        batch.tolist() for _ in range(3) for batch in dataset
    ]
