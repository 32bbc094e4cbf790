"""Global batches by a budget: as many examples of an order as fit, from any place on."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_distinput.plan.assignment.bounds import BatchBudget
from torch_distinput.plan.assignment.budget_batches import BudgetBatches
from torch_distinput.plan.assignment.order import EpochOrder, GivenOrder

lengths = st.lists(st.integers(0, 9), max_size=40)


def fill_by_hand(values, length_of, num_tokens):
    """Batches of as many values as fit, one value after another."""
    batches, left = [], 0
    for value in values:
        if not batches or length_of(value) > left:
            batches.append([])
            left = num_tokens
        batches[-1].append(value)
        left -= length_of(value)
    return batches


def make(known, num_tokens, *, max_length=None, shuffle=False, **keywords):
    """The batches of as many examples as there are lengths."""
    order = EpochOrder(num_examples=len(known), shuffle=shuffle, seed=3)
    size = BatchBudget(num_tokens=num_tokens, max_length=max_length)
    return BudgetBatches.of(order, np.array(known, dtype=np.int64), size, **keywords)


def list_batches(batches):
    """All of them as lists."""
    return [batches.take(number).tolist() for number in range(batches.num_batches)]


@given(lengths, st.integers(9, 30), st.booleans(), st.integers(9, 30), st.data())
def test_as_many_examples_as_fit(known, num_tokens, shuffle, other, data):
    """From the beginning, and with another budget from any place on."""
    batches = make(known, num_tokens, shuffle=shuffle)
    order = EpochOrder(num_examples=len(known), shuffle=shuffle, seed=3).take_range(0, 99).tolist()
    assert fill_by_hand(order, known.__getitem__, num_tokens) == list_batches(batches)
    first = data.draw(st.integers(0, len(known)))
    rest = make(known, other, shuffle=shuffle).skip(steps=0, examples=first)
    assert fill_by_hand(order[first:], known.__getitem__, other) == list_batches(rest)


@given(lengths, st.integers(9, 30), st.data())
def test_what_is_left_after_a_batch(known, num_tokens, data):
    """The same batches, and the same tokens."""
    batches = make(known, num_tokens)
    number = data.draw(st.integers(0, batches.num_batches))
    examples = sum(map(len, list_batches(batches)[:number]))
    left = batches.skip(steps=number, examples=examples)
    assert list_batches(batches)[number:] == list_batches(left)
    assert batches.num_tokens[number:] == left.num_tokens
    assert [sum(known[i] for i in batch) for batch in list_batches(left)] == left.num_tokens


@given(lengths, st.integers(9, 30))
def test_runs_are_batches_of_one_size(known, num_tokens):
    """In order; any rows of them can be asked for."""
    batches = make(known, num_tokens)
    played = [
        rows.tolist()
        for run in batches.runs
        for rows in batches.iterate_rows(run, min(1, run.size), run.size)
    ]
    assert [batch[1:] for batch in list_batches(batches)] == played
    sizes = [run.size for run in batches.runs for _ in range(run.count)]
    assert list(map(len, list_batches(batches))) == sizes
    assert all(one.size != two.size for one, two in itertools.pairwise(batches.runs))


@given(lengths, st.integers(9, 30), st.data())
def test_drop_last_leaves_out_a_batch_that_is_not_full(known, num_tokens, data):
    """Wherever the epoch goes on."""
    first = data.draw(st.integers(0, len(known)))
    kept = make(known, num_tokens).skip(steps=0, examples=first)
    cut = make(known, num_tokens, drop_last=True).skip(steps=0, examples=first)
    whole = list_batches(kept)
    dropped = whole and kept.num_tokens[-1] < num_tokens
    assert whole[: len(whole) - bool(dropped)] == list_batches(cut)
    assert (len(whole[-1]) if dropped else 0) == cut.num_dropped


def test_a_long_example_counts_for_max_length():
    """It is still delivered whole: who collates cuts it."""
    batches = make([3, 700, 2, 1], 8, max_length=5)
    assert [[0, 1], [2, 3]] == list_batches(batches)
    assert [8, 3] == batches.num_tokens


def test_an_example_longer_than_the_budget():
    """The first one is named, whatever the order."""
    for shuffle in (False, True):
        with pytest.raises(ValueError, match=r"at most 8 tokens.* got 9 in example 1 \(2 examples"):
            make([3, 9, 2, 10], 8, shuffle=shuffle)


def test_a_sampler_beyond_the_lengths():
    """No length is known of its index."""
    for index in (-1, 3):
        order = GivenOrder(np.array([0, index]))
        with pytest.raises(ValueError, match=f"indices from 0 to 2.* got {index}"):
            BudgetBatches.of(order, np.ones(3, dtype=np.int64), BatchBudget(num_tokens=9))


def test_a_place_behind_the_end():
    """A state of other data."""
    with pytest.raises(ValueError, match="has 2 examples, got one after 3"):
        make([1, 1], 4).skip(steps=0, examples=3)


def test_the_user_may_write_into_indices():
    """They are copies."""
    batches = make([1, 1, 1], 2)
    (run, *_) = batches.runs
    for rows in batches.iterate_rows(run, 0, 2):
        rows[:] = 7
    batches.take(0)[:] = 7
    assert [[0, 1], [2]] == list_batches(batches)
