"""Whose turn it is by tokens: near its share in any beginning, and found from any turn on."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_distinput.plan.assignment.mixing import SourceOrder, TokenTurns, make_order
from torch_distinput.plan.assignment.shares import Shares, Stretch, make_shares

weights = st.lists(st.integers(1, 9), min_size=1, max_size=4)
lengths = st.lists(st.integers(0, 30), min_size=1, max_size=60)


def order_of(*points) -> SourceOrder:
    """The order of weights by place."""
    return make_order(
        Shares(tuple((at, make_shares(list(map(Fraction, own)))) for at, own in points))
    )


def play(turns, given_lengths):
    """The source of each turn."""
    sources = []
    for length in given_lengths:
        sources.append(turns.source)
        turns.take(length)
    return sources


@given(weights, lengths)
def test_each_source_is_within_an_example_of_its_share(own, given_lengths):
    """Ahead by one of its own at most; behind by its share of one of each other."""
    sources = play(TokenTurns(order_of((0, own)), 0, (0,) * len(own)), given_lengths)
    longest = [
        max([n for s, n in zip(sources, given_lengths, strict=True) if s == source], default=0)
        for source in range(len(own))
    ]
    had = [0] * len(own)
    for source, length in zip(sources, given_lengths, strict=True):
        had[source] += length
        for number, weight in enumerate(own):
            share = Fraction(weight, sum(own))
            ahead = had[number] - share * sum(had)
            others = sum(longest) - longest[number]
            assert -share * others - Fraction(1, 1000) <= ahead
            assert ahead <= (1 - share) * longest[number] + Fraction(1, 1000)


@given(st.lists(st.tuples(st.integers(1, 20), weights), max_size=3), weights, lengths, st.data())
def test_dues_are_enough_to_go_on_from_any_turn(more, own, given_lengths, data):
    """Also in the middle of a schedule."""
    points, at = [(0, own)], 0
    for after, other in more:
        at += after
        points.append((at, (other * len(own))[: len(own)]))
    order = order_of(*points)
    whole = play(TokenTurns(order, 0, (0,) * len(own)), given_lengths)
    place = data.draw(st.integers(0, len(whole)))
    first = TokenTurns(order, 0, (0,) * len(own))
    head = play(first, given_lengths[:place])
    rest = play(TokenTurns(order, place, first.dues), given_lengths[place:])
    assert whole == head + rest


uneven_weights = st.lists(st.integers(1, 1000), min_size=2, max_size=4)


@given(st.data(), uneven_weights, st.integers(1, 60), lengths)
def test_soon_after_a_change_of_weights_each_has_its_share(data, own, at, given_lengths):
    """Whatever the shares were before: none is more than its lead, and an example, from it."""
    count = len(own)
    other = data.draw(st.lists(st.integers(0, 1000), min_size=count, max_size=count).filter(any))
    turns = TokenTurns(order_of((0, own), (at, other)), 0, (0,) * count)
    play(turns, (given_lengths * at)[:at])
    longest = max(given_lengths)
    sources = play(turns, given_lengths)
    had = [0] * count
    for source, length in zip(sources, given_lengths, strict=True):
        had[source] += length
    for one in range(count):
        for another in range(count):
            if other[one] and other[another]:
                # Tokens of `one` beyond its share beside those of the other.
                beyond = had[one] * other[another] - had[another] * other[one]
                bound = longest * other[another] + 3 * longest * other[one]
                assert beyond <= bound + other[one] + other[another]


def test_a_rare_source_stays_ahead_while_it_has_no_share():
    """The stairs of a schedule leave it out now and then."""
    order = SourceOrder(
        (
            Stretch(first=0, before=(0, 0), counts=(1, 1), length=1),
            Stretch(first=1, before=(1, 0), counts=(0, 1), length=1),
            Stretch(first=2, before=(1, 1), counts=(1, 1), length=None),
        )
    )
    assert [0, 1, *[1] * 20, 0] == play(TokenTurns(order, 0, (0, 0)), [200, *[10] * 22])


def test_dues_do_not_grow_with_what_was_read():
    turns = TokenTurns(order_of((0, (3, 1, 2))), 0, (0, 0, 0))
    sizes = set()
    for _ in range(50):
        play(turns, [1000] * 100)
        sizes.add(max(turns.dues) <= 1000 * 6 << 32)
    assert {True} == sizes


@pytest.mark.parametrize("missing", [0, 1])
def test_a_source_without_a_share_has_no_claim_to_it_later(missing):
    """Else it would come alone for as long as it was missing."""
    alone = [1, 1]
    alone[missing] = 0
    order = order_of((0, alone), (100, alone), (101, (1, 1)))
    sources = play(TokenTurns(order, 0, (0, 0)), [5] * 121)
    assert {1 - missing} == set(sources[:100])
    assert 10 == sources[101:].count(missing)


def test_tokens_are_what_is_shared_not_examples():
    turns = TokenTurns(order_of((0, (1, 1))), 0, (0, 0))
    had = [0, 0]
    for _ in range(1000):
        source = turns.source
        had[source] += 1
        turns.take((3, 30)[source])
    assert [910, 90] == [10 * round(count / 10) for count in had]
