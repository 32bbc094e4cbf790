"""The loss by token of Lightning's steps: gradients are those of all tokens that count together."""

from __future__ import annotations

import pytest
import torch

from tests.integrations.lightning_runs import Model, collect_models, fit, on_ranks
from torch_distinput.integrations.lightning import DataModule
from torch_distinput.testing import run_ranks

NUM_EXAMPLES = 9
TOKENS = torch.arange(NUM_EXAMPLES * 3, dtype=torch.float64).view(-1, 3) ** 2


def stream():
    yield from TOKENS


CASES = [(4, 1, TOKENS), (2, 3, TOKENS), (2, 3, stream)]


def is_counted(batch):
    """As many of the tokens of each example as it happens."""
    return batch % 5 > 0


class Regression(Model):
    """Notes the gradients with which the optimizer steps."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
        self.gradients = []

    def training_step(self, batch, batch_idx):
        losses = (batch * self.weight - 2).square()
        logged = self.trainer.datamodule.average(torch.ones(len(batch)))  # by example all the same
        assert 1 == self.trainer.strategy.reduce(logged, reduce_op="mean")
        return self.trainer.datamodule.average_loss(losses, per="token")

    def on_before_optimizer_step(self, optimizer):
        self.gradients.append(self.weight.grad.item())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


def play(strategy):
    found = []
    for size, accumulated, source in CASES:
        model = Regression()
        data = DataModule(source, global_batch_size=size, weights=is_counted)
        limits = {"accumulate_grad_batches": accumulated, "max_epochs": 1, **on_ranks(strategy)}
        fit(model, data, **limits)
        found.append(model.gradients)
        del model
        collect_models()
    return found


def gradients_of(size):
    """What one process has that takes each group as a batch."""
    parts = [part[is_counted(part)] for part in TOKENS.split(size)]
    return [(2 * (part - 2) * part).mean().item() for part in parts]


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_gradients_are_those_of_one_process(num_ranks):
    """The last group is shorter, and the second rank has no example in its last step."""
    for run in run_ranks(play, num_ranks, timeout=100):
        for (size, accumulated, _), gradients in zip(CASES, run, strict=True):
            assert gradients_of(size * accumulated) == pytest.approx(gradients, rel=1e-12)
