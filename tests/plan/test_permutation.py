"""Keyed permutations: exact ones, and networks of which any part can be asked for."""

from __future__ import annotations

import numpy as np
import pytest

from torch_distinput.plan.assignment import permutation
from torch_distinput.plan.assignment.permutation import (
    FeistelNetwork,
    make_network,
    permute,
    permute_exactly,
)

FROZEN = [
    [1, 8, 2, 4, 6, 5, 0, 9, 7, 3],
    [4, 2, 0, 6, 1, 5, 9, 8, 7, 3],
    [6, 9, 4, 3, 8, 2, 0, 5, 1, 7],
]


def test_tables_change_nothing(monkeypatch):
    """They hold what is worked out for each item where a table would be too long."""
    positions = np.arange(0, 10**9, 9_999_999)
    expected = FeistelNetwork(10**9, (1, 2))(positions)
    monkeypatch.setattr(permutation, "_LARGEST_TABLE", 0)
    assert np.array_equal(expected, FeistelNetwork(10**9, (1, 2))(positions))


def test_permutation_is_keyed():
    """A few items, by any key."""
    assert sorted(permute(9, key=(1, 2, 3)).tolist()) == list(range(9))
    assert permute(9, key=(1, 2, 3)).tolist() == permute(9, key=(1, 2, 3)).tolist()
    assert permute(9, key=(1, 2, 3)).tolist() != permute(9, key=(1, 2, 4)).tolist()


@pytest.mark.parametrize("num_items", [1, 2, 3, 4, 5, 16, 17, 1000])
def test_a_network_is_a_bijection(num_items):
    """Also of few items, and where many cells lie outside."""
    for key in range(5):
        found = FeistelNetwork(num_items, (key, 0))(np.arange(num_items))
        assert list(range(num_items)) == sorted(found.tolist())


def test_an_order_that_is_kept_is_not_written_to():
    with pytest.raises(ValueError, match="read-only"):
        permute_exactly(10, (0, 0))[0] = 1


def test_frozen_vectors():
    """They must not change between releases, nor between machines."""
    assert FROZEN[0] == permute(10, key=(1, 2, 3)).tolist()
    assert FROZEN[1] == permute_exactly(10, (1, 2)).tolist()
    assert FROZEN[2] == make_network(10, (1, 2))(np.arange(10)).tolist()


@pytest.mark.parametrize("largest", [0, 3, 1000, (1 << 64) - 1])
def test_equal_words_keep_their_order(largest):
    """The order is the stable one, however many words are equal."""
    words = np.random.default_rng(0).integers(0, largest, 5000, np.uint64, endpoint=True)
    assert np.array_equal(np.argsort(words, kind="stable"), permutation._argsort(words))
