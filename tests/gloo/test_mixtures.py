"""Mixtures over real gloo ranks: every example, over an epoch and over a resume on other ranks."""

from __future__ import annotations

import json
from functools import partial
from itertools import islice

import pytest
import torch

import torch_distinput as tdi
from tests.distribute.mixtures import play_by_hand
from tests.distribute.street import shown, write_files
from tests.gloo.jobs import numbers
from torch_distinput.testing import run_ranks

WEIGHTS = (3, 2, 1)


def mix_kinds(pattern, stop, policy, strategy, length=None):
    """A stream and a tensor beside files; or files alone, to be dealt out."""
    files = tdi.FileDataset(pattern).map(int)
    sources = {"stream": partial(numbers, 11), "tensor": torch.arange(100, 107), "files": files}
    weights = WEIGHTS
    if policy == "file":
        sources, weights = {"files": files, "more": files.map(partial(sum_with, 300))}, (1, 2)
    return strategy.distribute_dataset(
        tdi.mix(sources, weights=weights, stop=stop, length=length),
        global_batch_size=4,
        options=tdi.InputOptions(auto_shard_policy=policy),
    )


def last_digit(number):
    """Tokens of a number."""
    return number % 10


def sum_with(number, other):
    """Another number."""
    return number + other


def play_part(make, state, steps, strategy):
    """Some steps, what they are from, and the state after them."""
    dataset = make(strategy)
    if state is not None:
        dataset.load_state_dict(json.loads(state))
    iterator = iter(dataset)
    played, sources = [], []
    for step in islice(iterator, steps):
        played.append([x for batch in shown(strategy, step) for x in batch])
        sources.append(iterator.last_step.sources)
    return played, sources, json.dumps(dataset.state_dict())


def play_on(make, ranks, state=None, steps=None):
    """The examples by step over all ranks, what they are from, and the state of all."""
    parts, sources, states = zip(*run_ranks(partial(play_part, make, state, steps), ranks),
                                 strict=True)  # fmt: skip
    assert 1 == len(set(states))
    assert all(sources[0] == own for own in sources)
    return [[x for part in step for x in part] for step in zip(*parts, strict=True)], sources[0], (
        states[0]
    )


@pytest.mark.slow
@pytest.mark.parametrize("stop", ["first", "all", "repeat"])
def test_one_order_on_all_ranks(tmp_path, stop):
    """What arithmetic says, over a whole epoch and over one that goes on with 3 ranks and 1."""
    pattern = write_files(tmp_path, [range(200, 203), range(203, 204)])
    make = partial(mix_kinds, pattern, stop, "data")
    values = [list(range(11)), list(range(100, 107)), list(range(200, 204))]
    expected, _ = play_by_hand(values, WEIGHTS, stop)
    whole, sources, _ = play_on(make, 2)
    assert expected == [x for step in whole for x in step]
    names = ("stream", "tensor", "files")
    assert [
        dict(zip(names, ([x // 100 for x in step].count(n) for n in range(3)), strict=True))
        for step in whole
    ] == sources
    head, _, state = play_on(make, 2, steps=2)
    middle, _, state = play_on(make, 3, state, steps=1)
    tail, _, _ = play_on(make, 1, state)
    assert whole == head + middle + tail


@pytest.mark.parametrize("length", [None, pytest.param(last_digit, marks=pytest.mark.long)])
def test_files_of_each_rank(tmp_path, length):
    """Each rank mixes its own, and all know what is in a step; a resume elsewhere has the rest."""
    pattern = write_files(tmp_path, [range(2 * n, 2 * n + 2) for n in range(7)])
    make = partial(mix_kinds, pattern, "all", "file", length=length)
    everything = sorted([*range(14), *range(300, 314)])
    whole, sources, _ = play_on(make, 2)
    assert everything == sorted(x for step in whole for x in step)
    assert [
        {"files": sum(x < 300 for x in step), "more": sum(x >= 300 for x in step)}
        for step in whole
    ] == sources
    head, _, state = play_on(make, 2, steps=2)
    tail, _, _ = play_on(make, 3, state)
    assert everything == sorted(x for step in head + tail for x in step)


@pytest.mark.long
@pytest.mark.parametrize("stop", ["first", "all", "repeat"])
def test_shares_of_tokens_on_all_ranks(tmp_path, stop):
    """One order under DATA, that goes on with 3 ranks and 1."""
    pattern = write_files(tmp_path, [range(201, 204), range(204, 205)])
    make = partial(mix_kinds, pattern, stop, "data", length=last_digit)
    whole, sources, _ = play_on(make, 2)
    head, _, state = play_on(make, 2, steps=2)
    middle, _, state = play_on(make, 3, state, steps=1)
    tail, _, _ = play_on(make, 1, state)
    assert whole == head + middle + tail
    assert [len(step) for step in whole] == [sum(each.values()) for each in sources]
    if stop == "all":
        assert 22 == len({x for step in whole for x in step}) == sum(map(len, whole))
