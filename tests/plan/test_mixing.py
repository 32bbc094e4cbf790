"""Which source gives each example: shares within one example, ends, and any place by itself."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_distinput.plan.assignment.mixed_order import derive_seed
from torch_distinput.plan.assignment.mixing import (
    ALL,
    FIRST,
    REPEAT,
    STOPS,
    SourceOrder,
    make_order,
    make_period,
    mix_known,
)
from torch_distinput.plan.assignment.shares import Shares, make_shares

counts_of_sources = st.lists(st.integers(0, 40), min_size=1, max_size=7).filter(any)
weights = st.lists(st.integers(1, 9), min_size=1, max_size=4)


def constant(*weights):
    """Shares that do not change."""
    return Shares(((0, make_shares([Fraction(weight) for weight in weights])),))


def changing(points):
    """Shares of weights by place."""
    return Shares(
        tuple((at, make_shares([Fraction(weight) for weight in own])) for at, own in points)
    )


def sources_of(order, stop):
    """The sources of the first places."""
    return order.take_range(0, stop)[0].tolist()


def find_largest_lag(sources, counts):
    """By how much any source is ahead or behind, at most, over all beginnings; in examples."""
    size = sum(counts)
    had = np.stack([np.cumsum(sources == source) for source in range(len(counts))], axis=1)
    places = np.arange(1, len(sources) + 1)[:, None]
    return Fraction(int(np.abs(had * size - places * np.array(counts)).max()), size)


@pytest.mark.parametrize("num_sources", [1, 2, 3, 4, 5])
def test_every_beginning_is_within_one_example_of_all_small_counts(num_sources):
    """Three and more sources are what plain rounding fails at."""
    for counts in itertools.product(range(6), repeat=num_sources):
        if any(counts):
            assert find_largest_lag(make_period(counts).sources, counts) < 1, counts


@given(counts_of_sources)
def test_every_beginning_is_within_one_example(counts):
    """Also over the end of a period, which begins anew."""
    order = make_order(constant(*counts))
    sources = order.take_range(0, 2 * sum(counts) + 3)[0]
    assert find_largest_lag(sources, counts) < 1


def test_a_golden_period():
    """An order that changes between releases would break every resume."""
    assert [0, 1, 0, 1, 0, 2] == make_period((3, 2, 1)).sources.tolist()
    expected = [0, 0, 1, 0, 1, 0, 0, 1, 0, 2]
    assert sources_of(make_order(constant("0.6", "0.3", "0.1")), 10) == expected


def test_a_seed_of_a_source_is_golden():
    """So is the order of a source that is shuffled."""
    assert 17477709524010551876 == derive_seed(0, "web", 1)


schedules = st.lists(
    st.tuples(st.integers(1, 3000), st.tuples(*[st.integers(0, 9)] * 3).filter(any)),
    min_size=1,
    max_size=4,
)


def make_points(steps):
    """Points from 0 on."""
    at = [0, *itertools.accumulate(step for step, _ in steps)]
    return list(zip(at, [own for _, own in steps], strict=False))


@given(schedules, st.data())
def test_any_place_can_be_asked_for_by_itself(steps, data):
    """Counts, sources and places of a schedule agree with each other."""
    order = make_order(changing(make_points(steps)))
    start = data.draw(st.integers(0, 9000))
    sources, numbers = order.take_range(start, start + 20)
    counts = list(order.count(start))
    for place, (source, number) in enumerate(zip(sources, numbers, strict=True), start):
        assert (place, number) == (order.find(int(source), int(number)), counts[source])
        assert tuple(counts) == order.count(place)
        counts[source] += 1
    some = np.array([[start + 7, start], [start + 19, start + 7]])
    again = order.take(some.ravel())
    assert [sources[[7, 0, 19, 7]].tolist(), numbers[[7, 0, 19, 7]].tolist()] == [
        part.tolist() for part in again
    ]


def find_targets(points, stop):
    """The exact shares of each place, summed up: linear between the points."""
    shares = [(at, make_shares([Fraction(weight) for weight in own])) for at, own in points]
    total, sums = [Fraction()] * len(points[0][1]), []
    for place in range(stop):
        at, own = next(point for point in reversed(shares) if point[0] <= place)
        later = next((point for point in shares if point[0] > place), None)
        if later is not None:
            way = Fraction(2 * (place - at) + 1, 2 * (later[0] - at))
            own = [one + (two - one) * way for one, two in zip(own, later[1], strict=True)]
        total = [one + two for one, two in zip(total, own, strict=True)]
        sums.append([float(part) for part in total])
    return np.array(sums)


@pytest.mark.parametrize(
    "points",
    [
        [(0, (8, 2, 0)), (500, (5, 3, 2))],
        [(0, (1, 1, 1)), (100, (1, 1, 1)), (101, (5, 1, 0)), (1500, (0, 3, 9))],
        [(0, (1, 0, 0)), (6000, (0, 1, 1))],
    ],
)
def test_a_schedule_is_followed(points):
    """Stairs of at most 1,024 examples; what a stair rounds off does not add up."""
    order = make_order(changing(points))
    stop = points[-1][0] + 500
    sources = order.take_range(0, stop)[0]
    had = np.stack([np.cumsum(sources == source) for source in range(3)], axis=1)
    change = max(
        (later - at) and 1024 / 8 * min(1024, later - at) / (later - at)
        for (at, _), (later, _) in itertools.pairwise(points)
    )
    assert np.abs(had - find_targets(points, stop)).max() < len(points) + change


def play(lengths, shares, stop):
    """The rules one by one: the sources of a whole epoch."""
    left, ended, played = [True] * len(lengths), set(), []
    had, first = [0] * len(lengths), 0
    order = make_order(shares)
    while any(left):
        (source,) = order.take_range(len(played), len(played) + 1)[0].tolist()
        if had[source] and had[source] % lengths[source] == 0 and stop == REPEAT:
            ended.add(source)
        if had[source] == lengths[source] and stop == FIRST:
            break
        if had[source] == lengths[source] and stop == ALL:
            left[source], first = False, len(played)
            if any(left):
                order = make_order(shares, first, left)
            continue
        had[source] += 1
        played.append(source)
        if stop == REPEAT and all(map(lambda n, length: n >= length, had, lengths)):
            break
    return played


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 9)), min_size=1, max_size=4))
@pytest.mark.parametrize("stop", STOPS)
def test_ends_follow_the_rules(stop, sources):
    """By arithmetic as one by one."""
    lengths, own_weights = zip(*sources, strict=True)
    order, length = mix_known(constant(*own_weights), lengths, stop)
    expected = play(lengths, constant(*own_weights), stop)
    assert (expected, len(expected)) == (sources_of(order, length), length)


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 9)), min_size=2, max_size=4))
def test_all_plays_each_example_once(sources):
    """Who ends before falls out, and the others go on."""
    lengths, own_weights = zip(*sources, strict=True)
    order, length = mix_known(constant(*own_weights), lengths, ALL)
    assert (sum(lengths), tuple(lengths)) == (length, order.count(length))


def test_all_with_a_schedule_plays_each_example_once():
    """A source whose weight has not begun when the others end is played all the same."""
    shares = changing([(0, (1, 0, 0)), (2000, (1, 1, 0)), (4000, (1, 1, 1))])
    order, length = mix_known(shares, (3, 700, 1900), ALL)
    assert (2603, (3, 700, 1900)) == (length, order.count(length))


@pytest.mark.parametrize(
    ("stop", "lengths", "expected"),
    [
        (FIRST, (3, 3), [0, 1, 0, 1, 0, 1]),
        (FIRST, (2, 5), [0, 1, 0, 1]),
        (FIRST, (5, 2), [0, 1, 0, 1, 0]),
        (ALL, (2, 4), [0, 1, 0, 1, 1, 1]),
        (REPEAT, (3, 3), [0, 1, 0, 1, 0, 1]),
        (REPEAT, (1, 3), [0, 1, 0, 1, 0, 1]),
        (REPEAT, (3, 1), [0, 1, 0, 1, 0]),
    ],
)
def test_ends_of_equal_weights(stop, lengths, expected):
    """As the page on sequences draws them."""
    order, length = mix_known(constant(1, 1), lengths, stop)
    assert expected == sources_of(order, length)


def test_a_place_far_away_is_found_at_once():
    """A thousand billion examples need no table."""
    order = make_order(constant(7, 2, 1))
    place = order.find(2, 10**11)
    assert place is not None
    assert 10**11 == order.count(place)[2]
    assert 2 == order.take_range(place, place + 1)[0][0]


def test_a_source_of_weight_zero_never_comes():
    """Nor does it end."""
    order = make_order(constant(1, 0))
    assert order.find(1, 0) is None
    assert (8, 0) == SourceOrder(order.cut(8)).count(8)
