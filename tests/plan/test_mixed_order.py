"""The examples of a mixture of sources with an index, by place."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_distinput.plan.assignment.mixed_order import Member, MixedIndices
from torch_distinput.plan.assignment.mixing import STOPS
from torch_distinput.plan.assignment.order import EpochOrder
from torch_distinput.plan.assignment.shares import Shares, make_shares


def shuffled(length, seed, epoch):
    """An order of a source."""
    return EpochOrder(num_examples=length, shuffle=True, seed=seed, epoch=epoch)


def mixed(lengths, weights, stop, names="abcd"):
    """A mixture of shuffled sources."""
    members = tuple(
        Member(
            name=name, num_examples=length, num_indices=length, make_order=partial(shuffled, length)
        )
        for name, length in zip(names, lengths, strict=False)
    )
    shares = Shares(((0, make_shares([Fraction(weight) for weight in weights])),))
    return MixedIndices.of(members, shares, stop)


sources = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 9)), min_size=1, max_size=4)


@given(sources, st.sampled_from(STOPS), st.integers(0, 2), st.data())
def test_windows_agree_with_the_whole(sources, stop, epoch, data):
    """Any window can be asked for by itself, and any places."""
    order = mixed(*zip(*sources, strict=True), stop).make_order(7, epoch)
    whole = order.take_range(0, order.num_examples)
    start = data.draw(st.integers(0, order.num_examples))
    assert whole[start:].tolist() == order.take_range(start, order.num_examples).tolist()
    places = np.arange(order.num_examples)[::-1].reshape(1, -1)
    assert whole[::-1].tolist() == order.take(places)[0].tolist()


@given(sources)
def test_repeat_plays_each_pass_whole(sources):
    """Every example of a source once before any comes again."""
    lengths, weights = zip(*sources, strict=True)
    mixture = mixed(lengths, weights, "repeat")
    indices = mixture.make_order(0, 0).take_range(0, mixture.num_examples)
    passes = mixture.count_passes(mixture.count(mixture.num_examples))
    firsts = mixture.first_indices
    for length, first, times in zip(lengths, firsts, passes, strict=True):
        own = indices[(indices >= first) & (indices < first + length)].tolist()
        counts = Counter(own[: times * length])
        assert all(counts[index] == times for index in range(first, first + length) if times)
        assert len(set(own[times * length :])) == len(own) - times * length > 0


def test_each_pass_has_an_order_of_its_own():
    """A new shuffle, and another than that of the next epoch."""
    mixture = mixed((50, 500), (1, 1), "repeat")
    indices = mixture.make_order(0, 0).take_range(0, mixture.num_examples)
    own = indices[indices < 50]
    later = mixture.make_order(0, 1).take_range(0, 100)
    orders = [own[:50].tolist(), own[50:100].tolist(), later[later < 50].tolist()]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len(set(map(tuple, orders))) == 3


def test_another_source_changes_nothing_of_the_order_of_one():
    """It is shuffled by seed, epoch and name."""
    two = mixed((9, 9), (1, 1), "all").make_order(3, 0).take_range(0, 18)
    three = mixed((9, 9, 9), (1, 1, 1), "all", "zab").make_order(3, 0).take_range(0, 27)
    assert two[two < 9].tolist() == (three[(three >= 9) & (three < 18)] - 9).tolist()


def test_samples_are_of_every_source():
    """Of one example there is one."""
    assert (0, 3, 7, 8, 13) == mixed((7, 1, 10), (1, 1, 1), "all").choose_samples()


@pytest.mark.parametrize(("place", "expected"), [(0, (0, 0)), (4, (0, 0)), (6, (1, 0))])
def test_passes_are_counted_when_they_begin(place, expected):
    """A source that has ended has not begun again."""
    mixture = mixed((2, 9), (1, 1), "repeat")
    assert expected == mixture.count_passes(mixture.count(place))
