"""Rows dealt by what they cost, against all ways to deal them."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_distinput.options import Rebatch
from torch_distinput.plan.assignment.balancing import LARGEST_COST, deal_rows
from torch_distinput.plan.assignment.batching import Splitter
from torch_distinput.plan.assignment.topology import Topology

rules = st.sampled_from([Rebatch.SPLIT, Rebatch.EVEN])
small_costs = st.lists(st.integers(0, 9), min_size=1, max_size=40)
uneven_costs = st.lists(st.integers(0, 16).map(lambda n: n**3), min_size=1, max_size=40)
cost_lists = small_costs | uneven_costs


def plain_sizes(num_rows, num_replicas, rule=Rebatch.SPLIT):
    """Rows of each replica, cut one after another."""
    topology = Topology(replicas_per_worker=num_replicas)
    splitter = Splitter(topology=topology, rebatch=rule, global_batch_size=None, shared=True)
    return splitter.cut(num_rows)[0].sizes


def pad_up(costs):
    """Each row costs as much as the dearest of them."""
    return len(costs) * max(costs, default=0)


def cut_costs(costs, sizes, add_up):
    """What each replica costs, if it gets so many rows, one replica after another."""
    left = iter(costs)
    return [add_up(list(itertools.islice(left, size))) for size in sizes]


def deal(costs, num_replicas, **keywords):
    """Deal to replicas that were cut by the first rule."""
    sizes = plain_sizes(len(costs), num_replicas)
    return deal_rows(np.array(costs, dtype=np.int64), sizes, **keywords)


def best_slowest(costs, num_replicas, add_up=sum):
    """The slowest replica of the best of all ways."""
    replicas = range(num_replicas)
    ways = itertools.product(replicas, repeat=len(costs))
    return min(
        max(add_up([c for c, o in zip(costs, way, strict=True) if o == r]) for r in replicas)
        for way in ways
    )


@given(cost_lists, st.integers(1, 9), rules, st.sampled_from([None, 0, 1, 5]), st.booleans())
def test_every_row_once_and_nobody_slower_than_the_plain_cut(
    costs, num_replicas, rule, slack, is_padded
):
    """In the order of the batch; bounded, if asked for; and what is told of it is so."""
    plain = plain_sizes(len(costs), num_replicas, rule)
    most_rows = None if slack is None else max(plain) + slack
    dealt = deal_rows(np.array(costs), plain, most_rows=most_rows, is_padded=is_padded)

    ends = np.cumsum(dealt.sizes)
    pieces = [piece.tolist() for piece in np.split(dealt.rows, ends)[:-1]]
    assert Counter(range(len(costs))) == Counter(itertools.chain(*pieces))
    assert all(piece == sorted(piece) for piece in pieces)
    add_up = pad_up if is_padded else sum
    own = [add_up([costs[row] for row in piece]) for piece in pieces]
    before = max(cut_costs(costs, plain, add_up))
    assert (before, max(own), sum(costs), num_replicas) == dealt.costs
    assert max(own) <= before
    assert dealt.sizes.count(0) == max(0, num_replicas - len(costs))
    assert most_rows is None or max(dealt.sizes) <= most_rows


@pytest.mark.parametrize(("num_replicas", "num_rows"), [(2, 6), (3, 5)])
def test_near_the_best_of_all_ways(num_replicas, num_rows):
    """A third above it at most."""
    for costs in itertools.combinations_with_replacement((1, 0, 3, 8), num_rows):
        found = deal(costs, num_replicas).costs.after
        assert 3 * found <= 4 * best_slowest(costs, num_replicas)


@pytest.mark.parametrize(("num_replicas", "num_rows"), [(2, 6), (3, 5)])
def test_padded_rows_are_dealt_in_the_best_of_all_ways(num_replicas, num_rows):
    """Rows of similar cost together, and fewer of the dear ones."""
    for costs in itertools.combinations_with_replacement((1, 0, 3, 8), num_rows):
        found = deal(costs, num_replicas, is_padded=True).costs.after
        assert found == best_slowest(costs, num_replicas, pad_up)


def test_the_drawn_example():
    """As the head of the module shows it."""
    dealt = deal([9, 1, 8, 2, 7, 3], 2)
    assert ([0, 1, 3, 5, 2, 4], (4, 2)) == (dealt.rows.tolist(), dealt.sizes)
    assert (18, 15, 30, 2) == dealt.costs
    padded = deal([9, 1, 8, 2, 7, 3], 2, is_padded=True)
    assert ([0, 2, 4, 1, 3, 5], (3, 3)) == (padded.rows.tolist(), padded.sizes)
    assert (27, 27, 30, 2) == padded.costs


def test_the_plain_cut_is_taken_where_it_is_better():
    """Largest first would part the two of 3, and have 7 to do."""
    dealt = deal([2, 2, 2, 3, 3], 2)
    assert ([0, 1, 2, 3, 4], (3, 2)) == (dealt.rows.tolist(), dealt.sizes)
    assert (6, 6, 12, 2) == dealt.costs


def test_nobody_idles_where_the_plain_cut_is_better():
    """Who has no rows in it gets one; largest first is at its worst here, and has 31 to do."""
    costs = [15, 12, 15, 12, 14, 13, 14, 13, 11, 10, 8, 11, 10, 8, 9, 9, 8]
    dealt = deal_rows(np.array(costs), (2, 2, 2, 2, 3, 3, 3, 0))
    assert (29, 29) == dealt.costs[:2]
    assert 0 not in dealt.sizes


def test_rows_that_cost_nothing_are_dealt_evenly():
    """A replica without anything to do would still be one without rows."""
    assert (3, 3, 2, 2) == deal([0] * 10, 4).sizes


def test_the_largest_costs_are_added_up_exactly():
    """Sums of these are no floats of the machine."""
    costs = [LARGEST_COST - (row % 3 == 0) for row in range(2048)]
    dealt = deal(costs, 2)
    assert sum(costs) == dealt.costs.total
    assert dealt.costs.after == -(-sum(costs) // 2)


@pytest.mark.parametrize("most_rows", [None, 16])
def test_many_uneven_rows_take_hardly_longer_than_the_mean(most_rows):
    """1,024 documents of a long-tailed length on 64 replicas, the attention's cost."""
    lengths = np.exp(np.random.default_rng(0).normal(6, 1, 1024)).astype(np.int64)
    costs = np.minimum(lengths, 2048) ** 2
    before, after, total, _ = deal(costs, 64, most_rows=most_rows).costs
    assert after < 1.02 * total / 64 < before
