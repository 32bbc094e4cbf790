"""Buckets that cannot be: said when they are written, or on every rank."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import torch_distinput as tdi
from tests.distribute.mixtures import Rows
from tests.distribute.resumes import make_of, run
from tests.distribute.street import one, options, stream_of
from torch_distinput.testing import simulate


@pytest.mark.parametrize(
    ("boundaries", "error", "words"),
    [
        ((), ValueError, "from 1 on and increasing, got none"),
        ((0, 4), ValueError, "increasing, got 0, 4"),
        ((4, 4), ValueError, "increasing, got 4, 4"),
        ((8, 4), ValueError, "increasing, got 8, 4"),
        (range(1, 70_000), ValueError, "at most 65535 boundaries, got 69999"),
        ((1.5,), TypeError, "whole numbers as boundaries, got \\[1.5\\]"),
        ((True,), TypeError, "whole numbers as boundaries, got \\[True\\]"),
        ("128", TypeError, "in a sequence, such as \\(128, 512\\), got '128'"),
        (128, TypeError, "in a sequence"),
    ],
)
def test_boundaries(boundaries, error, words):
    """None, not increasing, no whole numbers."""
    with pytest.raises(error, match=words):
        tdi.bucket(torch.arange(3), length=[1, 2, 3], boundaries=boundaries)


def test_what_else_is_misspelt():
    with pytest.raises(ValueError, match="window must be at least 1|window"):
        tdi.bucket(torch.arange(3), length=[1, 2, 3], boundaries=(2,), window=0)
    with pytest.raises(TypeError, match="name of a column, a function of an example or an array"):
        tdi.bucket(torch.arange(3), length=None, boundaries=(2,))


@pytest.mark.parametrize("boundaries", [np.array([2, 4]), torch.tensor([2, 4]), [2, 4]])
def test_boundaries_of_all_kinds(boundaries):
    found = tdi.bucket(torch.arange(3), length=[1, 2, 3], boundaries=boundaries)
    assert (2, 4) == found.boundaries


def distribute(source, **keywords):
    return one().distribute_dataset(source, **{"global_batch_size": 2, **keywords})


@pytest.mark.parametrize(
    ("length", "error", "words"),
    [
        ([1, 2], ValueError, "a whole number for each of 3 examples, got an array of shape"),
        ([1, -2, 3], ValueError, "whole numbers from 0 on, got -2 for example 1"),
        ([1, 2, 3.5], ValueError, "whole numbers from 0 on, got 1.0 for example 0"),
        ("tokens", ValueError, "Expected a column 'tokens'"),
        (lambda number: 1 / int(number), tdi.SourceError, "length= of example 0"),
    ],
)
def test_lengths_of_a_source_with_an_index(length, error, words):
    """Too few, negative, no whole numbers, no such column, and a function that raises."""
    with pytest.raises(error, match=words):
        distribute(tdi.bucket(torch.arange(3), length=length, boundaries=(2,)))


def test_an_array_is_refused_for_a_stream():
    """There is nothing to look its numbers up by."""
    with pytest.raises(ValueError, match="read in order, got list"):
        distribute(tdi.bucket(stream_of(range(3)), length=[1, 2, 3], boundaries=(2,)))


@pytest.mark.parametrize(
    ("length", "words"),
    [
        (lambda number: 1 // (5 - number), "length= of example"),
        (lambda number: 5 - number, "from 0 on, got -1 for example"),
        (lambda number: number / 2, "whole numbers from 0 on, got 0.0 for example"),
        ("tokens", "Expected a column 'tokens'"),
    ],
)
def test_lengths_of_a_stream(length, words):
    """What raises, or gives no lengths, is told to all ranks when it is read."""
    source = tdi.bucket(stream_of(range(9)), length=length, boundaries=(2,), window=4)

    def work(strategy):
        dataset = strategy.distribute_dataset(source, global_batch_size=2)
        with pytest.raises((tdi.SourceError, tdi.PeerFailedError), match=words):
            list(dataset)
        return True

    assert [True, True] == simulate(work, num_workers=2)


class Counted(IterableDataset):
    """A stream with a state of its own."""

    def __iter__(self):
        return iter(range(3))

    def state_dict(self):
        """Nothing."""
        return {}

    def load_state_dict(self, state):
        """Nothing."""


def bucketed(source, window=4, boundaries=(2,)):
    return tdi.bucket(source, length=int, boundaries=boundaries, window=window)


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        (bucketed(DataLoader(Rows(range(4)), batch_size=2)), ValueError, "Pass its dataset"),
        (bucketed(bucketed(torch.arange(4))), ValueError, "one bucket\\(\\) around a source"),
        (bucketed(3), TypeError, "Expected a source"),
        (bucketed(Counted()), ValueError, "a Counted with a state_dict\\(\\) of its own"),
        (
            tdi.mix({"a": bucketed(torch.arange(4))}, weights=(1,)),
            ValueError,
            "bucket\\(mix\\(...\\), ...\\)",
        ),
    ],
)
def test_sources_that_cannot_be_put_into_buckets(source, error, words):
    """With the cure."""
    with pytest.raises(error, match=words):
        distribute(source)


def test_a_batch_size_is_needed():
    with pytest.raises(ValueError, match="needs global_batch_size"):
        distribute(bucketed(torch.arange(4)), global_batch_size=None)


def test_batches_of_a_stream_have_one_number_of_examples():
    """Those of a budget would begin elsewhere than the batches that were sorted."""
    budget = tdi.TokenBudget(8, length=int)
    with pytest.raises(tdi.ConfigurationError, match="Expected a number of examples .*TokenBudget"):
        one().distribute_dataset(bucketed(stream_of(range(4))), global_batch_size=budget)


def test_an_example_that_fits_into_no_batch():
    """Found when the source is distributed, as its lengths are."""
    budget = tdi.TokenBudget(8, length=int)
    with pytest.raises(tdi.ConfigurationError, match="at most 8 tokens.* got 9 in example 9"):
        one().distribute_dataset(bucketed(torch.arange(10)), global_batch_size=budget)


def test_a_stream_is_not_shuffled():
    """The error is that of the stream."""
    with pytest.raises(ValueError, match="shuffle=True needs a source with an index"):
        distribute(bucketed(stream_of(range(4))), shuffle=True)


@pytest.mark.parametrize("kind", ["index", "stream"])
@pytest.mark.parametrize(
    ("changed", "size", "words"),
    [
        ({"window": 8}, 2, "window"),
        ({"boundaries": (3,)}, 2, "boundaries"),
        ({}, 4, "examples of a global batch"),
        (None, 2, "bucket"),
    ],
)
def test_a_state_of_other_buckets_is_refused(kind, changed, size, words):
    """A place would mean other examples: also with another global batch size."""
    source = torch.arange(12) if kind == "index" else stream_of(range(12))
    _, state = run(make_of(bucketed(source), 2), (1, 1), steps=2)
    other = source if changed is None else bucketed(source, **changed)
    dataset = distribute(other, global_batch_size=size)
    with pytest.raises(tdi.ConfigurationError, match=words):
        dataset.load_state_dict(json.loads(state))
        iter(dataset)


def test_a_state_of_other_lengths_is_refused():
    """They are known beforehand of a source with an index."""
    make = [
        make_of(tdi.bucket(torch.arange(8), length=lengths, boundaries=(2,), window=4), 2)
        for lengths in ([1, 2, 3, 4] * 2, [4, 3, 2, 1] * 2)
    ]
    _, state = run(make[0], (1, 1), steps=1)
    with pytest.raises(tdi.ConfigurationError, match="lengths"):
        run(make[1], (1, 1), state=state)


def test_ranks_with_other_lengths_hear_of_it():
    """Before the first step, on every rank."""

    def work(strategy):
        lengths = [1, 2, 3, 4 + strategy.worker_index]
        source = tdi.bucket(torch.arange(4), length=lengths, boundaries=(2,), window=4)
        with pytest.raises(tdi.MismatchError, match="lengths"):
            iter(strategy.distribute_dataset(source, global_batch_size=2))
        return True

    assert [True, True] == simulate(work, num_workers=2)


def test_windows_that_are_rounded_are_told(caplog):
    """And one that sorts nothing is a warning."""
    with caplog.at_level(logging.INFO, logger="torch_distinput"):
        distribute(bucketed(torch.arange(9), window=5))
    assert "6 examples instead of 5: whole global batches of 2" in caplog.text
    distribute(bucketed(torch.arange(9), window=1))
    assert "sorts nothing" in caplog.text


def test_shares_of_a_bucketed_mixture_are_not_told():
    """Which examples a step has is no longer that of a beginning of the mixture's order."""
    mixture = tdi.mix({"a": torch.arange(8), "b": torch.arange(8)}, weights=(1, 1))
    iterator = iter(distribute(bucketed(mixture, window=8)))
    next(iterator)
    assert iterator.last_step.sources is None
    assert {} == iterator.stats().sources


def test_files_are_needed_to_deal_them_out():
    with pytest.raises(ValueError, match="FILE"):
        distribute(bucketed(torch.arange(4)), options=options(auto_shard_policy="file"))
