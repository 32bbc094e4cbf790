"""Token budgets over real gloo ranks: every example, over an epoch and over a resume on others."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from itertools import count, islice, takewhile

import pytest

import torch_distinput as tdi
from tests.distribute.budgets import by_tokens, fill_by_hand, length_of
from tests.distribute.street import shown, write_files
from torch_distinput.testing import run_ranks


def play_part(pattern, policy, state, steps, strategy):
    """The examples of some steps, the tokens of these in sync, and the state after them."""
    source = tdi.FileDataset(pattern).map(int)
    dataset = by_tokens(source, 12, policy=policy)(strategy)
    if state is not None:
        dataset.load_state_dict(json.loads(state))
    iterator = iter(dataset)
    played = [
        [x for batch in shown(strategy, step) for x in batch] for step in islice(iterator, steps)
    ]
    return played, json.dumps(dataset.state_dict())


def play_on(ranks, pattern, policy, state=None, steps=None):
    """The examples by step over all ranks, and the state of all."""
    job = partial(play_part, pattern, policy, state, steps)
    parts, states = zip(*run_ranks(job, ranks), strict=True)
    assert 1 == len(set(states))
    return [[x for part in step for x in part] for step in zip(*parts, strict=True)], states[0]


def count_tokens(pattern, strategy):
    """What the steps of an epoch say of their tokens, of all ranks."""
    source = tdi.FileDataset(pattern).map(int)
    with iter(by_tokens(source, 12, policy="file")(strategy)) as iterator:
        feed = iterator._run.feed._feed
        steps = takewhile(bool, map(feed.next, count()))
        return [delivery.step.facts.num_tokens for delivery in steps]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["data", "file"])
def test_every_example_on_all_ranks(tmp_path, policy):
    """Over a whole epoch, and over one that goes on with 3 ranks and 1."""
    pattern = write_files(tmp_path, [range(4 * n, 4 * n + 4) for n in range(5)])
    whole, _ = play_on(2, pattern, policy)
    assert Counter(range(20)) == Counter(x for step in whole for x in step)
    head, state = play_on(2, pattern, policy, steps=3)
    middle, state = play_on(3, pattern, policy, state, steps=1)
    tail, _ = play_on(1, pattern, policy, state)
    assert Counter(range(20)) == Counter(x for step in head + middle + tail for x in step)
    if policy == "data":
        assert fill_by_hand(range(20), 12) == whole == head + middle + tail


def test_ranks_sum_the_tokens_of_a_step(tmp_path):
    """Of the batches that each of them fills by itself."""
    pattern = write_files(tmp_path, [range(4 * n, 4 * n + 4) for n in range(5)])
    first, second = run_ranks(partial(count_tokens, pattern), 2)
    assert first == second
    assert sum(map(length_of, range(20))) == sum(first)
