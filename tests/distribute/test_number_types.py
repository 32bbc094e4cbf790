"""Plain numbers of Python become tensors of one type, wherever the batches are cut."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

import torch_distinput as tdi
from tests.distribute.street import stream_of
from torch_distinput.data.batch.collate import collate_examples
from torch_distinput.testing import simulate


@pytest.mark.parametrize(
    ("column", "dtype"),
    [
        ([1, 2.5], torch.float64),
        ([2.5, 1], torch.float64),
        ([True, 2.5], torch.float64),
        ([True, 2], torch.int64),
        ([2, True], torch.int64),
        ([True, False], torch.bool),
        ([1, 2], torch.int64),
        ([np.float32(0.5), 2.1], torch.float64),
        ([2**24 + 1, np.float32(0.5)], torch.float64),
        ([np.int64(2**40 + 1), 0.5], torch.float64),
        ([np.float32(0.5), np.float32(2.5)], torch.float32),
    ],
)
def test_the_order_of_a_batch_does_not_tell_the_type(column, dtype):
    """Nor is a float cut down to the first one's type."""
    batch = collate_examples(column)
    assert dtype is batch.dtype
    assert column == batch.tolist()


def test_bytes_that_may_change_are_bytes():
    """Torch makes a column of each byte."""
    assert [b"ab", b"cde", b""] == collate_examples([bytearray(b"ab"), b"cde", bytearray()])


@pytest.mark.parametrize("other", [Decimal("2.123456789012345678901"), Fraction(1, 3)])
def test_floats_that_are_not_plain_are_refused(other):
    """Torch would round them."""
    for column in ([1.5, other], [other, 1.5]):
        with pytest.raises(ValueError, match=f"Cannot stack.*{type(other).__name__}"):
            collate_examples(column)


def types_of(source, strategy, **keywords):
    """The types of all batches."""
    dataset = strategy.distribute_dataset(source, global_batch_size=4, **keywords)
    return {batch.dtype for batch in dataset}


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("num_processes", [0, 1])
def test_a_list_has_one_type(workers, num_processes):
    """Also on a worker that gets integers only."""
    data = [1, 2, 2.5, 4, 5, 6]
    found = simulate(lambda s: types_of(data, s, num_workers=num_processes), num_workers=workers)
    assert [{torch.float64}] * workers == found


@pytest.mark.parametrize("keys", ["ab", "ba"])
def test_each_leaf_of_a_list_has_its_type(keys):
    """By the names of leaves, whose order may change."""
    data = [{"a": 1, "b": True}, {"a": 1.5, "b": False}]
    data += [{key: {"a": 3, "b": True}[key] for key in keys}]
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(data, global_batch_size=2)
    found = [(batch["a"].dtype, batch["b"].dtype) for batch in dataset]
    assert [(torch.float64, torch.bool)] * 2 == found


def test_a_float_far_behind_integers_is_refused():
    """How far one looks ahead does not depend on the cut."""
    with pytest.raises(tdi.SourceError, match=r"at example, as in the first 1024.*1\.0"):
        types_of([1] * 1200 + [0.5], tdi.OneDeviceStrategy("cpu"))


def test_lists_that_hold_no_numbers_are_left_alone():
    """Nor are later examples of another structure an error before they are fetched."""
    strategy = tdi.OneDeviceStrategy("cpu")
    for data in ([], ["a", "b"], [torch.ones(1), torch.ones(1)], [(1, "a"), "b"]):
        strategy.distribute_dataset(data, global_batch_size=1)


class Indexed:
    """Examples that are made when they are asked for."""

    def __init__(self, examples):
        self.examples = examples

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, index):
        return self.examples[index]


@pytest.mark.parametrize("wrap", [Indexed, stream_of], ids=["by index", "stream"])
@pytest.mark.parametrize(
    ("examples", "types"),
    [
        ([{"x": 1}] * 4 + [{"x": 2.5}], "torch.int64 at .*'x'.*, as before, got torch.float64"),
        ([{"x": 2.5}] * 4 + [{"x": 1}], "torch.float64 at .*'x'.*, as before, got torch.int64"),
        ([{"x": True}] * 4 + [{"x": 1}], "torch.bool at .*'x'.*, as before, got torch.int64"),
    ],
)
def test_a_type_that_changes_from_batch_to_batch_is_an_error(wrap, examples, types):
    """Which of them a worker gets is a matter of the cut."""
    with pytest.raises(tdi.SourceError, match=f"Expected {types}"):
        list(tdi.OneDeviceStrategy("cpu").distribute_dataset(wrap(examples), global_batch_size=4))


@pytest.mark.parametrize("column", [[2**53 + 1, 0.5], [np.uint64(2**63 + 1), 1]])
def test_whole_numbers_that_float64_does_not_hold_are_refused_beside_others(column):
    """They would become others."""
    with pytest.raises(tdi.SourceError, match=r"whole ones beyond 2\*\*53"):
        list(tdi.OneDeviceStrategy("cpu").distribute_dataset(column, global_batch_size=2))
