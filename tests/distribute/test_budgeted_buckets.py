"""Buckets of a source with an index whose global batches hold a budget of tokens."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_distinput as tdi
from tests.conftest import LONG
from tests.distribute.resumes import clusters, in_order, make_of, run
from tests.distribute.street import one
from torch_distinput.plan.assignment.bounds import BatchBudget
from torch_distinput.plan.assignment.bucketing import find_buckets, sort_window_by_budget
from torch_distinput.testing import assert_resumes_everywhere

lengths_of_windows = st.lists(st.integers(0, 9), min_size=1, max_size=30)


def bucketed(lengths, window, boundaries=(3, 6)):
    """Numbers of such lengths, in windows."""
    source = list(range(len(lengths)))
    return tdi.bucket(source, length=lengths, boundaries=boundaries, window=window)


@given(lengths_of_windows, st.integers(9, 30), st.booleans())
def test_batches_of_a_window_are_as_full_as_they_can_be(lengths, budget, shuffled):
    """Each place comes once; batches are pieces of the sorted window, and the last one is last."""
    counted = np.array(lengths)
    buckets = find_buckets(counted, (3, 6))
    places, sizes = sort_window_by_budget(
        buckets, counted, BatchBudget(num_tokens=budget), key=(1, 2) if shuffled else None
    )
    assert list(range(len(lengths))) == sorted(places.tolist())
    batches = np.split(places, np.cumsum(sizes)[:-1])
    assert all(sorted(batch.tolist()) == batch.tolist() for batch in batches)
    by_bucket = np.argsort(buckets, kind="stable").tolist()
    last = batches[-1].tolist()
    in_turn = sorted(batches, key=lambda batch: min(map(by_bucket.index, batch.tolist())))
    assert last == in_turn[-1].tolist()
    for batch, following in pairwise(in_turn):
        first = by_bucket[max(map(by_bucket.index, batch.tolist())) + 1]
        assert first in following
        assert counted[batch].sum() <= budget < counted[batch].sum() + counted[first]


@pytest.mark.slow
@settings(max_examples=100 if LONG else 8)
@given(lengths_of_windows, st.integers(1, 12), st.booleans(), clusters, clusters, st.data())
def test_one_order_for_all_workers(lengths, window, shuffle, cluster, other, data):
    """C1 to C4: from any step on, on any cluster; and no batch holds more than the budget."""
    source = bucketed(lengths, window)
    budget = tdi.TokenBudget(12, length=lengths)
    make = make_of(source, budget, shuffle=shuffle, policy="data")
    whole, _ = run(make, cluster)
    assert list(range(len(lengths))) == sorted(in_order(whole))
    for step in zip(*whole, strict=True):
        assert 12 >= sum(lengths[x] for worker in step for batch in worker for x in batch)
    steps = data.draw(st.integers(0, len(whole[0])))
    head, state = run(make, cluster, steps=steps)
    tail, _ = run(make, other, state=state)
    assert in_order(whole) == in_order(head) + in_order(tail)


def test_a_batch_has_examples_of_about_one_length():
    """And there are few more steps than without buckets."""
    lengths = np.random.default_rng(0).integers(1, 100, 2000)
    budget = tdi.TokenBudget(1000, length=lengths)
    steps, waste = [], []
    for source in (list(range(2000)), bucketed(lengths, 1000, (20, 40, 60, 80))):
        dataset = one().distribute_dataset(source, global_batch_size=budget, shuffle=True)
        expected = len(dataset)  # of this epoch
        batches = [lengths[batch.numpy()] for batch in dataset]
        assert expected == len(batches)
        steps.append(len(batches))
        places = sum(len(batch) * batch.max() for batch in batches)
        waste.append(1 - sum(batch.sum() for batch in batches) / places)
    assert steps[1] <= 1.02 * steps[0]
    assert waste[1] < 0.5 * waste[0]


@pytest.mark.slow
def test_a_resume_on_any_cluster_has_the_rest():
    lengths = [3, 9, 1, 4, 4, 8, 2, 2, 6]
    source = bucketed(lengths, 5)

    def make(strategy):
        budget = tdi.TokenBudget(11, length=lengths)
        return strategy.distribute_dataset(source, global_batch_size=budget, shuffle=True)

    assert_resumes_everywhere(make)


@pytest.mark.parametrize(
    "size",
    [tdi.TokenBudget(12, length=int), tdi.TokenBudget(11, length=int, max_length=9), 3],
    ids=["larger", "cut", "a number"],
)
def test_a_state_of_another_budget_is_refused(size):
    """Batches are sorted by it, so that a place would mean other examples: in both directions."""
    source, budget = bucketed(list(range(11)), 6), tdi.TokenBudget(11, length=int)
    for before, after in ((budget, size), (size, budget)):
        dataset = one().distribute_dataset(source, global_batch_size=before)
        next(iter(dataset))
        other = one().distribute_dataset(source, global_batch_size=after)
        other.load_state_dict(json.loads(json.dumps(dataset.state_dict())))
        with pytest.raises(tdi.ConfigurationError, match="of a global batch was"):
            iter(other)


def test_lengths_are_measured_once():
    """Of the budget as of the buckets."""
    calls = []

    def measure(number):
        calls.append(number)
        return 1 + number % 5

    source = tdi.bucket(list(range(20)), length=[1] * 20, boundaries=(3,), window=10)
    dataset = one().distribute_dataset(
        source, global_batch_size=tdi.TokenBudget(9, length=measure)
    )
    assert list(range(20)) == sorted(x for batch in dataset for x in batch.tolist())
    assert list(range(20)) == calls


def test_drop_last_leaves_out_the_end_of_the_last_window():
    source = bucketed([5, 5, 5, 5, 3], 5)
    budget = tdi.TokenBudget(10, length=[5, 5, 5, 5, 3])
    dataset = one().distribute_dataset(
        source, global_batch_size=budget, drop_last=True, shuffle=True
    )
    assert [0, 1, 2, 4] == sorted(x for batch in dataset for x in batch.tolist())
