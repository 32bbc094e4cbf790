"""Places in streams: values that travel, and are refused where they do not fit."""

from __future__ import annotations

import json
import pickle

import pytest

from torch_distinput.errors import ConfigurationError
from torch_distinput.plan.progress.place import Place, list_place, read_place

TURN = Place("turn", (("next", 4), ("visited", ((2, 5), None))))
SHUFFLED = Place("shuffle", (("window", 3),), 1, (Place("filter", (), 0, (TURN,)),))
OF_A_SOURCE = Place("source", (("example", 7), ("state", "words"), ("beginning", None)))
OF_STREAMS = Place("streams", inner=(OF_A_SOURCE, None))
PLACES = [None, TURN, SHUFFLED, OF_A_SOURCE, OF_STREAMS, Place("decode", inner=(None,))]


def test_listed():
    """As the module draws it."""
    expected = [
        "shuffle", ["window", 3], ["skip", 1], ["from",
            ["filter", ["skip", 0], ["from",
                ["turn", ["next", 4], ["visited", [[2, 5], None]]]]]],
    ]  # fmt: skip

    assert expected == list_place(SHUFFLED)


@pytest.mark.parametrize("place", PLACES)
def test_through_json_and_back(place):
    assert place == read_place(json.loads(json.dumps(list_place(place))))


@pytest.mark.parametrize("place", PLACES)
def test_a_value_for_sets_and_for_votes(place):
    assert {place} == {pickle.loads(pickle.dumps(place))}


@pytest.mark.parametrize(
    "listed",
    [
        3,
        [],
        "shuffle",
        {"kind": "shuffle"},
        ["shuffle", 3],
        ["shuffle", ["window"]],
        ["shuffle", ["window", -1]],
        ["shuffle", ["window", 1.5]],
        ["shuffle", ["window", True]],
        ["shuffle", ["window", {"number": 3}]],
        ["shuffle", ["window", 3], ["skip", 0], ["from"]],
        ["shuffle", ["window", 3], ["from", ["partition", ["number", 0]]]],
        ["shuffle", ["window", 3], ["skip", -1], ["from", ["partition", ["number", 0]]]],
        ["shuffle", ["window", 3], ["skip", "1"], ["from", ["partition", ["number", 0]]]],
        ["shuffle", ["window", 3], ["skip", 0], ["from", 3]],
    ],
)
def test_what_is_no_place(listed):
    with pytest.raises(ValueError, match="no place|no value|how many rows to skip"):
        read_place(listed)


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        (lambda: SHUFFLED.check("take", 1), "a place of 'take' with 1 inside, .* got .'shuffle'"),
        (lambda: TURN.check("turn", 1), "a place of 'turn' with 1 inside"),
        (lambda: SHUFFLED.number("taken"), "a value of 'shuffle' named 'taken'"),
        (lambda: TURN.several("visited", 3), "3 values of 'turn' named 'visited'"),
        (lambda: TURN.several("next", 1), "1 values of 'turn' named 'next'"),
        (lambda: OF_A_SOURCE.number("state"), "a number of 'source' named 'state'"),
    ],
)
def test_what_does_not_fit(ask, expected):
    with pytest.raises(ConfigurationError, match=f"Expected {expected}"):
        ask()
