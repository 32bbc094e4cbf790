"""Packed rows have the numbers that documents have, whatever types these come in, or an error."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import torch_distinput as tdi
from tests.distribute.street import one, stream_of

EXACT = 2**60 + 1
"""No float64: whatever goes through one becomes another number."""
TOO_LARGE = 2**63 + 5
REFUSALS = (tdi.ConfigurationError, tdi.SourceError)
"""Before the first step, or in it."""


def unsigned(*tokens):
    return np.array(tokens, dtype=np.uint64)


def tokens_of(source):
    packing = tdi.pack(source, length=2, tokens="ids", window=2)
    (batch,) = one().distribute_dataset(packing, global_batch_size=8)
    return batch["ids"].tolist()


COLUMN = {"ids": torch.tensor([[EXACT, 1]])}
LARGE = {
    "a list": [{"ids": unsigned(EXACT)}, {"ids": [1]}],
    "a stream": stream_of([{"ids": unsigned(EXACT)}, {"ids": [1]}]),
    "an empty document": [{"ids": unsigned(EXACT, 1)}, {"ids": []}],
    "a mixture": tdi.mix({"a": COLUMN, "b": {"ids": unsigned(EXACT, 1)[None]}}, weights=(1, 1)),
}


@pytest.mark.parametrize("source", LARGE.values(), ids=LARGE)
def test_types_that_differ_keep_their_numbers(source):
    """NumPy makes floats of int64 beside uint64, which are other numbers."""
    assert {(EXACT, 1)} == set(map(tuple, tokens_of(source)))


REFUSED = {
    "a list": [{"ids": unsigned(1, TOO_LARGE)}],
    "a stream": stream_of([{"ids": unsigned(1, TOO_LARGE)}]),
    "an array": {"ids": unsigned(1, TOO_LARGE)[None]},
    "a tensor": {"ids": torch.tensor([[1, TOO_LARGE]], dtype=torch.uint64)},
    "a mixture": tdi.mix({"a": COLUMN, "b": {"ids": unsigned(1, TOO_LARGE)[None]}}, weights=(1, 1)),
}


@pytest.mark.parametrize("source", REFUSED.values(), ids=REFUSED)
def test_tokens_that_no_int64_holds_are_refused(source):
    """They would come as negative numbers."""
    with pytest.raises(REFUSALS, match=f"below 2\\*\\*63 in column 'ids'.* got {TOO_LARGE} in"):
        tokens_of(source)


def test_a_label_in_another_row_is_looked_at_too():
    """It is not among the tokens of the rows of its batch."""
    packing = tdi.pack({"ids": unsigned(1, 2, TOO_LARGE, 4)[None]}, length=2, tokens="ids")
    dataset = one().distribute_dataset(packing, global_batch_size=1)
    with pytest.raises(tdi.SourceError, match="in column 'ids'"):
        next(iter(dataset))


def test_labels_that_no_int64_holds_are_refused():
    """-100 among unsigned numbers is one of them."""
    labels = np.array([-100, 3]).astype(np.uint64)
    packing = tdi.pack([{"ids": [1, 2], "y": labels}], length=2, tokens="ids", labels="y")
    with pytest.raises(tdi.SourceError, match="column 'y'.*need a signed type"):
        list(one().distribute_dataset(packing, global_batch_size=1))


def test_a_token_of_padding_is_an_int64():
    with pytest.raises(ValueError, match=f"pad_id that an int64 holds, got {2**63}"):
        tdi.pack([[1]], length=2, tokens=None, pad_id=2**63)


@pytest.mark.parametrize("sampler", [list(unsigned(2**64 - 1)), [list(unsigned(2**64 - 1))]])
def test_indices_that_no_int64_holds_are_refused(sampler):
    """This one would be -1, which is the last example."""
    batches = {"batch_sampler": sampler} if isinstance(sampler[0], list) else {"sampler": sampler}
    loader = torch.utils.data.DataLoader([1, 2, 3], **batches)
    with pytest.raises(tdi.ConfigurationError, match=f"below 2\\*\\*63, got {2**64 - 1}"):
        list(one().distribute_dataset(loader))


FILLS = [
    (float("nan"), torch.int64), (float("inf"), torch.int64), (2**63, torch.int64),
    (-1, torch.uint64), (0.5, torch.int32), (70_000.0, torch.float16), (2, torch.bool),
]  # fmt: skip


@pytest.mark.parametrize(("fill", "dtype"), FILLS)
def test_padding_that_a_type_does_not_hold_is_refused(fill, dtype):
    rows = [torch.ones(1, dtype=dtype), torch.ones(2, dtype=dtype)]
    with pytest.raises(tdi.ConfigurationError, match=f"a number that {dtype} holds .* got {fill}"):
        tdi.pad_collate(fill)(rows)


@pytest.mark.parametrize("fill", [float("inf"), float("nan"), 65_504.0])
def test_floats_are_padded_with_any_float(fill):
    rows = [torch.ones(1, dtype=torch.float16), torch.ones(2, dtype=torch.float16)]
    padded = tdi.pad_collate(fill)(rows)
    assert torch.equal(torch.tensor(fill).half().isnan(), padded[0, 1].isnan())
    assert fill != fill or fill == padded[0, 1]  # noqa: PLR0124 - not a number


def test_tokens_are_pad_collated_in_their_type():
    padded = tdi.pad_collate(0)([unsigned(1, TOO_LARGE), unsigned(1)])
    assert [[1, TOO_LARGE], [1, 0]] == padded.tolist()


def test_more_tokens_than_kernels_count_are_refused():
    """The last bound would be negative."""
    ids = torch.empty(2, 2**30, dtype=torch.int32, device="meta")
    with pytest.raises(tdi.ConfigurationError, match=f"at most {2**31 - 1} tokens.* got {2**31}"):
        tdi.cu_seqlens(ids)
