"""Buckets over real gloo ranks: every example, over an epoch and over resumes on other ranks."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from itertools import islice

import pytest

import torch_distinput as tdi
from tests.distribute.street import write_files
from torch_distinput.testing import run_ranks


def make_row(number):
    """From 1 to 6 tokens, of which the first names it."""
    return [int(number), *[0] * (int(number) * 5 % 6)]


def distribute(kind, pattern, strategy):
    """Rows by index, or of files that are dealt out, whose widths agree on all ranks."""
    source = [make_row(number) for number in range(23)]
    if kind == "files":
        source = tdi.FileDataset(pattern).map(make_row)
    bucketed = tdi.bucket(source, length=len, boundaries=(2, 4), window=8)
    collate = tdi.pad_collate(longest_of="step")
    return strategy.distribute_dataset(bucketed, global_batch_size=4, collate_fn=collate)


def play_part(kind, pattern, state, steps, strategy):
    """The rows of some steps with the widths, and the state after them."""
    dataset = distribute(kind, pattern, strategy)
    if state is not None:
        dataset.load_state_dict(json.loads(state))
    played = [
        (batch[:, 0].tolist() if len(batch) else [], batch.shape[1] if len(batch) else None)
        for batch in islice(iter(dataset), steps)
    ]
    return played, json.dumps(dataset.state_dict())


@pytest.mark.parametrize("kind", ["index", "files"])
def test_what_two_ranks_left_three_play_and_then_one(tmp_path, kind):
    pattern = write_files(tmp_path, [range(9), range(9, 14), range(14, 18), range(18, 23)])
    state, played = None, Counter()
    for ranks, steps in ((2, 2), (3, 1), (1, None)):
        job = partial(play_part, kind, pattern, state, steps)
        parts, states = zip(*run_ranks(job, ranks, timeout=60), strict=True)
        assert 1 == len(set(states))
        state = states[0]
        for step in zip(*parts, strict=True):
            played.update(number for numbers, _ in step for number in numbers)
            widths = {width for _, width in step} - {None}
            assert 1 == len(widths)
    assert Counter(range(23)) == played
