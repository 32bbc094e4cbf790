"""Loader processes that send results in slots: over epochs, and more results than slots."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import torch_distinput as tdi
from torch_distinput.data.loader.options import LoaderOptions
from torch_distinput.data.loader.processes import TaskLoader


class Numbers(Dataset):
    """Rows that tell their number; large enough that memory would be noticed."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((1000,), index), np.full(3, index), str(index)


def dataset_of(data, *, persistent=True, **keywords):
    """With two loader processes."""
    loader = DataLoader(data, 4, num_workers=2, persistent_workers=persistent, **keywords)
    return tdi.OneDeviceStrategy("cpu").distribute_dataset(loader)


def check(batch, number):
    """It is the batch with that number."""
    expected = list(range(4 * number, 4 * number + 4))
    assert expected == batch[0][:, -1].tolist() == batch[1][:, 0].tolist()
    assert [str(index) for index in expected] == batch[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("context", "persistent"),
    [
        ("fork", False),
        ("fork", True),
        ("forkserver", True),
        ("forkserver", False),
        pytest.param("spawn", True, marks=pytest.mark.long),  # new interpreters
        pytest.param("spawn", False, marks=pytest.mark.long),
    ],
)
def test_epochs_with_batches_that_are_kept(context, persistent):
    """Left early, and across epochs: none changes, and all come."""
    dataset = dataset_of(Numbers(), persistent=persistent, multiprocessing_context=context)
    kept = []
    for stop in (5, 16, 1, 16):
        for number, batch in enumerate(dataset):
            check(batch, number)
            if number % 3 == 0:
                kept.append((number, batch))
            if number == stop:
                break
    for number, batch in kept:
        check(batch, number)


class Unpicklable(Dataset):
    """Its examples cannot travel."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return lambda: index


def as_it_is(examples):
    """Collate nothing."""
    return examples


def test_what_cannot_be_pickled_is_an_error():
    """Not a hang in the queue."""
    with pytest.raises(tdi.SourceError, match="pickle"):
        list(dataset_of(Unpicklable(), collate_fn=as_it_is))


OPEN_FILES = Path("/proc/self/fd")


def numbers(size):
    """A result, in a loader process."""
    return torch.full((size,), size)


def files(number):
    """A result that torch makes a file of shared memory for, and how many files are open."""
    return torch.full((2, number + 2), number).t(), len(list(OPEN_FILES.iterdir()))


def test_epochs_that_are_left_early():
    """Slots that were on their way are not known to the main process when it begins anew."""
    loader = TaskLoader(numbers, LoaderOptions(num_workers=1, persistent=True))
    sizes = range(1, 20)
    for taken in (1, 3, 9, 19):
        results = loader.run(iter(sizes))
        for size in sizes[:taken]:
            assert torch.equal(numbers(size), next(results))


@pytest.mark.skipif(not OPEN_FILES.exists(), reason="counts files there")
def test_results_beyond_the_slots_open_no_file_twice():
    """A user who keeps a result in each slot has the others travel torch's way, without a leak."""
    _, inherited = files(0)  # from tests of this process that ran before
    results = TaskLoader(files, LoaderOptions(num_workers=1)).run(iter(range(100)))
    kept = [next(results) for _ in range(8)]
    assert max(count for _, count in results) < inherited + 50
    assert all((tensor == number).all() for number, (tensor, _) in enumerate(kept))
