"""Accelerate: the epoch that a user chooses is part of the state."""

from __future__ import annotations

import itertools

import pytest
import torch

import torch_distinput as tdi
from tests.integrations.accelerators import accelerator_on
from torch_distinput.integrations.accelerate import prepare


@pytest.mark.parametrize("num_steps", [2, 4])
def test_a_chosen_epoch_is_saved(num_steps):
    """After an epoch that was left, or played to its end."""
    strategy = tdi.OneDeviceStrategy("cpu")
    with accelerator_on(strategy) as accelerator:

        def make():
            dataset = strategy.distribute_dataset(
                torch.arange(16), global_batch_size=4, shuffle=True
            )
            return prepare(dataset, accelerator)

        loader = make()
        for _ in itertools.islice(loader, num_steps):
            pass
        loader.set_epoch(5)
        resumed = make()
        resumed.load_state_dict(loader.state_dict())
        assert 5 == resumed.epoch
        assert [step.tolist() for step in loader] == [step.tolist() for step in resumed]


def test_an_epoch_that_is_chosen_meanwhile_leaves_the_step_in_use():
    """It is the next one's."""
    strategy = tdi.OneDeviceStrategy("cpu")
    with accelerator_on(strategy) as accelerator:
        dataset = strategy.distribute_dataset(torch.arange(8), global_batch_size=4)
        loader = prepare(dataset, accelerator)
        for _ in loader:
            loader.set_epoch(3)
            assert loader.step.num_examples == 4
            assert loader.state_dict()["epoch"] in (0, 1)
        assert 3 == loader.epoch
