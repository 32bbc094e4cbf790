"""Messages name the dataset and the mistake that people make most often."""

from __future__ import annotations

import itertools
import logging

import pytest
import torch

import torch_distinput as tdi
from tests.distribute.street import play
from torch_distinput.testing import simulate


def refused(work):
    """The message that both of two workers get."""

    def caught(strategy):
        with pytest.raises(tdi.MismatchError) as error:
            work(strategy, strategy.distribute_dataset(torch.arange(9), global_batch_size=2))
        return str(error.value)

    one, other = simulate(caught, num_workers=2)
    assert one == other
    return one


def test_a_state_is_loaded_on_one_rank():
    """The cure is to load it on all."""

    def work(strategy, dataset):
        with iter(dataset) as steps:
            next(steps)
            state = dataset.state_dict()
        again = strategy.distribute_dataset(torch.arange(9), global_batch_size=2)
        if not strategy.worker_index:
            again.load_state_dict(state)
        iter(again)

    message = refused(work)
    assert "the same position" in message
    assert "Call load_state_dict() on all ranks" in message
    assert "shuffled" not in message


def test_one_rank_leaves_its_loop():
    """The cure is to leave it on all; the message names the dataset by its number."""

    def work(strategy, dataset):
        list(itertools.islice(dataset, 1 + strategy.worker_index))
        iter(dataset)

    message = refused(work)
    assert "when dataset 0 (Tensor) is iterated, got 1 on worker 0 and 2 on worker 1" in message
    assert "Leave a loop on all ranks at the same step" in message
    assert "shuffled" not in message


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ([torch.zeros(9), torch.zeros(9)], 1),
        ([torch.zeros(9).numpy(), torch.zeros(9).numpy()], 1),
        ([torch.zeros(2), torch.zeros(2)], 0),
        ([torch.zeros(9)] * 9, 0),
        (torch.zeros(9, 2), 0),
        ((torch.zeros(9), torch.zeros(9)), 0),
        ([torch.zeros(()), torch.zeros(())], 0),
        (([1.0] * 9, [2.0] * 9), 1),
        (([1.0] * 2, [2.0] * 2), 0),
        (([1.0] * 9, [2.0] * 8), 0),
        ([[1.0] * 9, [2.0] * 9], 0),
    ],
)
def test_columns_in_a_list(caplog, source, expected):
    """A list of two tensors has two examples; that is said once, on one worker."""
    with caplog.at_level(logging.WARNING):
        simulate(
            lambda strategy: strategy.distribute_dataset(source, global_batch_size=2),
            num_workers=2,
        )
    assert expected == caplog.text.count("If they are columns, ")


def test_datasets_of_one_class_are_told_apart(caplog):
    """By their numbers."""
    with caplog.at_level(logging.WARNING):
        play(torch.arange(1), 2, 2)
    assert "dataset 0 (Tensor): in 1 of the 1 steps" in caplog.text


@pytest.mark.parametrize(
    ("name", "recipe", "expected"),
    [
        ("a.csv", tdi.FileDataset, 1),
        ("a.csv.gz", tdi.FileDataset, 1),
        ("a.txt", tdi.FileDataset, 0),
        ("a.csv", lambda name: tdi.FileDataset(name, reader="csv"), 0),
        ("a.csv", lambda name: tdi.FileDataset(name).map(len), 0),
    ],
)
def test_a_table_that_is_read_as_text(caplog, name, recipe, expected):
    """Said once, on one worker, unless the lines are mapped."""
    with caplog.at_level(logging.WARNING):
        simulate(
            lambda strategy: strategy.distribute_dataset(recipe(name), global_batch_size=2),
            num_workers=2,
        )
    assert expected == caplog.text.count("Pass reader='csv'")
