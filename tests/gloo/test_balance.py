"""Balanced gloo ranks: every example, over an epoch, and over a resume on other ranks."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from itertools import islice

import pytest
import torch

from tests.distribute.balances import COSTS, COUNT, cost_of
from tests.distribute.street import shown
from tests.gloo.jobs import numbers
from tests.gloo.meshes import TWO_BY_TWO, strategy_on
from torch_distinput.testing import run_ranks

SIZE = 9


def play_part(source, state, steps, strategy):
    """Some steps, the state after them, and how they were dealt."""
    cost = COSTS if isinstance(source, torch.Tensor) else cost_of
    dataset = strategy.distribute_dataset(source, global_batch_size=SIZE, balance=cost)
    if state is not None:
        dataset.load_state_dict(json.loads(state))
    iterator = iter(dataset)
    played = [shown(strategy, step)[0] for step in islice(iterator, steps)]
    return played, json.dumps(dataset.state_dict()), iterator.stats().balance


def play_on(source, ranks, state=None, steps=None):
    """The steps of all ranks, and what all of them say."""
    parts, states, stats = zip(
        *run_ranks(partial(play_part, source, state, steps), ranks), strict=True
    )
    assert 1 == len(set(states)) == len(set(stats))
    return list(zip(*parts, strict=True)), states[0], stats[0]


def count(steps):
    """All examples."""
    return Counter(x for step in steps for part in step for x in part)


@pytest.mark.parametrize(
    "source", [torch.arange(COUNT), partial(numbers, COUNT)], ids=["tensor", "stream"]
)
def test_every_example_once(source):
    """On 2 ranks over an epoch; from its middle on with 3, and with 1."""
    whole, _, stats = play_on(source, 2)
    assert dict.fromkeys(range(COUNT), 1) == count(whole)
    assert stats.after < stats.before
    for number, step in enumerate(whole):
        rows = sorted(x for part in step for x in part)
        assert list(range(COUNT))[number * SIZE :][:SIZE] == rows
    head, state, _ = play_on(source, 2, steps=2)
    assert whole[:2] == head
    middle, state, _ = play_on(source, 3, state, steps=1)
    tail, _, _ = play_on(source, 1, state)
    assert dict.fromkeys(range(COUNT), 1) == count(head) + count(middle) + count(tail)


def play_beside(replicate_input, _):
    """On a mesh of two workers with two ranks each."""
    strategy = strategy_on(*TWO_BY_TWO, replicate_input=replicate_input)
    return strategy.worker_index, play_part(torch.arange(COUNT), None, None, strategy)


@pytest.mark.parametrize("replicate_input", ["read", "broadcast"])
def test_ranks_that_share_data_are_told_the_same(replicate_input):
    """What a step costs travels with it."""
    ranks = run_ranks(partial(play_beside, replicate_input), 4)
    workers = dict(ranks)
    assert all(workers[worker] == told for worker, told in ranks)
    assert dict.fromkeys(range(COUNT), 1) == count(zip(workers[0][0], workers[1][0], strict=True))
    assert workers[0][2] == workers[1][2] is not None
