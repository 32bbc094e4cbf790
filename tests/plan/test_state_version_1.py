"""States of version 1 become states of version 2; a reader takes their places apart."""

from __future__ import annotations

import pytest

from tests.plan.saved_states import saved_state
from torch_distinput.plan.progress.place import Place
from torch_distinput.plan.progress.state_version_1 import upgrade

OLD = saved_state(
    version=1,
    reaches=[1, 2147483648],
    streams=[[1, -2, [0, 0, 3, 2, 4, ["a", [5]]]], [0, 0, [1, 1, 2147483648, 0]]],
    deals=[[1, 2147483648, 0]],
)
PLACE = Place("partition", (("number", 4),))


def test_what_changes():
    """Who reads the data is given flat tuples; nothing stays nothing, and all files are null."""
    seen = []
    upgraded = upgrade(OLD, lambda flat: seen.append(flat) or PLACE)

    assert [(4, ("a", (5,)))] == seen
    assert upgraded == {
        **OLD,
        "version": 2,
        "reaches": [1, None],
        "streams": [
            [1, -2, [0, 0, 3, 2, ["partition", ["number", 4]]]],
            [0, 0, [1, 1, None, 0, None]],
        ],
        "deals": [[1, None, 0]],
    }


def test_the_keys_stay():
    """A checkpoint library looks in an older state for the keys of a fresh dataset."""
    assert list(OLD) == list(upgrade(OLD, lambda _: PLACE))


@pytest.mark.parametrize("key", ["reaches", "streams", "deals"])
def test_a_key_that_is_missing(key):
    state = {own: value for own, value in OLD.items() if own != key}

    with pytest.raises(KeyError, match=key):
        upgrade(state, lambda _: PLACE)
