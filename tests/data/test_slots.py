"""Results of loader processes in slots: shared once, used again, never while anybody refers."""

from __future__ import annotations

import pytest
import torch

from torch_distinput.data.loader import LoaderOptions, TaskLoader
from torch_distinput.data.slots import Receiver, Sender


def numbers(size):
    """A result, in a loader process."""
    return torch.full((size,), size)


def test_epochs_that_are_left_early():
    """Slots that were on their way are not known to the main process when it begins anew."""
    loader = TaskLoader(numbers, LoaderOptions(num_workers=1, persistent=True))
    sizes = range(1, 20)
    for taken in (1, 3, 9, 19):
        results = loader.run(iter(sizes))
        for size in sizes[:taken]:
            assert torch.equal(numbers(size), next(results))


def test_results_that_grow_use_the_memory_of_the_last():
    """Both ends drop a slot that has become too small."""
    sender, receiver = Sender(3), Receiver()
    for size in range(1, 200):
        assert torch.equal(numbers(size), receiver.open(sender.pack(numbers(size))))
    assert 1 == len(sender._slots) == len(receiver._slots)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors():
    """Also those of the older layout, which cannot be viewed as bytes."""
    parts = [torch.ones(2), torch.zeros(3)]
    nested = torch.nested.nested_tensor(parts, layout=torch.strided)
    opened = Receiver().open(Sender(0).pack(nested))
    assert all(map(torch.equal, parts, opened.unbind()))
