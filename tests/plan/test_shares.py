"""Weights as whole numbers."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_distinput.plan.assignment.shares import (
    LARGEST_PERIOD,
    Shares,
    apportion,
    make_shares,
    to_whole_numbers,
)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (("0.7", "0.2", "0.1"), (7, 2, 1)),
        (("1/3", "2/3"), (1, 2)),
        (("2", "0", "2"), (1, 0, 1)),
        (("5",), (1,)),
        (("1", "65535"), (1, 65535)),
        (("1", "99999999"), (1, LARGEST_PERIOD - 1)),
    ],
)
def test_whole_numbers(weights, expected):
    """As small as they can be; a source that would come almost never still comes."""
    assert expected == to_whole_numbers(make_shares([Fraction(weight) for weight in weights]))


@given(st.lists(st.fractions(0, 1000, max_denominator=10**6), min_size=1, max_size=6).filter(any))
def test_whole_numbers_are_the_shares_or_near_them(weights):
    """To within the parts of a period, of which each source loses or gains less than the others."""
    shares = make_shares(weights)
    counts = to_whole_numbers(shares)
    assert sum(counts) <= LARGEST_PERIOD
    for share, count in zip(shares, counts, strict=True):
        assert abs(share - Fraction(count, sum(counts))) <= Fraction(len(shares), LARGEST_PERIOD)
        assert (count > 0) == (share > 0)


@given(st.integers(0, 500), st.lists(st.integers(0, 50), min_size=1, max_size=6).filter(any))
def test_what_is_apportioned_adds_up(total, wanted):
    """Each gets what it wants, rounded down or up."""
    counts = apportion(total, wanted)
    assert total == sum(counts)
    for count, part in zip(counts, wanted, strict=True):
        assert abs(count - Fraction(total * part, sum(wanted))) < 1


def test_a_long_schedule_has_few_stairs():
    """However long it takes, the order is known at once; and it ends where it should."""
    half, other = make_shares([Fraction(1), Fraction(1)]), make_shares([Fraction(1), Fraction(3)])
    stretches = Shares(((0, half), (10**12, other))).list_stretches(0, (0, 0), [True, True])
    assert len(stretches) <= 1024 + 2
    assert (10**12, None, (1, 3)) == (
        stretches[-1].first,
        stretches[-1].length,
        stretches[-1].counts,
    )
    first, second = stretches[-1].before
    assert 10**12 == first + second
    assert abs(first - 0.375 * 10**12) < 10**12 / 1024 / 1024


@pytest.mark.parametrize("more", [{}, {100_000: (1, 9)}, {100_000: (2, 8)}])
def test_a_short_climb_follows_its_line(more):
    """Whatever the schedule does after it."""
    points = {0: (9, 1), 1000: (1, 9), **more}
    shares = tuple((at, make_shares(list(map(Fraction, both)))) for at, both in points.items())
    found = Shares(shares).list_stretches(0, (0, 0), [True, True])
    for stretch in found:
        if (at := stretch.first) <= 1000:
            line = at * (9 + (9 - 8 * Fraction(at, 1000))) / 20
            assert abs(stretch.before[0] - line) < 1.1
    assert any(stretch.first == 1000 for stretch in found)


def test_a_schedule_of_many_points_has_few_stairs():
    points = [(10_000 * n, make_shares([Fraction(1), Fraction(1 + n % 2)])) for n in range(401)]
    found = Shares(tuple(points)).list_stretches(0, (0, 0), [True, True])
    assert len(found) <= 400 * 10 + 1  # of a thousand examples each, as STAIR says


def test_only_weights_that_need_a_longer_period_are_rounded():
    """Which is said, so that nobody has to guess."""
    exact, rounded = (make_shares([Fraction(1), Fraction(rest)]) for rest in (65535, 65536))
    assert not Shares(((0, exact),)).is_rounded
    assert Shares(((0, rounded),)).is_rounded


def points_of(*points):
    return Shares(tuple((at, make_shares([Fraction(a), Fraction(b)])) for at, a, b in points))


def test_parts_that_are_flat_take_no_stairs_from_a_climb():
    flat = [(100 * n, 9, 1) for n in range(600)]
    found = points_of(*flat, (60_540, 1, 9)).list_stretches(0, (0, 0), [True, True])
    assert 64 <= sum(59_900 <= stretch.first < 60_540 for stretch in found)


def test_more_climbs_than_stairs_are_a_stair_each():
    points = [(10 * n, 1 + n % 2, 1) for n in range(1500)]
    found = points_of(*points).list_stretches(0, (0, 0), [True, True])
    assert {10 * n for n in range(1500)} <= {stretch.first for stretch in found}
    assert len(found) <= 3 * 1500


def test_a_climb_that_goes_on_has_the_stairs_it_had():
    """As where a source runs out in the middle of it."""
    climb = points_of((0, 9, 1), (6400, 1, 9))
    whole = climb.list_stretches(0, (0, 0), [True, True])
    middle = next(stretch for stretch in whole if stretch.first >= 3200)
    rest = climb.list_stretches(middle.first, middle.before, [True, True])
    assert [stretch.first for stretch in whole if stretch.first >= 3200] == [
        stretch.first for stretch in rest
    ]
