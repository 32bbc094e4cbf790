"""Orders with buckets: each example once, any place by itself, less padding, and no trend."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_distinput.plan.assignment.bucketing import (
    Bucketing,
    find_buckets,
    make_window_key,
    round_window,
    sort_window,
)
from torch_distinput.plan.assignment.order import EpochOrder, UniformBatches

keys = st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9))


def make_order(lengths, size, *, batches=3, shuffle=True, epoch=0, boundaries=(3, 6)):
    """An order with buckets, of windows of some batches."""
    order = EpochOrder(num_examples=len(lengths), shuffle=shuffle, seed=1, epoch=epoch)
    bucketing = Bucketing(
        buckets=find_buckets(np.array(lengths, dtype=np.int64), boundaries),
        window=batches * size,
        size=size,
        shuffle=shuffle,
    )
    return order, bucketing.apply(order, seed=1, epoch=epoch)


def take_all(order):
    """All indices of an order."""
    return order.take_range(0, order.num_examples)


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 7), keys)
def test_a_window_is_sorted_by_bucket_and_cut_into_batches(buckets, size, key):
    """Each place once; what fills no batch stays last; batches share one bucket at most."""
    buckets = np.array(buckets, dtype=np.int64)
    order = sort_window(buckets, size, key=key)
    count, full = len(buckets), len(buckets) - len(buckets) % size
    assert list(range(count)) == sorted(order.tolist())
    assert list(range(full, count)) == order[full:].tolist()
    batches = [batch.tolist() for batch in order[:full].reshape(-1, size)]
    assert [sorted(batch) for batch in batches] == batches
    found = sorted((buckets[batch].min(), buckets[batch].max()) for batch in batches)
    assert all(high <= low for (_, high), (low, _) in pairwise(found))
    if key is None:
        assert sorted(batch[0] for batch in batches) == [batch[0] for batch in batches]


def test_golden_order():
    """Frozen: states of earlier runs go on in it."""
    buckets = find_buckets(np.arange(13) * 5 % 7, (2, 4))
    order = sort_window(buckets, 2, key=make_window_key(3, 1, 2))
    assert [6, 7, 5, 9, 0, 3, 2, 10, 1, 4, 8, 11, 12] == order.tolist()


def test_a_bucket_keeps_the_order_of_its_examples():
    """On all machines, however they sort."""
    buckets = np.arange(1000, dtype=np.uint16) % 2
    for own in sort_window(buckets, 500, key=None).reshape(2, 500):
        assert list(range(own[0], 1000, 2)) == own.tolist()


def test_the_drawn_example():
    """As in the module's docstring."""
    buckets = find_buckets(np.array([9, 2, 3, 8, 1, 7, 2, 9]), (4,))
    assert [1, 0, 0, 1, 0, 1, 0, 1] == buckets.tolist()
    assert [0, 3, 1, 2, 4, 6, 5, 7] == sort_window(buckets, 2, key=None).tolist()


@pytest.mark.parametrize(("length", "bucket"), [(0, 0), (128, 0), (129, 1), (512, 1), (513, 2)])
def test_a_boundary_is_the_longest_of_its_bucket(length, bucket):
    assert bucket == find_buckets(np.array([length]), (128, 512))[0]


@pytest.mark.parametrize(("window", "size", "expected"), [(1, 8, 8), (8, 8, 8), (9, 8, 16)])
def test_windows_are_whole_global_batches(window, size, expected):
    assert expected == round_window(window, size)


lengths_of = st.lists(st.integers(1, 9), min_size=1, max_size=60)


@given(lengths_of, st.integers(1, 5), st.integers(1, 4), st.booleans(), st.data())
def test_any_place_can_be_asked_for(lengths, size, batches, shuffle, data):
    """By ranges and by positions in any order; and each window holds what it held without."""
    plain, order = make_order(lengths, size, batches=batches, shuffle=shuffle)
    whole, before = take_all(order), take_all(plain)
    start = data.draw(st.integers(0, len(lengths)))
    stop = data.draw(st.integers(start, len(lengths) + 3))
    fresh = make_order(lengths, size, batches=batches, shuffle=shuffle)[1]
    assert whole[start:stop].tolist() == fresh.take_range(start, stop).tolist()
    places = np.array(data.draw(st.permutations(range(len(lengths)))), dtype=np.int64)
    assert whole[places].tolist() == fresh.take(places.reshape(1, -1))[0].tolist()
    window = batches * size
    for first in range(0, len(lengths), window):
        own, other = whole[first : first + window], before[first : first + window]
        assert sorted(other.tolist()) == sorted(own.tolist())


def test_drop_last_leaves_out_what_it_would_without():
    """The end of the order, and not always the longest examples."""
    lengths = list(range(1, 24))
    plain, order = make_order(lengths, 5, shuffle=True)
    assert take_all(plain)[20:].tolist() == take_all(order)[20:].tolist()


def test_no_epoch_runs_from_short_to_long():
    """Each window has its batches in an order of its own, and so has each epoch."""
    lengths = np.tile(np.random.default_rng(0).integers(1, 10, 500), 2)
    bucketing = Bucketing(
        buckets=find_buckets(lengths, tuple(range(1, 9))),
        window=500,
        size=10,
        shuffle=True,
    )
    turns = []
    for epoch in range(2):
        order = bucketing.apply(EpochOrder(num_examples=1000), seed=0, epoch=epoch)
        means = lengths[take_all(order)].reshape(2, 50, 10).mean(axis=2)
        for window in means:
            turns.append(np.argsort(window, kind="stable").tolist())
            assert abs(np.corrcoef(np.arange(50), window)[0, 1]) < 0.5
    assert 4 == len(set(map(tuple, turns)))


def measure_waste(order, lengths, size):
    """Which part of padded batches is padding."""
    batches = UniformBatches(order=order, global_batch_size=size)
    own = [lengths[batches.take(number)] for number in range(batches.num_batches)]
    return 1 - sum(map(np.sum, own)) / sum(len(each) * each.max() for each in own)


@pytest.mark.parametrize("shuffle", [True, False])
def test_less_is_padding_than_in_a_plain_order(shuffle):
    """Of lengths as documents have them; and less in larger windows."""
    lengths = np.random.default_rng(0).lognormal(5, 1, 20_000).astype(np.int64) + 1
    boundaries = tuple(np.geomspace(16, 4096, 50).astype(int).tolist())
    plain, order = make_order(lengths, 32, batches=100, shuffle=shuffle, boundaries=boundaries)
    assert measure_waste(plain, lengths, 32) > 0.6
    assert measure_waste(order, lengths, 32) < 0.2
    _, order = make_order(lengths, 32, batches=1000, shuffle=shuffle, boundaries=boundaries)
    assert measure_waste(order, lengths, 32) < 0.1
