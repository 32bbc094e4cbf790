"""Lists of entries for each worker come back from what is written of them, which is short."""

from __future__ import annotations

import json
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_distinput.plan.progress.packing import pack_items, unpack_items

VALUES = st.none() | st.integers(-3, 3) | st.integers() | st.sampled_from(["", "a", "rows"])
LISTS = st.recursive(VALUES, lambda inner: st.lists(inner, max_size=6), max_leaves=40)


def there_and_back(items):
    return unpack_items(json.loads(json.dumps(pack_items(items))))


@pytest.mark.parametrize("length", range(6))
def test_all_short_lists_come_back(length):
    for items in product([0, 1, 2, None, "a"], repeat=length):
        assert list(items) == there_and_back(list(items))


@pytest.mark.parametrize("length", range(5))
def test_all_short_lists_of_lists_come_back(length):
    for items in product([[], [0], [1], [[0], 1], [None, [0, 1]], 0, None], repeat=length):
        assert list(items) == there_and_back(list(items))


@given(st.lists(LISTS, max_size=12))
def test_nested_lists_come_back(items):
    assert items == there_and_back(items)


@given(st.integers(0, 3), st.lists(st.integers(-1, 1), max_size=30))
def test_runs_come_back(first, steps):
    items = [first]
    for step in steps:
        items.append(items[-1] + step)
    assert items == there_and_back(items)


def test_true_is_no_number():
    assert [True, 1, 1, 1, 1] == there_and_back([True, 1, 1, 1, 1])
    assert [int] * 4 == [type(x) for x in there_and_back([True, 1, 1, 1, 1])[1:]]


def test_the_examples_at_the_top():
    assert ["values", [4, 7, 0], 9] == pack_items([7, 7, 7, 7, 9])
    assert ["values", [6, 0, 1]] == pack_items([0, 1, 2, 3, 4, 5])
    rows = [[0, "a"], [5, "a"], [3, "a"], [8, "a"]]
    assert ["rows", 4, ["values", 0, 5, 3, 8], ["values", [4, "a", 0]]] == pack_items(rows)
    expected = [
        "kinds", ["values", 0, 1, 0], ["values", None, None],
        ["lists", ["values", 0, 3]],
    ]  # fmt: skip
    assert expected == pack_items([None, [0, 3], None])
    assert ["lists", ["values", [5, 1, 0]]] == pack_items([[1, 1, 1, 1, 1]])


def test_what_is_alike_takes_room_once():
    streams = [[0, 0, [0, worker, None, 0, None]] for worker in range(16_384)]
    assert len(json.dumps(pack_items(streams))) < 250


def test_a_difference_takes_the_room_of_a_number():
    numbers = [(worker * 7919) % 1000 for worker in range(10_000)]
    streams = [
        [3, 100, [0, worker, None, 0, ["partition", ["number", number]]]]
        for worker, number in enumerate(numbers)
    ]
    assert len(json.dumps(pack_items(streams))) < len(json.dumps(numbers)) + 400


@pytest.mark.parametrize(
    "packed",
    [
        [], 3, ["values", []], ["values", [4, 0]], ["values", [-1, 0, 0]],
        ["values", [1 << 40, 0, 0]],
        ["values", [2.5, 0, 0]], ["values", [3, "a", 1]], ["names"], ["rows"], ["rows", -1],
        ["rows", 2, ["values", 0]], ["kinds", ["values", 0]], ["kinds", ["values", 0], ["values"]],
        ["kinds", ["values", 0], ["values", 1, 2]], ["kinds", ["values", "a"], ["values", 1]],
    ],
)  # fmt: skip
def test_what_is_damaged_is_refused(packed):
    with pytest.raises((ValueError, TypeError, IndexError)):
        unpack_items(packed)
