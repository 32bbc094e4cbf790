"""What is sent to another process arrives as it was."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from torch_distinput.data.batch.jagged import longest_row, make_jagged
from torch_distinput.data.batch.serialized import deserialize, pickle_value, serialize

LEAVES = [
    torch.arange(6).view(2, 3),
    torch.arange(6).view(2, 3).T,
    torch.arange(4.0)[::2],
    torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    torch.tensor(3.5),
    torch.empty(0, 3, dtype=torch.bfloat16),
    torch.randn(3, dtype=torch.complex64).conj(),
    torch.tensor([True, False]),
    torch.arange(3).to(torch.float8_e4m3fn),
    torch.arange(3).to(torch.uint16),
    torch.arange(3).to(torch.uint64),
    torch.zeros(2, 1).expand(2, 3),
    torch.arange(3.0).reshape(1, 3)[:, 1],  # of one element, whose stride is 3
    torch.tensor(2.0).expand(1),
    np.arange(6, dtype=np.int16).reshape(2, 3),
    np.asfortranarray(np.arange(6).reshape(2, 3)),
    np.array(["a", "bc"]),
]


def sent_in_parts(value):
    return deserialize(serialize(value))


def sent_whole(value):
    return pickle.loads(pickle_value(value))


@pytest.mark.parametrize("send", [sent_in_parts, sent_whole])
@pytest.mark.parametrize("leaf", LEAVES, ids=range(len(LEAVES)))
def test_tensors_and_arrays(leaf, send):
    """Also what lies in another order in memory, where nothing overlaps."""
    (got,) = send([leaf])
    assert type(leaf) is type(got)
    assert (leaf.dtype, leaf.shape) == (got.dtype, got.shape)
    if isinstance(leaf, torch.Tensor):
        as_numbers = (lambda x: x.float()) if leaf.dtype.itemsize == 1 else (lambda x: x)
        assert torch.equal(as_numbers(leaf), as_numbers(got))
    else:
        assert np.array_equal(leaf, got)


def test_the_order_in_memory():
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert deserialize(serialize(image)).is_contiguous(memory_format=torch.channels_last)


def test_jagged_tensors():
    jagged = make_jagged(torch.arange(5.0), torch.tensor([0, 2, 2, 5]), 7)
    got = deserialize(serialize({"x": jagged}))["x"]
    assert [row.tolist() for row in jagged.unbind()] == [row.tolist() for row in got.unbind()]
    assert 7 == longest_row(got)


def test_jagged_tensors_that_are_transposed():
    rows = [torch.arange(2.0).view(1, 2), torch.arange(2.0, 4.0).view(1, 2)]
    turned = torch.nested.nested_tensor(rows, layout=torch.jagged).transpose(1, 2)
    got = deserialize(serialize(turned))
    assert [row.tolist() for row in turned.unbind()] == [row.tolist() for row in got.unbind()]


def test_everything_else():
    value = {"words": ["a", "é"], "bytes": [b"\0" * 100], "n": 3, "none": None, "t": (1, [2])}
    assert value == deserialize(serialize(value))


def test_memory_of_its_own():
    """It may be written to on both sides."""
    numbers, array = torch.arange(3), np.arange(3)
    piece = serialize((numbers, array))
    numbers.zero_()
    array[:] = 0
    got, other = deserialize(piece)
    got += 1
    other += 1
    assert ([1, 2, 3], [1, 2, 3]) == (got.tolist(), other.tolist())


def test_what_needs_gradients_is_sent_without():
    assert not deserialize(serialize(torch.ones(2, requires_grad=True))).requires_grad


def test_what_cannot_be_pickled():
    with pytest.raises(Exception, match="pickle"):
        serialize([lambda: None])
