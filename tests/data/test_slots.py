"""Results of loader processes in slots: shared once, used again, never while anybody refers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from torch_distinput.data.loader import LoaderOptions, TaskLoader
from torch_distinput.data.slots import Receiver, Sender

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


@pytest.mark.skipif(not OPEN_FILES.exists(), reason="counts files there")
def test_results_beyond_the_slots_open_no_file_twice():
    """A user who keeps a result in each slot has the others travel torch's way, without a leak."""
    results = TaskLoader(files, LoaderOptions(num_workers=1)).run(iter(range(100)))
    kept = [next(results) for _ in range(8)]
    assert max(count for _, count in results) < 60
    assert all((tensor == number).all() for number, (tensor, _) in enumerate(kept))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_keeps_what_it_has():
    """Its memory is that of the slot, whoever drops the result here, or there."""
    sender, receiver = Sender(0), Receiver()
    result = receiver.open(sender.pack(numbers(5)))
    asked, ask = os.pipe()
    child = os.fork()
    if not child:
        os.read(asked, 1)
        os._exit(0 if torch.equal(numbers(5), result) else 1)
    del result
    for size in range(1, 5):
        receiver.open(sender.pack(numbers(size)))
    os.write(ask, b" ")
    assert 0 == os.waitpid(child, 0)[1]
    assert 1 == len(sender._slots) == len(receiver._slots)


@pytest.mark.parametrize("other", [torch.t, lambda x: x[:, 1:], lambda x: x[:1].requires_grad_()])
def test_tensors_that_share_memory(other):
    """Torch moves the memory of what it shares itself: nothing is read where it was before."""
    sender, receiver = Sender(0), Receiver()
    for number in range(20):
        whole = torch.full((30, 70), number)
        pair = [whole.double(), whole.double()]
        result = [*pair, *map(other, (tensor.detach() for tensor in pair))]
        expected = [tensor.detach().clone() for tensor in result]
        assert all(map(torch.equal, expected, receiver.open(sender.pack(result))))
