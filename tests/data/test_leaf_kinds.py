"""The table of leaf kinds: a leaf, and the spec of it, find the same row."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest
import torch

import torch_distinput as tdi
from torch_distinput.data.batch import jagged, leaf_kinds
from torch_distinput.data.batch.packed import PACKED
from torch_distinput.data.batch.rows import concat_rows, num_rows
from torch_distinput.data.batch.tree import Examples

JAGGED = torch.nested.nested_tensor([torch.ones(2), torch.ones(1)], layout=torch.jagged)


@pytest.mark.parametrize(
    ("leaf", "kind"),
    [
        (torch.ones(2, 3), leaf_kinds.DENSE),
        (torch.nn.Parameter(torch.ones(2)), leaf_kinds.DENSE),
        (JAGGED, jagged.JAGGED),
        (np.array(["a", "b"]), leaf_kinds.ARRAY),
        (np.ones(2).view(np.memmap), leaf_kinds.ARRAY),
        (tdi.PackedStrings.from_list(["a", "b"]), PACKED),
        (tdi.PackedStrings.from_list([b"a", b"b"]), PACKED),
        ([b"a", b"b"], leaf_kinds.LIST),
        (Examples([1, 2]), leaf_kinds.LIST),
    ],
    ids=["tensor", "parameter", "jagged", "strings", "memmap", "text", "bytes", "list", "examples"],
)
def test_a_leaf_and_its_spec_are_of_one_kind(leaf, kind):
    assert kind is leaf_kinds.kind_of(leaf) is leaf_kinds.kind_of_spec(kind.spec(leaf))
    assert 3 == kind.count(kind.blank(kind.spec(leaf), 3, None))


def test_a_jagged_batch_that_is_transposed_is_refused():
    """Its values are transposed too: cut like others they gave the parts of other rows."""
    rows = [torch.arange(2.0).view(1, 2), torch.arange(2.0, 4.0).view(1, 2)]
    turned = torch.nested.nested_tensor(rows, layout=torch.jagged).transpose(1, 2)
    with pytest.raises(TypeError, match=r"\(rows, length, ...\), got one of shape \(2, 2, j"):
        num_rows({"x": turned})


def test_values_that_no_row_of_a_jagged_batch_has_are_not_joined():
    """Behind the last row, as of a buffer that is not full, or before the first one."""
    batch = torch.nested.nested_tensor_from_jagged(torch.arange(9.0), torch.tensor([1, 3, 4]))
    joined = concat_rows([batch, batch])
    assert [[1.0, 2.0], [3.0], [1.0, 2.0], [3.0]] == [row.tolist() for row in joined.unbind()]


def test_a_long_list_is_measured_by_some_of_its_rows():
    """A thread that reads ahead asks for each step: to look at all rows took longer than to cut."""
    looks = 0

    class Row(str):
        __slots__ = ()

        def __len__(self):
            nonlocal looks
            looks += 1
            return super().__len__()

    rows = [Row("x" * (100 + number % 100)) for number in range(6_400)]
    found = leaf_kinds.LIST.num_bytes(rows)
    assert 64 == looks
    assert found == pytest.approx(leaf_kinds.LIST.num_bytes(list(map(str, rows))))
    assert 6_400 * 100 < found < 6_400 * 300
    assert 3 * (2 + 56) == leaf_kinds.LIST.num_bytes(["ab"] * 3)
    for number in (2, 4, 8):  # files that are read in turn, one of them with long texts
        rows = ["x" * 10_000, *["x"] * (number - 1)] * (512 // number)
        assert leaf_kinds.LIST.num_bytes(rows) == pytest.approx(512 // number * 10_000, rel=0.2)
    assert 0 == leaf_kinds.LIST.num_bytes([])


@pytest.mark.parametrize("name", ["numpy.ma", "torch_distinput.data.files.dataset"])
def test_a_module_that_another_thread_is_about_to_import(name, monkeypatch):
    """It is there, and what it defines is not there yet."""
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset([1, 2, 3], global_batch_size=2)
    assert [[1, 2], [3]] == [step.tolist() for step in dataset]


@pytest.mark.parametrize(
    ("leaf", "error", "cure"),
    [
        (1.5, ValueError, "repeat it for each row"),
        ("text", TypeError, "Make a list of the strings"),
        (object(), TypeError, "hand over the examples by collate_fn=list"),
    ],
)
def test_what_has_no_rows_is_refused_with_what_to_do(leaf, error, cure):
    with pytest.raises(error, match=cure):
        leaf_kinds.kind_of(leaf)
