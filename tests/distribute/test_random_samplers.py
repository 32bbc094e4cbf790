"""Nodes of torchdata over samplers: whose order cannot be drawn again is said at the beginning."""

from __future__ import annotations

import logging

import pytest
import torch
from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler, TensorDataset
from torchdata import nodes

import torch_distinput as tdi


class Drawn(RandomSampler):
    """Keeps what it needs to go on."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        """Nothing is needed."""


NUMBERS = range(8)
SAMPLERS = {
    "random": (RandomSampler(NUMBERS), True),
    "seeded": (RandomSampler(NUMBERS, generator=torch.Generator().manual_seed(0)), True),
    "with a state": (Drawn(NUMBERS), False),
    "in order": (SequentialSampler(NUMBERS), False),
    "by the epoch": (DistributedSampler(TensorDataset(torch.arange(8)), 1, 0), False),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_whose_order_is_not_drawn_again(name, caplog):
    """A warning, behind nodes and loaders too; it can be played all the same."""
    sampler, is_told = SAMPLERS[name]
    node = nodes.Mapper(nodes.SamplerWrapper(sampler), int)
    with caplog.at_level(logging.WARNING):
        dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(node, global_batch_size=4)
    assert is_told == any("draws another order" in message for message in caplog.messages)
    assert list(NUMBERS) == sorted(x for batch in dataset for x in batch.tolist())
