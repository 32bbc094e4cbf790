"""Each fast path gives what the plain one gives: for drawn trees, dtypes and sizes.

Generated code for trees has its own test, in ``test_batches``.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torch_distinput.data.batch.buffer_pool import LARGE
from torch_distinput.data.loader import shared_memory
from torch_distinput.data.loader.shared_memory import Receiver, Sender
from torch_distinput.data.sources import indexed
from torch_distinput.data.sources.indexed import ColumnFetch

DTYPES = [
    *(torch.uint8, torch.int16, torch.int64, torch.float16, torch.bfloat16, torch.float64),
    *(torch.bool, torch.complex64, torch.uint32),
]
FORMS = {
    "whole": lambda tensor: tensor,
    "a part": lambda tensor: tensor[: len(tensor) // 2],
    "transposed": lambda tensor: tensor.T,
    "every second row": lambda tensor: tensor[::2],
}


def tensor_of(rows, columns, dtype, form):
    """Numbers that tell their place."""
    return FORMS[form](torch.arange(rows * columns).reshape(rows, columns).to(dtype))


tensors = st.builds(
    tensor_of,
    st.integers(0, 5),
    st.integers(1, 40),
    st.sampled_from(DTYPES),
    st.sampled_from(sorted(FORMS)),
)
arrays = st.builds(
    lambda count, dtype: np.arange(count).astype(dtype),
    st.integers(0, 50),
    st.sampled_from(["u1", "i4", "f8", "U5", "O"]),
)
leaves = st.one_of(tensors, arrays, st.lists(st.text(max_size=4), max_size=3), st.none())
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple), st.dictionaries(st.sampled_from("ab"), inner)
    ),
    max_leaves=6,
)


def shown(tree):
    """Everything that a user could see of a tree."""
    if isinstance(tree, (tuple, list)):
        return type(tree), [shown(item) for item in tree]
    if isinstance(tree, dict):
        return type(tree), {key: shown(value) for key, value in tree.items()}
    if isinstance(tree, torch.Tensor):
        return tree.dtype, tree.shape, tree.tolist()
    if isinstance(tree, np.ndarray):
        return tree.dtype, tree.shape, tree.tolist()
    return tree


@pytest.mark.slow
@given(st.lists(trees, min_size=1, max_size=4))
def test_slots_carry_what_torch_carries(results):
    """One after another through the same slots; and torch's way, when all slots are taken."""
    with pytest.MonkeyPatch.context() as patch:
        sender, receiver = Sender(0), Receiver()
        fast = [shown(receiver.open(sender.pack(result))) for result in results]
        patch.setattr(shared_memory, "_MOST_SLOTS", 0)
        sender, receiver = Sender(0), Receiver()
        plain = [shown(receiver.open(sender.pack(result))) for result in results]
    assert plain == fast == list(map(shown, results))


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=12), min_size=1, max_size=4),
    st.sampled_from(DTYPES),
    st.integers(0, 3),
)
def test_memory_that_is_used_again_holds_what_fresh_memory_holds(batches, dtype, width):
    """Batch after batch, whether the one before is kept or not."""
    columns = {"x": torch.arange(10 * width).reshape(10, width).to(dtype), "y": torch.arange(10)}
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        for large in (1, LARGE):
            patch.setattr(indexed, "LARGE", large)
            fetch = ColumnFetch.of(columns)
            kept = [fetch(np.array(batch, dtype=np.int64)) for batch in batches]
            dropped = [shown(fetch(np.array(batch, dtype=np.int64))) for batch in batches]
            found[large] = list(map(shown, kept)), dropped
    assert found[LARGE] == found[1]
    assert [[columns["y"][row].item() for row in batch] for batch in batches] == [
        batch["y"].tolist() for batch in kept
    ]
