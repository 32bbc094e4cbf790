"""What attention is told of packed rows: each document attends to itself, as if it were alone."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

import torch_distinput as tdi
from tests.conftest import LONG
from tests.distribute.street import one

SIZES = [5, 3, 9, 1, 6, 8]


def make_batch(**keywords):
    texts = [[10 * number + place for place in range(size)] for number, size in enumerate(SIZES)]
    packing = tdi.pack(texts, tokens=None, **{"length": 16, **keywords})
    (batch,) = one().distribute_dataset(packing, global_batch_size=10)
    return batch


def test_cu_seqlens_of_dense_rows():
    """Padding is a sequence of its own; so is each document of each row."""
    ids = torch.tensor([[1, 1, 2, 0], [1, 1, 1, 1], [1, 2, 2, 3]])
    bounds, longest = tdi.cu_seqlens(ids)
    assert ([0, 2, 3, 4, 8, 9, 11, 12], 4) == (bounds.tolist(), longest)
    assert torch.int32 == bounds.dtype


def test_cu_seqlens_of_jagged_rows():
    """There is no padding."""
    batch = make_batch(layout="jagged")
    bounds, longest = tdi.cu_seqlens(batch["document_ids"])
    assert sorted(SIZES) == sorted(bounds.diff().tolist())
    assert max(SIZES) == longest


def test_positions_tell_documents_apart():
    """As torchtitan and models of Hugging Face look for them; padding is one more."""
    batch = make_batch(how="concatenate", length=7)
    ids = batch["document_ids"]
    from_positions = (batch["position_ids"] == 0).cumsum(1)
    assert torch.equal(ids[:, 1:] != ids[:, :-1], from_positions.diff(dim=1) > 0)


def test_cu_seqlens_without_rows():
    bounds, longest = tdi.cu_seqlens(torch.empty(0, 4, dtype=torch.int32))
    assert ([0], 0) == (bounds.tolist(), longest)


@pytest.mark.slow
@pytest.mark.parametrize("causal", [True, False] if LONG else [True])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_each_document_attends_to_itself(causal):
    """FlexAttention over rows is dense attention over each document alone."""
    batch = make_batch()
    ids = batch["document_ids"]
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, len(ids), 2, 16, 8, generator=generator).unbind()
    mask = tdi.document_mask(ids, causal=causal)
    got = flex_attention(query, key, value, block_mask=mask)
    bounds, _ = tdi.cu_seqlens(ids)
    flat = [each.transpose(1, 2).flatten(0, 1) for each in (query, key, value, got)]
    for first, stop in zip(bounds.tolist(), bounds.tolist()[1:], strict=False):
        *inputs, own = (each[first:stop].transpose(0, 1) for each in flat)
        alone = scaled_dot_product_attention(*inputs, is_causal=causal)
        torch.testing.assert_close(own, alone)
