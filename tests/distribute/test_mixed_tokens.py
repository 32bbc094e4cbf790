"""Mixtures whose weights are shares of tokens."""

from __future__ import annotations

import json
from itertools import accumulate

import pytest
import torch

import torch_distinput as tdi
from tests.distribute.street import one
from torch_distinput.testing import simulate

SHORT = [{"ids": [1] * (1 + i % 7)} for i in range(700)]
LONG = [{"ids": [2] * (10 + i % 30)} for i in range(300)]


def tell(examples):
    """Of each example its source and its length."""
    return torch.tensor([[one["ids"][0], len(one["ids"])] for one in examples])


def distribute(sources, strategy=None, *, length="ids", shuffle=True):
    mixture = tdi.mix(sources, weights=(1, 1), length=length)
    strategy = strategy or one()
    return strategy.distribute_dataset(
        mixture, global_batch_size=10, collate_fn=tell, shuffle=shuffle
    )


@pytest.mark.parametrize("length", ["ids", lambda example: len(example["ids"])])
def test_each_source_has_its_share_of_the_tokens(length):
    """To within what single examples differ by, in any beginning of the order."""
    rows = torch.cat(list(distribute({"short": SHORT, "long": LONG}, length=length)))
    ends = [list(accumulate((rows[:, 1] * (rows[:, 0] == source)).tolist())) for source in (1, 2)]
    assert all(abs(short - long) < 400 for short, long in zip(*ends, strict=True))
    assert 5000 < ends[0][-1] + ends[1][-1]


def test_examples_of_one_length_have_the_shares_of_examples():
    sources = {"a": [{"ids": [1] * 5}] * 40, "b": [{"ids": [2] * 5}] * 40}
    assert [5, 5] == [int((b[:, 0] == 1).sum()) for b in distribute(sources)][:2]


def test_lengths_are_part_of_a_state():
    """With others a place would mean other examples."""
    dataset = distribute({"a": SHORT, "b": LONG})
    next(iter(dataset))
    state = json.loads(json.dumps(dataset.state_dict()))
    other = distribute({"a": SHORT, "b": [{"ids": row["ids"] * 2} for row in LONG]})
    other.load_state_dict(state)
    with pytest.raises(tdi.ConfigurationError, match="weights was"):
        iter(other)


def test_workers_with_other_lengths_hear_of_it():
    def work(strategy):
        longer = LONG + [{"ids": [2] * 50}] * strategy.worker_index
        with pytest.raises(tdi.MismatchError):
            iter(distribute({"a": SHORT, "b": longer[-300:]}, strategy))

    simulate(work, num_workers=2)


@pytest.mark.parametrize(
    ("sources", "length", "message"),
    [
        ({"a": [{"ids": []}], "b": LONG}, "ids", "Expected tokens in each source .*'a'"),
        ({"a": [], "b": LONG}, "ids", "got none in 'a'"),
        ({"a": SHORT, "b": LONG}, "text", "a column 'text'"),
        ({"a": SHORT, "b": LONG}, lambda _: -1, "length of 'a' .*-1"),
    ],
)
def test_what_has_no_tokens_is_refused(sources, length, message):
    with pytest.raises(tdi.ConfigurationError, match=message):
        distribute(sources, length=length, shuffle=False)


def test_an_array_is_refused():
    with pytest.raises(TypeError, match="a column or a function"):
        tdi.mix({"a": SHORT, "b": LONG}, weights=(1, 1), length=[1, 2])


def test_measuring_draws_no_random_numbers_of_the_caller():
    """Else ranks that have drawn others would find other lengths."""
    torch.manual_seed(0)
    expected = torch.rand(2)

    def draw(example):
        return len(example["ids"]) + int(torch.rand(()) > 1)

    torch.manual_seed(0)
    distribute({"a": SHORT, "b": LONG}, length=draw)
    assert expected.tolist() == torch.rand(2).tolist()
