"""Token budgets whose batches are dealt by cost: the same batches, on any cluster."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_distinput as tdi
from tests.conftest import LONG
from tests.distribute.balances import (
    COUNT,
    HAS_SIZE,
    INDEXED,
    STREAMS,
    cost_of,
    costs_in_steps,
    examples_in_steps,
    pad_up,
    play,
)
from tests.distribute.resumes import clusters, examples_of, make_of, run
from tests.distribute.street import options, write_files

SOURCES = {**INDEXED, **STREAMS}
names = st.sampled_from([name for name in SOURCES if name not in HAS_SIZE])


def length_of(example):
    return 1 + int(example) * 7 % 13


@pytest.mark.slow
@settings(max_examples=200 if LONG else 15)
@given(names, st.integers(14, 60), clusters, clusters, st.booleans(), st.data())
def test_batches_are_those_of_the_budget_and_go_on_anywhere(
    name, tokens, cluster, other, is_padded, data
):
    budget = tdi.TokenBudget(tokens, length=length_of)
    cost = tdi.PaddedCost(cost_of) if is_padded else cost_of
    plain, _ = play(SOURCES[name](), budget, cluster)
    dealt, _ = play(SOURCES[name](), budget, cluster, balance=cost)
    assert examples_in_steps(plain) == examples_in_steps(dealt)

    add = pad_up if is_padded else sum
    before, after = costs_in_steps(plain, add), costs_in_steps(dealt, add)
    assert all(max(now) <= max(then) for then, now in zip(before, after, strict=True))

    make = make_of(SOURCES[name](), budget, balance=cost)
    head, state = run(make, cluster, steps=data.draw(st.integers(0, len(before))))
    tail, _ = run(make, other, state=state)
    assert dict.fromkeys(range(COUNT), 1) == examples_of(head) + examples_of(tail)


@pytest.mark.parametrize("policy", ["file", "off"])
def test_a_workers_own_batches_are_dealt_to_its_replicas(tmp_path, policy):
    lines = [list(range(first, min(first + 7, COUNT))) for first in range(0, COUNT, 7)]
    files = tdi.FileDataset(write_files(tmp_path, lines)).map(int)
    budget = tdi.TokenBudget(60, length=length_of)
    asked = {"options": options(auto_shard_policy=policy)}
    plain, _ = play(files, budget, (2, 2), **asked)
    dealt, told = play(files, budget, (2, 2), balance=cost_of, **asked)
    for then, now in zip(plain, dealt, strict=True):
        assert examples_in_steps([then]) == examples_in_steps([now])
    assert told[0].after < told[0].before
