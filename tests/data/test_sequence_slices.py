"""Which leaves of a batch are cut along their sequences, where, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from torch_distinput.data.batch.spec import spec_of
from torch_distinput.data.steps.local_step import take_apart
from torch_distinput.data.steps.sequence_slices import SequenceSlices
from torch_distinput.errors import SourceError
from torch_distinput.packed_strings import PackedStrings
from torch_distinput.values import TensorSpec

TOKENS = torch.arange(16).view(2, 8)
HEAD_AND_TAIL, MIDDLE = [0, 1, 6, 7], [2, 3, 4, 5]


def cut(batch, index=0, num_slices=2, columns=None):
    """The slices of a batch, which agree with those of its spec."""
    slices = SequenceSlices(index=index, num_slices=num_slices, columns=columns)
    found = slices.cut(take_apart(batch, np.arange(len(TOKENS)))).batch
    assert (spec_of(found), "ids") == slices.cut_spec((spec_of(batch), "ids"))
    return found


def test_slices_of_a_bare_tensor():
    assert torch.equal(TOKENS[:, HEAD_AND_TAIL], cut(TOKENS))
    assert torch.equal(TOKENS[:, MIDDLE], cut(TOKENS, 1))


def test_what_has_no_second_dimension_stays_whole():
    weight, words = torch.ones(2), ["a", "b"]
    packed = PackedStrings.from_list(words)
    tokens, own_weight, own_words, own_packed = cut((TOKENS, weight, words, packed))
    assert (2, 4) == tokens.shape
    assert own_weight is weight
    assert own_words is words
    assert own_packed is packed


def test_further_dimensions_are_kept():
    wide = torch.arange(48).view(2, 8, 3)
    assert torch.equal(wide[:, HEAD_AND_TAIL], cut((TOKENS, wide))[1])


def test_position_ids_are_made_for_a_mapping():
    assert [HEAD_AND_TAIL] * 2 == cut({"input_ids": TOKENS})["position_ids"].tolist()
    assert [MIDDLE] * 2 == cut({"input_ids": TOKENS}, 1)["position_ids"].tolist()
    whole = cut({"input_ids": TOKENS}, num_slices=1)
    assert [list(range(8))] * 2 == whole["position_ids"].tolist()


def test_position_ids_of_the_batch_are_cut_and_not_made():
    own = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]] * 2)
    found = cut({"input_ids": TOKENS, "position_ids": own})
    assert [[0, 1, 3, 4]] * 2 == found["position_ids"].tolist()


def test_named_columns_may_have_lengths_and_dimensions_of_their_own():
    """Then nobody knows whose places position ids would be, and none are made."""
    batch = {"mel": torch.arange(24).view(2, 3, 4), "ids": TOKENS, "patches": torch.ones(2, 5)}
    found = cut(batch, columns=(("mel", 2), ("ids", 1)))
    assert torch.equal(batch["mel"][:, :, [0, 3]], found["mel"])
    assert torch.equal(TOKENS[:, HEAD_AND_TAIL], found["ids"])
    assert found["patches"] is batch["patches"]
    assert ["mel", "ids", "patches"] == list(found)


def test_a_named_column_stands_for_all_of_its_leaves():
    found = cut(({"x": TOKENS, "y": TOKENS}, TOKENS), columns=((0, 1),))
    assert [(2, 4), (2, 4), (2, 8)] == [leaf.shape for leaf in (*found[0].values(), found[1])]


@dataclass
class Tokens:
    """A batch of a user's class."""

    input_ids: torch.Tensor
    labels: torch.Tensor


def test_a_dataclass_is_cut_and_gets_no_field():
    found = cut(Tokens(TOKENS, TOKENS), columns=(("labels", 1),))
    assert isinstance(found, Tokens)
    assert [(2, 8), (2, 4)] == [found.input_ids.shape, found.labels.shape]


def test_what_is_cut_shares_no_memory_with_the_batch():
    """Also where head and tail lie side by side."""
    for index in range(2):
        found = cut(TOKENS, index)
        assert found.is_contiguous()
        assert found.untyped_storage().data_ptr() != TOKENS.untyped_storage().data_ptr()


def test_zero_rows_and_lengths_that_vary():
    assert (0, 4) == cut(TOKENS[:0].clone()).shape
    slices = SequenceSlices(index=0, num_slices=2)
    spec = ({"ids": TensorSpec((None, None), torch.int64)}, "ids")
    expected = {
        "ids": TensorSpec((None, None), torch.int64),
        "position_ids": TensorSpec((None, None), torch.int64),
    }
    assert (expected, "ids") == slices.cut_spec(spec)
    assert slices.cut_spec(None) is None


JAGGED = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)


@pytest.mark.parametrize(
    ("batch", "columns", "words"),
    [
        (torch.ones(2, 6), None, "multiple of 4, two chunks for each of the 2 ranks.*got 6.*to 8"),
        ((TOKENS, torch.ones(2, 3)), None, r"one length.*8 at batch\[0\], 3 at batch\[1\].*Name"),
        ((TOKENS, JAGGED), None, r"jagged tensor at batch\[1\]. Pad its rows"),
        (torch.ones(2), None, "got none among batch. Leave cp_dim out"),
        ({"a": TOKENS}, (("b", 1),), r"the keys \['a'\] without \['b'\]"),
        (TOKENS, ((0, 1),), r"got a bare leaf without \[0\]"),
        ({"a": TOKENS}, (("a", 2),), r"dimension 2 at batch\['a'\].*got one of 2 dimensions"),
        ({"a": ["x", "y"], "b": TOKENS}, (("a", 1),), r"at batch\['a'\].*no dense tensor"),
        ({"a": JAGGED, "b": TOKENS}, (("a", 1),), r"jagged tensor at batch\['a'\]"),
        ({"a": torch.ones(2, 5), "b": TOKENS}, (("a", 1),), r"got 5 in dimension 1.*\['a'\]"),
    ],
)
def test_what_cannot_be_cut(batch, columns, words):
    """The cure is in the message."""
    with pytest.raises(SourceError, match=words):
        cut(batch, columns=columns)


def test_a_jagged_column_beside_those_that_are_named_stays_whole():
    assert cut((TOKENS, JAGGED), columns=((0, 1),))[1] is JAGGED
