"""Accelerate plays a distributed dataset whose losses are of tokens."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import torch_distinput as tdi
from tests.integrations.accelerators import accelerator_on
from torch_distinput.integrations.accelerate import prepare
from torch_distinput.testing import run_ranks


def is_counted(batch):
    """Which tokens of an example count: some of three."""
    return batch[0] % 5 > 0


def train_tokens(strategy, accumulation):
    """The gradients of each update, of losses of tokens."""
    tokens = torch.arange(27, dtype=torch.float64).view(-1, 3) ** 2
    with accelerator_on(strategy, gradient_accumulation_steps=accumulation) as accelerator:
        dataset = strategy.distribute_dataset((tokens,), global_batch_size=2)
        loader = prepare(dataset, accelerator, weights=is_counted)
        plain = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
        plain.weight.data.fill_(1.0)
        model = accelerator.prepare(plain)
        accelerator.register_for_checkpointing(loader)
        found = []
        for (batch,) in loader:
            with accelerator.accumulate(model):
                losses = (model(batch[..., None])[..., 0] - 2).square()
                accelerator.backward(loader.average_loss(losses, per="token"))
                logged = loader.average(torch.ones(len(batch)))  # by example all the same
                assert 1 == accelerator.reduce(logged, "mean")
            if accelerator.sync_gradients:
                found.append(plain.weight.grad.item())
                plain.weight.grad = None
        del model
    parts = [part[is_counted((part,))] for part in tokens.split(2 * accumulation)]
    return found, [(2 * (part - 2) * part).mean().item() for part in parts]


@pytest.mark.parametrize("accumulation", [1, 3])
def test_gradients_by_token_are_those_of_one_process(accumulation):
    """The last update is shorter, and the second process has no example in its last step."""
    for found, expected in run_ranks(partial(train_tokens, accumulation=accumulation), 2):
        assert expected == pytest.approx(found, rel=1e-12)


def test_an_average_for_loops_of_ones_own_is_refused():
    """Accelerate divides gradients by processes, and by the steps that it accumulates."""
    strategy = tdi.OneDeviceStrategy("cpu")
    with accelerator_on(strategy) as accelerator:
        dataset, own = (
            strategy.distribute_dataset(torch.ones(8), global_batch_size=4) for _ in range(2)
        )
        for batch in prepare(dataset, accelerator):
            ones = torch.ones(4)
            weighted = {"weights": ones}
            for more in ({}, weighted, {**weighted, "mask": ones.bool()}, {"num_examples": 4}):
                with pytest.raises(tdi.UsageError, match=r"Call loader\.average_loss"):
                    tdi.compute_average_loss(batch, **more)
            break
        assert 1 == tdi.compute_average_loss(batch, num_examples=4)
        for batch in own:
            assert 1 == tdi.compute_average_loss(batch)
