"""Accelerate: a chosen epoch is part of the state, and loaders that are done with are let go."""

from __future__ import annotations

import gc
import itertools
import weakref

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


def test_a_loader_that_nobody_holds_is_let_go(tmp_path):
    """After a failed attempt, say: its batches free their memory, and it hinders no checkpoint."""
    strategy = tdi.OneDeviceStrategy("cpu")
    with accelerator_on(strategy) as accelerator:
        dataset = strategy.distribute_dataset(torch.arange(8), global_batch_size=4)
        loader = prepare(dataset, accelerator)
        steps = iter(loader)
        next(steps)
        with pytest.raises(tdi.UsageError, match="inside of epoch 0"):
            accelerator.save_state(tmp_path)
        held = weakref.ref(loader), weakref.ref(dataset)
        del steps, loader, dataset
        gc.collect()
        assert (None, None) == tuple(one() for one in held)
        accelerator.save_state(tmp_path)
