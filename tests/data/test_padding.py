"""Parts filled up to a number of rows: what the rows are, and whose memory they are in."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import torch_distinput as tdi
from torch_distinput.data.batch import rows
from torch_distinput.data.batch.spec import spec_of, zero_rows
from torch_distinput.data.batch.tree import flatten
from torch_distinput.data.steps.local_step import take_apart
from torch_distinput.data.steps.padding import make_blank, order_of, pad_batch, pad_spec

Point = namedtuple("Point", ["x", "y"])


def jagged(count):
    """Rows of 1, 2, 0, 1, 2, 0, ... elements."""
    lengths = [(row + 1) % 3 for row in range(count)]
    offsets = torch.tensor([0, *np.cumsum(lengths)])
    values = torch.arange(sum(lengths) * 2.0).reshape(-1, 2)
    return torch.nested.nested_tensor_from_jagged(values, offsets)


LEAVES = {
    "float": lambda count: torch.arange(3.0 * count).reshape(count, 3) + 1,
    "int": lambda count: torch.arange(count) + 1,
    "bool": lambda count: torch.ones(count, 2, dtype=torch.bool),
    "uint16": lambda count: torch.ones(count, dtype=torch.uint16),
    "float8": lambda count: torch.ones(count, 2).to(torch.float8_e4m3fn),
    "channels_last": lambda count: torch.rand(count, 2, 3, 4).to(memory_format=torch.channels_last),
    "jagged": jagged,
    "array": lambda count: np.arange(count, dtype=np.int16) + 1,
    "words": lambda count: np.array([f"word {row}" for row in range(count)]),
    "objects": lambda count: np.array([{row} for row in range(count)], dtype=object),
    "str": lambda count: [f"row {row}" for row in range(count)],
    "bytes": lambda count: [b"row %d" % row for row in range(count)],
    "numbers": lambda count: [row + 1 for row in range(count)],
}
ZEROS = {"str": "", "bytes": b"", "numbers": None, "objects": None, "words": ""}

names = st.sampled_from(sorted(LEAVES))
trees = st.recursive(
    names,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3),
        st.tuples(inner, inner).map(lambda pair: Point(*pair)),
        inner.map(lambda one: {"some": one, "none": None}),
    ),
    max_leaves=5,
)


def made(tree, count):
    """A batch of so many rows; a name in the tree stands for a leaf."""
    if isinstance(tree, str):
        return LEAVES[tree](count)
    if isinstance(tree, dict):
        return {key: value and made(value, count) for key, value in tree.items()}
    values = [made(value, count) for value in tree]
    return Point(*values) if isinstance(tree, Point) else tuple(values)


def shown(leaf):
    """Rows as plain values."""
    if isinstance(leaf, torch.Tensor) and leaf.is_nested:
        return [row.tolist() for row in leaf.unbind()]
    return leaf.tolist() if hasattr(leaf, "tolist") else list(leaf)


def part_with(batch):
    """The batch with ids."""
    return take_apart(batch, np.arange(rows.num_rows(batch)))


def without_rows(batch):
    """What a replica gets that has no row of this batch."""
    return take_apart(*zero_rows(spec_of((batch, np.arange(1)))))


def memory_of(leaf):
    """Where a leaf's values are; None for lists."""
    if isinstance(leaf, torch.Tensor):
        return (leaf.values() if leaf.is_nested else leaf).untyped_storage().data_ptr()
    return leaf.__array_interface__["data"][0] if isinstance(leaf, np.ndarray) else None


@given(trees, st.integers(1, 7), st.integers(0, 4))
def test_real_rows_then_the_last_one_again(tree, count, missing):
    """Any structure of any leaves: the rows that there were, filler, and the mask."""
    batch = made(tree, count)
    part = pad_batch(part_with(batch), count + missing)
    filled, mask = part.batch
    assert [True] * count + [False] * missing == mask.tolist()
    assert list(range(count)) == part.ids.tolist()
    assert flatten(batch)[1] == flatten(filled)[1]
    assert count + missing == rows.num_rows(filled)
    for leaf, longer in zip(flatten(batch)[0], flatten(filled)[0], strict=True):
        assert type(leaf) is type(longer)
        assert getattr(leaf, "dtype", None) == getattr(longer, "dtype", None)
        real, filler = shown(longer)[:count], shown(longer)[count:]
        assert shown(leaf) == real
        is_jagged = isinstance(leaf, torch.Tensor) and leaf.is_nested
        assert [[] if is_jagged else real[-1]] * missing == filler


