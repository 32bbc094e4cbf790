"""Calls with a step, or with what a step is not, say what to pass instead."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import torch_distinput as tdi
from tests.distribute.street import one
from torch_distinput.testing import simulate


def first_step(num_replicas=1):
    """A strategy and its first step."""
    strategy = one(num_replicas)
    dataset = strategy.distribute_dataset((torch.ones(4), torch.ones(4)), global_batch_size=4)
    return strategy, next(dataset.steps())


def test_a_step_is_no_batch():
    """It holds one."""
    strategy, step = first_step()
    with pytest.raises(TypeError, match=r"x, y = step\.batch"):
        _, _ = step
    with pytest.raises(TypeError, match=r"got Step.*args=\(step\.batch,\)"):
        strategy.run(len, args=step)


@pytest.mark.parametrize("through_step", [False, True])
def test_a_loss_is_a_tensor(through_step):
    """Not one for each replica, nor a list."""
    _, step = first_step(2)
    average = step.average if through_step else tdi.compute_average_loss
    with pytest.raises(TypeError, match="got PerReplica. Call it inside strategy.run"):
        average(step.batch[0])
    with pytest.raises(TypeError, match="got list. Stack the losses"):
        average([torch.tensor(1.0)])


def test_indices_are_concatenated():
    """Those of several steps are one tensor."""
    strategy = one()
    batches = [np.arange(2), np.arange(2, 3)]
    with pytest.raises(ValueError, match=r"a list of 2 of them. Concatenate"):
        strategy.gather_in_order(batches, batches)
    assert [5, 6] == strategy.gather_in_order([1, 0], torch.tensor([6, 5])).tolist()


class DataFrame:
    """Has columns, and no rows by number, as those of pandas and polars."""

    columns = ("a", "b")

    def __len__(self):
        return 3

    def __getitem__(self, name):
        raise KeyError(name)

    def __iter__(self):
        return iter(self.columns)


class DatasetDict(dict):
    """Holds splits, as that of Hugging Face."""


@pytest.mark.parametrize(
    ("source", "advice"),
    [
        (DataFrame(), r"frame\[name\].to_numpy\(\) for name in frame.columns"),
        (DatasetDict(train=[1], test=[2]), r"of 2 splits; pass one of them.*source\['train'\]"),
    ],
)
def test_what_holds_columns_or_splits(source, advice):
    """The message says how to take them out."""
    with pytest.raises(TypeError, match=advice):
        one().distribute_dataset(source, global_batch_size=2)


def test_the_column_that_differs_is_named(tmp_path):
    """With its types, and without the specs of all the others."""
    (tmp_path / "0.csv").write_text("id,x\n1,2\n")
    (tmp_path / "1.csv").write_text("id,x\n1,n/a\n")
    files = tdi.FileDataset(str(tmp_path / "*.csv"), reader="csv")

    def work(strategy):
        with pytest.raises(tdi.MismatchError) as caught:
            list(strategy.distribute_dataset(files, global_batch_size=2))
        return str(caught.value)

    message, _ = simulate(work, num_workers=2)
    assert "got torch.int64 at batch['x'] on worker 0 and a list, or None on worker 1." in message
    assert "TensorSpec" not in message
