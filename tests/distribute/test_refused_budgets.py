"""Token budgets that cannot be: said when they are written, or on every rank."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import torch_distinput as tdi
from tests.distribute.budgets import by_tokens, length_of
from tests.distribute.mixtures import Rows
from tests.distribute.resumes import run
from tests.distribute.street import Shards, one, options, stream_of
from torch_distinput.testing import simulate


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"num_tokens": 0, "length": len}, ValueError, "at least 1, got 0"),
        ({"num_tokens": 2**48 + 1, "length": len}, ValueError, "at most 281474976710656 tokens"),
        ({"num_tokens": 2.5, "length": len}, TypeError, "whole number, got 2.5"),
        ({"num_tokens": 9, "length": len, "max_length": 0}, ValueError, "at least 1, got 0"),
        ({"num_tokens": 9, "length": len, "max_length": 10}, ValueError, "at most its 9 tokens"),
        ({"num_tokens": 9, "length": 7}, TypeError, "a function of an example.* got 7"),
        ({"num_tokens": 9, "length": None}, TypeError, "a function of an example.* got None"),
    ],
)
def test_budgets(arguments, error, words):
    """Each when it is made."""
    with pytest.raises(error, match=words):
        tdi.TokenBudget(**arguments)


def fail(example):
    """A length function that raises at one example."""
    if example == 4:
        msg = "no such token"
        raise KeyError(msg)
    return 1


def messages_of(source, length, *, num_tokens=6, workers=2, **keywords):
    """What each worker raises."""

    def work(strategy):
        budget = tdi.TokenBudget(num_tokens, length=length, **keywords)
        chosen = options(auto_shard_policy="data")
        try:
            list(strategy.distribute_dataset(source, global_batch_size=budget, options=chosen))
        except (ValueError, tdi.DistinputError) as error:
            return str(error)
        return None

    return simulate(work, num_workers=workers)


@pytest.mark.parametrize("kind", ["list", "stream"])
@pytest.mark.parametrize(
    ("length", "words"),
    [
        (fail, "KeyError at length= of example 4: 'no such token'"),
        (lambda example: 1.5 if example == 4 else 1, "numbers from 0 on, got 1.5 for example 4"),
        (lambda example: 3 - example, "got -1 for example 4"),
        (lambda example: example + 2, "at most 6 tokens.* got 7 in (example|row) 5"),
        (lambda example: True, "whole numbers from 0 on, got True for example 0"),
        ("tokens", "Expected a column 'tokens', got a source with no names"),
    ],
)
def test_lengths_on_every_rank(kind, length, words):
    """A function that raises, fractions, negative lengths, long examples, no such column."""
    source = list(range(8)) if kind == "list" else stream_of(range(8))
    said = messages_of(source, length)
    assert all(message is not None and re.search(words, message) for message in said), said


@pytest.mark.parametrize(
    ("length", "words"),
    [
        ([1, 2, 3], "for each of 8 examples, got an array of shape \\(3,\\)"),
        (np.full(8, 0.5), "whole numbers from 0 on, got 0.5"),
        (np.full(8, np.nan), "whole numbers from 0 on, got nan"),
        (torch.arange(-1, 7), "got -1 for example 0"),
    ],
)
def test_arrays_of_lengths(length, words):
    """Of another number, fractions, NaN, negative ones."""
    dataset = one().distribute_dataset(
        list(range(8)), global_batch_size=tdi.TokenBudget(9, length=length)
    )
    with pytest.raises(ValueError, match=words):
        iter(dataset)


@pytest.mark.parametrize("make", [list, stream_of])
@pytest.mark.parametrize("how", ["budget", "bucket", "mix", "balance"])
def test_the_number_of_columns_is_no_length(how, make):
    """It is what len gives of a dict."""
    source = make([{"tokens": [1] * (number % 3 + 1), "id": number} for number in range(8)])
    keywords: dict = {"global_batch_size": 4}
    if how == "budget":
        keywords = {"global_batch_size": tdi.TokenBudget(9, length=len)}
    elif how == "bucket":
        source = tdi.bucket(source, length=len, boundaries=[2])
    elif how == "mix":
        source = tdi.mix({"a": source, "b": source}, weights=(1, 1), stop="all", length=len)
    else:
        keywords["balance"] = len
    words = "got len of a dict, which is its number of columns, 2. Name a column.*='tokens'"
    with pytest.raises(tdi.DistinputError, match=words):
        list(one().distribute_dataset(source, **keywords))


class Pair(NamedTuple):
    tokens: str
    other: str


@pytest.mark.parametrize(
    ("example", "is_refused"),
    [
        (([1, 2, 3], 0), True),
        ((torch.ones(3), torch.tensor(2)), True),
        ((torch.ones(3), torch.ones(3)), True),
        (((1, 2), (3, 4)), True),
        (Pair("a b", "c"), True),
        ((1, 2, 3), False),
        (("a", "b"), False),
        ([1, 2, 3], False),
    ],
)
def test_nor_is_that_of_a_tuple(example, is_refused):
    """But a tuple may be the tokens themselves."""
    budget = tdi.TokenBudget(9, length=len)
    dataset = one().distribute_dataset(
        [example] * 3, global_batch_size=budget, collate_fn=lambda rows: torch.ones(len(rows))
    )
    if is_refused:
        with pytest.raises(tdi.DistinputError, match=r"number of columns, 2. Write .*example\[0\]"):
            list(dataset)
    else:
        assert 3 == sum(map(len, dataset))


def test_nothing_is_lost_before_an_error():
    """Of a stream: what fits before the example that does not is delivered on all ranks."""

    def work(strategy):
        budget = tdi.TokenBudget(6, length=lambda example: 3 if example < 40 else 7)
        dataset = strategy.distribute_dataset(stream_of(range(50)), global_batch_size=budget)
        got = []
        with pytest.raises(tdi.DistinputError, match="got 7 in row 40"):
            got.extend(x for step in dataset for x in step.tolist())
        return got

    first, second = simulate(work, num_workers=2)
    delivered = sorted(first + second)
    assert list(range(len(delivered))) == delivered


def with_budget(**keywords):
    """What ``distribute_dataset`` takes with a budget."""
    return {"global_batch_size": tdi.TokenBudget(9, length=length_of), **keywords}


@pytest.mark.parametrize(
    ("source", "arguments", "words"),
    [
        (list(range(9)), with_budget(options=options(rebatch="cycle")), "the number of examples"),
        (list(range(9)), with_budget(options=options(partial_batch="pad")), "a number of exa"),
        (stream_of(range(9)), {"global_batch_size": tdi.TokenBudget(9, length=[1])}, "got an"),
        (DataLoader(Rows(range(9)), batch_size=4), with_budget(), "Build it with batch_size=None"),
        (
            DataLoader(Rows(range(9)), batch_size=None, shuffle=True),
            with_budget(shuffle=True),
            "Expected shuffle to be set once",
        ),
        (
            tdi.mix(
                {"a": torch.arange(4), "b": torch.arange(9)},
                weights=tdi.schedule({0: (1, 1), 5: (1, 2)}, unit="steps"),
            ),
            with_budget(),
            "A schedule beside a token budget must count examples",
        ),
    ],
)
def test_what_needs_a_number_of_examples(source, arguments, words):
    """Said when it is distributed, with the cure."""
    with pytest.raises(ValueError, match=words):
        one().distribute_dataset(source, **arguments)


def test_a_share_of_a_budget():
    """A replica has no number of examples."""
    context = tdi.InputContext(num_replicas_in_sync=2)
    with pytest.raises(TypeError, match=r"whole number, got TokenBudget\(9"):
        context.get_per_replica_batch_size(tdi.TokenBudget(9, length=len))


def test_a_sampler_without_a_dataset_that_has_a_length():
    """Nobody knows which indices to measure; an array tells them."""

    class Endless:
        def __getitem__(self, index):
            return index

    def play(length):
        loader = DataLoader(Endless(), batch_size=None, sampler=[2, 0, 1])
        budget = tdi.TokenBudget(4, length=length)
        dataset = one().distribute_dataset(loader, global_batch_size=budget)
        return [step.tolist() for step in dataset]

    with pytest.raises(ValueError, match="a dataset with a len"):
        play(lambda example: example)
    assert [[2, 0], [1]] == play([1, 2, 3])


def test_a_state_of_other_lengths():
    """By index batches would end elsewhere; the digests of both are shown."""
    _, state = run(by_tokens(list(range(20)), 12), (2, 1), steps=2)

    def make(strategy):
        budget = tdi.TokenBudget(12, length=[1] * 20)
        return strategy.distribute_dataset(list(range(20)), global_batch_size=budget)

    with pytest.raises(ValueError, match="lengths for the budget was '.*', and here it is"):
        run(make, (2, 1), state=state)


def test_workers_with_other_lengths():
    """Told before the first step, on all of them."""

    def work(strategy):
        lengths = np.full(8, 1 + strategy.worker_index)
        budget = tdi.TokenBudget(6, length=lengths)
        with pytest.raises(tdi.MismatchError, match="lengths for the budget"):
            iter(strategy.distribute_dataset(list(range(8)), global_batch_size=budget))

    simulate(work, num_workers=2)


def test_workers_that_measure_a_stream_differently():
    """Also far behind the first batches, and with as many batches: rows would be lost."""

    def work(strategy):
        def length(example):
            return 2 + 2 * (example == 60 and strategy.worker_index)

        budget = tdi.TokenBudget(4, length=length)
        dataset = strategy.distribute_dataset(stream_of(range(79)), global_batch_size=budget)
        with pytest.raises(tdi.MismatchError, match="differs from that of the others"):
            list(dataset)

    simulate(work, num_workers=2)


def test_a_row_is_named_by_its_number_in_the_stream():
    """However many rows were read before."""
    said = messages_of(stream_of(range(99)), lambda example: -1 if example == 70 else 1)
    assert all("got -1 for example 70" in message for message in said), said


def test_other_lengths_in_the_middle_of_a_worker_s_batch():
    """What a worker has delivered of it would end elsewhere."""
    shards = Shards([list(range(9)), list(range(10, 19))])
    _, state = run(by_tokens(shards, 17, policy="file"), (2, 1), steps=3)

    def make(strategy):
        budget = tdi.TokenBudget(17, length=lambda example: 8)
        chosen = options(auto_shard_policy="file")
        return strategy.distribute_dataset(shards, global_batch_size=budget, options=chosen)

    with pytest.raises(tdi.DistinputError, match="lengths for the token budget have changed"):
        run(make, (2, 1), state=state)


def test_a_replay_of_a_budget_without_one():
    """Nothing tells where its batches ended."""
    for source in (list(range(20)), stream_of(range(20))):
        dataset = by_tokens(source, 12)(one())
        state = dataset.state_dict()
        plain = one().distribute_dataset(
            source, global_batch_size=4, options=options(auto_shard_policy="data")
        )
        with pytest.raises(ValueError, match="of 12 tokens, got a dataset with a number of"):
            plain.replay(state, 0)
