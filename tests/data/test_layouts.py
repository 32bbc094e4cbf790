"""Plain results of a loader process: only two numbers travel, and nothing is taken for another."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from torch_distinput.data.loader import layout, shared_memory
from torch_distinput.data.loader.shared_memory import Receiver, Sender


@pytest.fixture
def carry():
    """Through one pair of ends."""
    sender, receiver = Sender(0), Receiver()
    return lambda result: receiver.open(sender.pack(result))


def test_two_numbers_travel():
    """Once slot and layout are known."""
    sender, receiver = Sender(0), Receiver()
    result = (torch.ones(1000, 3), np.arange(7.0))
    receiver.open(sender.pack(result))
    parcel = sender.pack(result)
    assert (0, 0, None, None) == parcel
    tensor, array = receiver.open(parcel)
    assert torch.equal(result[0], tensor)
    assert np.array_equal(result[1], array)


def test_keys_belong_to_the_layout(carry):
    """And their order, and whether there are any."""
    one, two = torch.tensor([1]), torch.tensor([2])
    for result in ({"a": one, "b": two}, {"b": one, "a": two}, (one, two), [one, two]):
        got = carry(result)
        assert type(result) is type(got)
        assert list(result) == list(got)
        assert repr(result) == repr(got)


def test_keys_that_are_equal_are_not_the_same(carry):
    """Such as True and 1."""
    for key in (1, True, 1.0):
        assert repr({key: torch.ones(2)}) == repr(carry({key: torch.ones(2)}))


def test_one_tensor_twice_stays_one(carry):
    """As pickle keeps it."""
    one = torch.ones(3)
    first, second = carry((one, one))
    assert first is second


@pytest.mark.parametrize(
    "leaf",
    [
        torch.ones(2, dtype=torch.complex64).conj(),
        torch.ones(2, dtype=torch.complex64).conj().imag,
        torch.ones(3, 2).t(),
        torch.ones(0, 3),
        torch.ones(2, requires_grad=True),
        torch.tensor(3.0),
        torch.ones(2).to(torch.bfloat16),
        np.array(["a", "bc"]),
        np.array([1, 2], dtype=">i4"),
        np.ones((3, 2)).T,
        np.ones((0, 3)),
        np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
        np.array([None, 1], dtype=object),
        np.ones(3).view(np.recarray),
        np.array(5),
        np.float32(2),
    ],
    ids=lambda leaf: f"{type(leaf).__name__} {leaf.dtype} {tuple(leaf.shape)}",
)
def test_unusual_leaves(carry, leaf):
    """Each arrives as it was, with and without a plain one beside it."""
    for result in (leaf, (leaf, torch.ones(2)), {"a": leaf}):
        got = carry(result)
        assert repr(result) == repr(got)
        assert type(result) is type(got)
    if isinstance(leaf, np.ndarray) and leaf.size:
        assert leaf.strides == carry(leaf).strides


@pytest.mark.parametrize("count", [0, 1, layout._MOST_LEAVES + 1])
def test_as_many_leaves_as_there_are(carry, count):
    """None, and more than have a layout."""
    result = [torch.tensor([number]) for number in range(count)]
    assert repr(result) == repr(carry(result))


def test_more_layouts_than_are_kept(carry):
    """Sizes that always change are pickled in the end."""
    for size in range(1, 2 * shared_memory._MOST_LAYOUTS):
        assert [size] * size == carry(torch.full((size,), size)).tolist()


def test_arrays_may_be_written_to(carry):
    """Also where what was sent might not."""
    array = np.arange(3)
    array.flags.writeable = False
    got = carry(array)
    got += 1
    assert [1, 2, 3] == got.tolist()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_memory_that_a_fork_shares_is_not_written_again():
    """Though the next result looks the same."""
    sender, receiver = Sender(0), Receiver()
    result = receiver.open(sender.pack(torch.full((5,), 1)))
    asked, ask = os.pipe()
    child = os.fork()
    if not child:
        os.read(asked, 1)
        os._exit(0 if result.tolist() == [1] * 5 else 1)
    del result
    for number in range(2, 4):
        assert [number] * 5 == receiver.open(sender.pack(torch.full((5,), number))).tolist()
    os.write(ask, b" ")
    assert 0 == os.waitpid(child, 0)[1]
