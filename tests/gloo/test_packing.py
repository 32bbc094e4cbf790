"""Packed rows over real gloo ranks: every token, over a resume on other ranks."""

from __future__ import annotations

import json
from functools import partial
from itertools import islice

import pytest

import torch_distinput as tdi
from tests.distribute.packings import PAD, check_rows, dicts, documents, rows_of, write_documents
from torch_distinput.testing import run_ranks

SIZES = [5, 6, 3, 10, 2, 7, 1, 8, 4]


def play_part(source, state, steps, strategy):
    """Rows of some steps, and the state after them."""
    packing = tdi.pack(source, length=8, window=4, pad_id=PAD)
    dataset = strategy.distribute_dataset(packing, global_batch_size=2)
    if state is not None:
        dataset.load_state_dict(json.loads(state))
    played = [rows_of(batch) for batch in islice(iter(dataset), steps)]
    return [row for rows in played for row in rows], json.dumps(dataset.state_dict())


def play_on(source, ranks, state=None, steps=None):
    """The rows of all ranks, and the state that all say."""
    parts, states = zip(*run_ranks(partial(play_part, source, state, steps), ranks), strict=True)
    assert 1 == len(set(states))
    return [row for part in parts for row in part], states[0]


@pytest.mark.parametrize("kind", ["index", "files"])
def test_each_token_comes_once(tmp_path, kind):
    """Two ranks begin, and three go on: by index in one order, and each with files of its own."""
    texts = documents(SIZES)
    source = dicts(texts) if kind == "index" else write_documents(tmp_path / "files", texts, 2)
    head, state = play_on(source, 2, steps=1)
    tail, _ = play_on(source, 3, state)
    assert head
    check_rows(head + tail, SIZES, 8)
