"""Costs that are none, and what cannot be balanced: said on every rank."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import torch_distinput as tdi
from tests.distribute.balances import COSTS, COUNT, STREAMS
from tests.distribute.mixtures import Rows
from tests.distribute.street import Shards, one, options, stream_of, write_files
from torch_distinput.plan.assignment.balancing import LARGEST_COST
from torch_distinput.testing import simulate

NUMBERS = torch.arange(COUNT)


def refuse(source, error, words, *, workers=2, **keywords):
    """Distribute and play a source; each worker gets the error before its first step."""

    def work(strategy):
        with pytest.raises(error, match=words):
            next(iter(strategy.distribute_dataset(source, global_batch_size=6, **keywords)))

    simulate(work, num_workers=workers)


def fail(example):
    """No cost."""
    msg = f"too long: {int(example)}"
    raise ArithmeticError(msg)


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        ([-1, *COSTS[1:]], r"balance to give whole numbers from 0 on, got -1 for example 0"),
        ([0.5, *COSTS[1:]], r"whole numbers from 0 on, got 0\.5 for example 0"),
        (np.full(COUNT, np.nan), "whole numbers from 0 on, got nan"),
        (COSTS[1:], r"balance to have a whole number for each of 41 examples, got .*\(40,\)"),
        (5, r"each of 41 examples, got an array of shape \(\)"),
        ("length", "a column 'length', got a source with no names"),
        (lambda example: example.item() / 2, r"whole numbers from 0 on, got 0\.0 for example 0"),
        (lambda example: str(example.item()), "whole numbers from 0 on, got '0' for example 0"),
        (lambda _: None, "whole numbers from 0 on, got None for example 0"),
        ([2**70] * COUNT, "got 1180591620717411303424 for example 0"),
        (np.full(COUNT, 2**63 + 5, dtype=np.uint64), "got 9223372036854775813 for example 0"),
        ([LARGEST_COST + 1] * COUNT, "at most 17592186044416, got 17592186044417 for example 0"),
    ],
)
def test_costs_that_are_none(cost, words):
    """Negative, no whole numbers, of another length, no such column, too large."""
    refuse(NUMBERS, tdi.ConfigurationError, words, balance=cost)


def test_a_function_that_raises():
    """It names the example; the other workers hear of it where it fails on one only."""
    refuse(NUMBERS, tdi.SourceError, "balance= of example 0.*too long: 0", balance=fail)

    def work(strategy):
        def cost(example):
            return fail(example) if strategy.worker_index == 1 else 1

        dataset = strategy.distribute_dataset(Rows(COSTS), global_batch_size=6, balance=cost)
        error = tdi.SourceError if strategy.worker_index == 1 else tdi.PeerFailedError
        with pytest.raises(error, match="too long"):
            iter(dataset)

    simulate(work, num_workers=2)


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize(
    ("cost", "words"),
    [
        (fail, "balance= of example 0.*too long"),
        (lambda _: -1, "whole numbers from 0 on, got -1"),
        (lambda _: LARGEST_COST + 1, "at most 17592186044416"),
    ],
)
def test_costs_of_streams_that_are_none(name, cost, words):
    """Said at the step that needs them."""
    refuse(STREAMS[name](), tdi.SourceError, words, balance=cost)


@pytest.mark.parametrize("cost", [COSTS, np.array(COSTS), torch.tensor(COSTS), 3])
def test_a_stream_has_no_index_for_an_array(cost):
    """Refused when it is written."""
    with pytest.raises(tdi.ConfigurationError, match=r"read in order, got .*: there is no index"):
        one().distribute_dataset(stream_of(range(9)), global_batch_size=3, balance=cost)


@pytest.mark.parametrize("source", [NUMBERS, stream_of(range(9))])
def test_cycle_has_sizes_of_its_own(source):
    """Whatever rows cost."""
    with pytest.raises(tdi.ConfigurationError, match='"even" with balance=, got "cycle"'):
        one().distribute_dataset(
            source, global_batch_size=3, balance=abs, options=options(rebatch="cycle")
        )


class Endless(IterableDataset):
    """Ready batches, or examples."""

    def __iter__(self):
        return iter(range(9))


@pytest.mark.parametrize(
    "source", [stream_of([NUMBERS]), DataLoader(Endless(), batch_size=3)], ids=["batches", "loader"]
)
def test_ready_batches_are_not_taken_apart(source):
    """Nor those of a DataLoader over a stream, which are made by torch."""
    with pytest.raises(tdi.ConfigurationError, match=r"got the ready global batches of \w+"):
        one().distribute_dataset(source, balance=abs)


def test_rows_that_cannot_move(tmp_path):
    """FILE and OFF with one replica a worker; alone it is no error."""
    files = tdi.FileDataset(write_files(tmp_path, [[1], [2], [3]])).map(int)
    for source, policy in ((files, "auto"), (Shards([[1], [2]]), "file"), (NUMBERS, "off")):
        words = "can go to any worker with balance=, got .* each of 2 workers reads its own"
        refuse(
            source, tdi.ConfigurationError, words, balance=abs,
            options=options(auto_shard_policy=policy),
        )  # fmt: skip
    alone = one().distribute_dataset(files, global_batch_size=3, balance=abs)
    assert [[1, 2, 3]] == [step.tolist() for step in alone]


class Unsized:
    """A dataset by index without a length."""

    def __getitem__(self, index):
        return index


def test_a_source_of_unknown_length():
    """A sampler says which examples an epoch has, not which there are."""
    loader = DataLoader(Unsized(), batch_sampler=[[1], [2]])
    with pytest.raises(tdi.ConfigurationError, match=r"has with balance=, got DataLoader without"):
        one().distribute_dataset(loader, balance=abs)


def test_a_sampler_beyond_the_costs():
    """The error is not that of an array."""
    loader = DataLoader(Rows(list(range(9))), batch_sampler=[[1], [2, 12]])
    iterator = iter(one().distribute_dataset(loader, balance=list(range(9))))
    next(iterator)
    with pytest.raises(tdi.SourceError, match="the 9 examples that balance= has costs of, got 12"):
        next(iterator)


def test_a_function_that_makes_batches():
    """It is told what it cannot do."""
    creator = tdi.DatasetCreator(lambda _: [torch.arange(2)])
    with pytest.raises(tdi.ConfigurationError, match="no setting but options, got balance='abs'"):
        one().distribute_dataset(creator, balance="abs")


@pytest.mark.parametrize("other", [{}, {"balance": "n"}, {"balance": COSTS}])
def test_workers_that_were_asked_for_different_things(other):
    """Each of them would deal other rows."""

    def work(strategy):
        keywords = other if strategy.worker_index else {"balance": lambda row: int(row["n"])}
        table = {"n": torch.tensor(COSTS)}
        dataset = strategy.distribute_dataset(table, global_batch_size=6, **keywords)
        with pytest.raises(tdi.MismatchError, match="balance"):
            iter(dataset)

    simulate(work, num_workers=2)
