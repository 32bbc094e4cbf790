"""A function that makes datasets, where a dataset is expected."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import torch_distinput as tdi
from torch_distinput.testing import simulate


def halves(context):
    """The batches of a worker: every number below 12 once over all workers."""
    own = torch.arange(context.input_pipeline_id, 12, context.num_input_pipelines)
    return list(own.split(context.get_per_replica_batch_size(4)))


def rows_of(steps):
    """All rows, in order."""
    return [row for step in steps for row in step.tolist()]


def test_it_plays_as_the_function_does():
    """The same batches, in every epoch, and every number once over the workers."""

    def work(strategy):
        made = strategy.distribute_dataset(tdi.DatasetCreator(halves))
        same = strategy.distribute_datasets_from_function(halves)
        return [rows_of(made) for _ in range(2)], [rows_of(same) for _ in range(2)]

    results = simulate(work, num_workers=2)
    assert all(made == same for made, same in results)
    assert list(range(12)) == sorted(row for made, _ in results for row in made[0])


def test_options_are_those_of_the_function():
    """Once for each replica, where asked for."""
    contexts = []

    def dataset_fn(context):
        contexts.append(context)
        return halves(context)

    strategy = tdi.MirroredStrategy(["cpu"] * 2)
    options = tdi.InputOptions(replication_mode="per_replica")
    dataset = strategy.distribute_dataset(tdi.DatasetCreator(dataset_fn), options=options)
    assert [0, 1] == [context.input_pipeline_id for context in contexts]
    rows = [row for step in dataset for part in step for row in part.tolist()]
    assert list(range(12)) == sorted(rows)


@pytest.mark.parametrize(
    "setting",
    [
        {"global_batch_size": 4},
        {"shuffle": True},
        {"seed": 3},
        {"drop_last": True},
        {"collate_fn": list},
        {"num_workers": 2},
    ],
)
def test_settings_beside_it_are_refused(setting):
    """They would do nothing; the message names them and says where they belong."""
    (name,) = setting
    with pytest.raises(tdi.ConfigurationError, match=rf"got {name}=.* in there"):
        tdi.OneDeviceStrategy("cpu").distribute_dataset(tdi.DatasetCreator(halves), **setting)


def test_a_dataset_is_no_function():
    """It needs no creator."""
    with pytest.raises(TypeError, match="got list.*distributed as it is"):
        tdi.DatasetCreator([1, 2, 3])


def test_it_is_a_value():
    """Equal by its function, and frozen."""
    creator = tdi.DatasetCreator(halves)
    assert tdi.DatasetCreator(halves) == creator
    with pytest.raises(dataclasses.FrozenInstanceError):
        creator.dataset_fn = list
