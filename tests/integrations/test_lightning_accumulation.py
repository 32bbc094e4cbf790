"""A checkpoint that is saved between two steps of the optimizer loses no examples."""

from __future__ import annotations

import math

import pytest
import torch
from lightning.pytorch.callbacks import StochasticWeightAveraging

from tests.integrations.lightning_runs import (
    NUM_EXAMPLES,
    SOURCES,
    Model,
    Saver,
    Validating,
    data,
    examples,
    fit,
    silence,
    whole_epochs,
)
from torch_distinput.integrations.lightning import DataModule

NUM_EPOCHS = 2
ACCUMULATED = 3


class Stepping(Model):
    """Notes which batches reached the optimizer: all since its last step, when it steps."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.reached, self.num_optimizer_steps, self.num_joined = [], 0, 0

    def on_before_optimizer_step(self, optimizer):
        self.num_optimizer_steps += 1
        self.reached += self.trained[self.num_joined :]
        self.num_joined = len(self.trained)


class ValidatingStepping(Stepping, Validating):
    pass


class NotingSaver(Saver):
    """Notes with each file what has reached the optimizer."""

    def saving(self, hook, folder):
        def save(trainer, model, *_):
            file = str(folder / f"{hook}-{len(model.trained)}.ckpt")
            trainer.save_checkpoint(file)
            self.saved.append((list(model.reached), model.num_optimizer_steps, file))

        return save


def num_optimizer_steps(size):
    return math.ceil(math.ceil(NUM_EXAMPLES / size) / ACCUMULATED)


@pytest.mark.parametrize("model", [Stepping, ValidatingStepping])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_each_example_reaches_the_optimizer_once(tmp_path, model, source, size):
    """Saved at each place where Lightning lets one save; the last group is ragged."""
    saver, first = NotingSaver(tmp_path), model()
    val = {"val": range(3)} if model is ValidatingStepping else {}
    limits = {"max_epochs": NUM_EPOCHS, "accumulate_grad_batches": ACCUMULATED}
    if val and source == "indexed":
        limits["val_check_interval"] = 2  # also in the middle of a group
    fit(first, data(source, size, **val), callbacks=[saver], **limits)
    assert NUM_EPOCHS * num_optimizer_steps(size) == first.num_optimizer_steps

    for reached, num_steps, file in saver.saved:
        second = model()
        trainer = fit(second, data(source, size, **val), ckpt_path=file, **limits)
        assert first.reached == reached + second.reached, file
        assert first.num_optimizer_steps == num_steps + second.num_optimizer_steps, file
        assert first.num_optimizer_steps == trainer.global_step, file
        assert first.reached[len(reached) :] == second.trained, file


@pytest.mark.parametrize("source", SOURCES)
def test_it_goes_on_with_other_batches(tmp_path, source):
    saver, first = NotingSaver(tmp_path, ["on_train_batch_end"]), Stepping()
    limits = {"max_epochs": NUM_EPOCHS, "accumulate_grad_batches": ACCUMULATED}
    fit(first, data(source, 1), callbacks=[saver], **limits)
    for reached, _, file in saver.saved:
        second = Stepping()
        fit(second, data(source, 4), ckpt_path=file, **limits)
        assert whole_epochs(0, 1) == examples(reached + second.reached), file


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("count", [1, 4, 5, 6])
def test_it_was_interrupted_and_saved_behind_the_training(tmp_path, source, count):
    """Twice: the second run saves before the optimizer has stepped, and counts nothing twice."""
    limits = {"max_epochs": NUM_EPOCHS, "accumulate_grad_batches": ACCUMULATED}
    reached, file = [], None
    for fails_at in (count, 1, None):
        model = Stepping(fails_at=fails_at)
        saver = Saver(tmp_path, ["on_exception"])
        fit(model, data(source, 2), callbacks=[saver], ckpt_path=file, **limits)
        reached += model.reached
        file = saver.saved[0][-1] if saver.saved else None
    assert whole_epochs(0, 1) == examples(reached)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("accumulated", [1, ACCUMULATED])
@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_every_checkpoint_of_a_run_that_goes_on(tmp_path, source, accumulated, count):
    """It was interrupted: Lightning counts for ever that a batch was begun which never ended."""
    limits = {"max_epochs": NUM_EPOCHS, "accumulate_grad_batches": accumulated}
    interrupted, first = NotingSaver(tmp_path, ["on_exception"]), Stepping(fails_at=count)
    fit(first, data(source, 2), callbacks=[interrupted], **limits)
    before, _, file = interrupted.saved[-1]
    saver, second = NotingSaver(tmp_path), Stepping()
    fit(second, data(source, 2), callbacks=[saver], ckpt_path=file, **limits)
    for reached, _, file in saver.saved:
        third = Stepping()
        fit(third, data(source, 2), ckpt_path=file, **limits)
        assert whole_epochs(0, 1) == examples(before + reached + third.reached), file
        assert [batch[0] // 100 for batch in third.trained] == third.epochs, file


@pytest.mark.parametrize("accumulated", [1, ACCUMULATED])
@pytest.mark.parametrize("limit", [4, 5, 100])
def test_a_limit_that_a_stream_does_not_exceed(tmp_path, accumulated, limit):
    """Lightning takes it for the length, and looks no further than the step that it trains."""
    saver, first = NotingSaver(tmp_path), Stepping()
    limits = {
        "max_epochs": NUM_EPOCHS,
        "accumulate_grad_batches": accumulated,
        "limit_train_batches": limit,
    }
    fit(first, data("stream", 3), callbacks=[saver], **limits)
    assert whole_epochs(0, 1) == examples(first.reached)
    for reached, _, file in saver.saved:
        second = Stepping()
        fit(second, data("stream", 3), ckpt_path=file, **limits)
        assert first.reached == reached + second.reached, file


class Normalizing(Model):
    """One whose running means are counted anew when its weights were averaged."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.norm = torch.nn.BatchNorm1d(1)

    def training_step(self, batch, batch_idx):
        self.norm(batch[:, None])
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("accumulated", [1, 2])
def test_an_epoch_more_for_the_means_of_averaged_weights(accumulated):
    """StochasticWeightAveraging plays it as one step of the optimizer, and asks for a step more."""
    model, averaging = Normalizing(), StochasticWeightAveraging(1e-3, swa_epoch_start=1)
    fit(
        model,
        data("indexed", 5),
        max_epochs=NUM_EPOCHS,
        accumulate_grad_batches=accumulated,
        callbacks=[averaging],
    )
    assert 2 * (NUM_EPOCHS + 1) == len(model.trained)


class Weighing(Model):
    """A weight for each example, whose gradient is the share that the optimizer has seen."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.weight = torch.nn.Parameter(torch.ones(NUM_EXAMPLES))
        self.shares = []

    def training_step(self, batch, batch_idx):
        if len(self.trained) == self.fails_at:
            raise KeyboardInterrupt
        self.trained.append(batch.tolist())
        return self.trainer.datamodule.average_loss(self.weight[batch.long() % 100])

    def on_before_optimizer_step(self, optimizer):
        self.shares.append(self.weight.grad.tolist())


@pytest.mark.parametrize("source", SOURCES)
def test_groups_begin_anew_after_a_fit_that_has_failed(source):
    """Within a group, of which Lightning has a step counted until it takes the next."""
    model, own = Weighing(fails_at=1), DataModule(SOURCES[source](), global_batch_size=1)
    trainer = fit(model, own, max_epochs=1, accumulate_grad_batches=2)
    model.fails_at, model.shares = None, []
    with silence():
        trainer.fit(model, datamodule=own)
    pairs = range(0, NUM_EXAMPLES, 2)
    assert [[0.5 * (i // 2 == first // 2) for i in range(NUM_EXAMPLES)] for first in pairs] == (
        model.shares
    )