@given(trees, st.integers(1, 7))
def test_a_replica_without_rows_gets_zeros(tree, num_rows):
    """As many as the others, of the same kinds; nothing of it counts."""
    batch = made(tree, 3)
    spec = spec_of(batch)
    part = make_blank(without_rows(batch), num_rows, spec, list(map(order_of, flatten(batch)[0])))
    filled, mask = part.batch
    assert [False] * num_rows == mask.tolist()
    assert 0 == len(part.ids)
    assert spec == spec_of(filled)
    for leaf, zeros in zip(flatten(batch)[0], flatten(filled)[0], strict=True):
        assert num_rows == rows.num_rows(zeros)
        if isinstance(leaf, torch.Tensor) and not leaf.is_nested:
            assert leaf.stride()[1:] == zeros.stride()[1:]
            assert not zeros.to(torch.float32).any()
    assert pad_spec(spec, num_rows)[1] == tdi.TensorSpec((num_rows,), torch.bool)


@pytest.mark.parametrize("kind", ZEROS)
def test_zeros_of_what_has_no_zero(kind):
    """Empty strings, and None for other objects; also where no real row was ever seen."""
    batch = LEAVES[kind](2)
    filled, mask = make_blank(without_rows(batch), 2, spec_of(batch), None).batch
    assert [ZEROS[kind]] * 2 == list(filled)
    assert not mask.any()


def test_one_format_in_memory():
    """Code is compiled for strides too: full, partial and blank batches have the same."""
    full = LEAVES["channels_last"](4)
    spec, orders = spec_of(full), [order_of(full)]
    for part in (
        pad_batch(part_with(full), 4),
        pad_batch(part_with(full[:1]), 4),
        pad_batch(part_with(full[:3]), 4),
        make_blank(without_rows(full), 4, spec, orders),
    ):
        assert full.stride() == part.leaves[0].stride()
    assert make_blank(without_rows(full), 4, spec, None).leaves[0].is_contiguous()


def test_a_full_batch_is_passed_through():
    """No copy; its mask is new each time, because the user may write into it."""
    batch = {"x": torch.ones(3, 2), "names": ["a", "b", "c"]}
    part = part_with(batch)
    first, second = pad_batch(part, 3), pad_batch(part, 3)
    assert first.leaves[0] is batch["x"]
    assert first.leaves[1] is batch["names"]
    first.leaves[-1].fill_(False)
    assert second.leaves[-1].all()
    assert first.structure is second.structure  # else building it would be compiled anew


@given(trees, st.integers(1, 4))
def test_filled_batches_share_no_memory(tree, count):
    """Neither with what they were made from, nor with each other, nor does a leaf with another."""
    batch = made(tree, 5)
    part = part_with(rows.slice_rows(batch, 0, count))
    blanks = [make_blank(without_rows(batch), 5, spec_of(batch), None) for _ in range(2)]
    made_parts = [pad_batch(part, 5), pad_batch(part, 5), *blanks]
    places = [memory_of(leaf) for made_part in made_parts for leaf in made_part.leaves]
    places = [place for place in places if place]  # lists, and tensors of no elements
    assert len(places) == len(set(places))
    assert set(places).isdisjoint(map(memory_of, flatten(batch)[0]))


def test_element_spec():
    """The rows are known, other sizes are as they were."""
    spec = {"x": tdi.TensorSpec((None, None), torch.float32), "s": tdi.TensorSpec((None,), str)}
    expected = {"x": tdi.TensorSpec((4, None), torch.float32), "s": tdi.TensorSpec((4,), str)}
    assert (expected, tdi.TensorSpec((4,), torch.bool)) == pad_spec(spec, 4)
    words = tdi.TensorSpec((None, None, 2), torch.float32, torch.jagged)
    assert (4, None, 2) == pad_spec(words, 4)[0].shape
