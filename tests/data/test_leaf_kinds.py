"""The table of leaf kinds: a leaf, and the spec of it, find the same row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import torch_distinput as tdi
from torch_distinput.data.batch import jagged, leaf_kinds
from torch_distinput.data.batch.packed import PACKED
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
