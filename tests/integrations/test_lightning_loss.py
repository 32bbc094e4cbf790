"""The loss of Lightning's steps: gradients and logged means are those of all examples together."""

from __future__ import annotations

import functools

import pytest
import torch

import torch_distinput as tdi
from tests.integrations.lightning_runs import Model, Saver, collect_models, fit, on_ranks
from torch_distinput import InputOptions
from torch_distinput.integrations.lightning import DataModule
from torch_distinput.testing import run_ranks

NUM_EXAMPLES = 11
"""With batches of 4 the last one has 3, of which the second rank gets one or, of 2, none."""
VALUES = torch.arange(NUM_EXAMPLES, dtype=torch.float64) ** 2 + 1


class Regression(Model):
    """Notes the gradients with which the optimizer steps; trains one weight in full precision."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
        self.gradients = []

    def losses(self, batch):
        values = batch[0] if isinstance(batch, (list, tuple)) else batch
        return (values * self.weight - 2).square()

    def training_step(self, batch, batch_idx):
        losses = self.losses(batch)
        data = self.trainer.datamodule
        self.log(
            "loss",
            data.average(losses.detach()),
            batch_size=data.step.num_examples,
            on_epoch=True,
            sync_dist=True,
        )
        return data.average_loss(losses)

    def validation_step(self, batch, batch_idx):
        losses, data = self.losses(batch), self.trainer.datamodule
        count = data.step.num_examples
        self.log("val", data.average(losses), batch_size=count, on_epoch=True, sync_dist=True)

    def on_before_optimizer_step(self, optimizer):
        self.gradients.append(self.weight.grad.item())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


class Noting(Regression):
    """Counts its steps too."""

    def training_step(self, batch, batch_idx):
        self.trained.append(batch.tolist())
        return super().training_step(batch, batch_idx)


def values_stream():
    yield from VALUES


def train(strategy, case):
    size, accumulated, source, arguments = case
    source = values_stream if source == "stream" else VALUES
    model = Regression()
    data = DataModule(source, val=VALUES[:5], global_batch_size=size, **arguments)
    limits = {"accumulate_grad_batches": accumulated, "max_epochs": 1, **on_ranks(strategy)}
    trainer = fit(model, data, **limits)
    metrics = {name: value.item() for name, value in trainer.callback_metrics.items()}
    gradients = model.gradients
    del model, trainer
    collect_models()
    return gradients, metrics["loss_epoch"], metrics["val"]


def play(strategy, cases):
    return [train(strategy, case) for case in cases]


def gradients_of(groups):
    """What one process has that takes each group as a batch."""
    return [(2 * (VALUES[group] - 2) * VALUES[group]).mean().item() for group in groups]


def groups(size, accumulated):
    at_once = size * accumulated
    return [slice(start, start + at_once) for start in range(0, NUM_EXAMPLES, at_once)]


PAD = {"options": InputOptions(partial_batch="pad")}
CASES = [
    (size, accumulated, source, arguments)
    for size, accumulated in [(4, 1), (2, 1), (4, 2), (2, 4), (2, 3)]
    for source in ("indexed", "stream")
    for arguments in ({}, PAD)
]


@pytest.fixture(scope="module")
def runs():
    return run_ranks(functools.partial(play, cases=CASES), 2, timeout=100)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[str(case[:3]) for case in CASES])
def test_gradients_are_those_of_one_process(runs, number):
    """Also of the last batches, of fewer examples and fewer batches, on each rank alike."""
    size, accumulated, *_ = CASES[number]
    expected = gradients_of(groups(size, accumulated))
    for run in runs:
        assert expected == pytest.approx(run[number][0], rel=1e-12)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[str(case[:3]) for case in CASES])
def test_logged_means_are_those_of_all_examples(runs, number):
    """With zero-row batches, in training and validation, whatever is accumulated."""
    losses = (VALUES - 2).square()
    expected = [losses.mean().item(), losses[:5].mean().item()]
    for run in runs:
        assert expected == pytest.approx(run[number][1:], rel=1e-6)


def test_a_resumed_epoch_groups_as_lightning_does(tmp_path):
    """Saved after 4 steps of 6, inside a group of 3: the whole group comes again."""
    saver = Saver(tmp_path, ["on_train_batch_end"])
    limits = {"accumulate_grad_batches": 3, "max_epochs": 1}
    fit(Noting(), DataModule(VALUES, global_batch_size=2), callbacks=[saver], **limits)
    second = Noting()
    _, _, file = saver.saved[3]
    fit(second, DataModule(VALUES, global_batch_size=2), ckpt_path=file, **limits)
    assert gradients_of([slice(6, 11)]) == pytest.approx(second.gradients)


def test_a_limit_ends_the_last_group():
    model = Regression()
    limits = {"accumulate_grad_batches": 3, "max_epochs": 1, "limit_train_batches": 4}
    fit(model, DataModule(VALUES, global_batch_size=2), **limits)
    assert gradients_of([slice(6), slice(6, 8)]) == pytest.approx(model.gradients)


@pytest.mark.parametrize("step", ["training_step", "validation_step"])
def test_an_average_for_loops_of_ones_own_is_refused(step):
    """Lightning divides gradients by ranks, and by the steps that it accumulates."""

    def average(model, batch, batch_idx):
        return tdi.compute_average_loss(model.losses(batch))

    kind = type("Averaging", (Regression,), {step: average})
    data = DataModule(VALUES, val=VALUES, global_batch_size=4)
    with pytest.raises(tdi.UsageError, match="Call average_loss of the DataModule"):
        fit(kind(), data)
