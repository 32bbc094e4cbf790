"""Models of Hugging Face on packed rows: each document as if it were alone."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import torch_distinput as tdi

SIZES = [7, 4, 12, 2, 9, 5, 1]


@pytest.fixture(scope="module")
def documents():
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(1, 64, (size,), generator=generator).tolist() for size in SIZES]


def make_model(attention):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        attn_implementation=attention,
    )
    return LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("keywords", [{"shift_labels": False}, {}])
def test_the_loss_of_rows_is_that_of_documents(documents, attention, keywords):
    """By position_ids alone the model keeps documents apart, and no label crosses one."""
    model = make_model(attention)
    packed = tdi.pack(documents, length=16, tokens=None, **keywords)
    (batch,) = tdi.OneDeviceStrategy("cpu").distribute_dataset(packed, global_batch_size=8)
    labels = {"labels": batch["labels"]}
    if not keywords:
        labels["shift_labels"] = batch["labels"]
    got = model(
        input_ids=batch["input_ids"],
        position_ids=batch["position_ids"],
        use_cache=False,
        num_items_in_batch=int(batch["loss_mask"].sum()),
        **labels,
    ).loss
    alone = [torch.tensor([document]) for document in documents]
    total = sum(
        model(input_ids=ids, labels=ids, num_items_in_batch=1).loss
        for ids in alone
        if ids.shape[1] > 1
    )
    expected = total / sum(size - 1 for size in SIZES)
    torch.testing.assert_close(got, expected)
