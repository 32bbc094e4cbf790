"""Checkpoints of Lightning at odd moments: when a scheduler fails, and after another trainer."""

from __future__ import annotations

import os
import pickle

import lightning.pytorch as pl
import pytest
import torch

import torch_distinput as tdi
from tests.integrations.lightning_runs import (
    SOURCES,
    Model,
    Saver,
    Validating,
    data,
    examples,
    fit,
    make_trainer,
    silence,
    whole_epochs,
)
from torch_distinput.integrations.lightning import InputState, Loader


class Scheduled(Model):
    """Its scheduler fails behind a number of steps of the optimizer, as OneCycleLR may."""

    fails_behind = None

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step()
        if self.trainer.global_step == self.fails_behind:
            raise KeyboardInterrupt


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("accumulated", [1, 2])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_step_behind_which_a_scheduler_fails_was_trained(tmp_path, source, accumulated, count):
    """Lightning counts it, though it has told nobody yet."""
    arguments = {"accumulate_grad_batches": accumulated, "max_epochs": 2}
    saver, first, second = Saver(tmp_path, ["on_exception"]), Scheduled(), Scheduled()
    first.fails_behind = count
    fit(first, data(source, 2), callbacks=[saver], **arguments)
    ((_, _, file),) = saver.saved
    trainer = fit(second, data(source, 2), ckpt_path=file, **arguments)
    assert whole_epochs(0, 1) == examples(first.trained + second.trained)
    assert 2 * -(-5 // accumulated) == trainer.global_step


@pytest.mark.parametrize("keeps", ["DataModule", "InputState"])
def test_another_trainer_that_plays_the_same_data(tmp_path, keeps):
    """The place of the first one is lost, which it must not save inside of an epoch."""
    played = data("indexed", 4, val=range(3))
    callbacks = []
    if keeps == "InputState":
        callbacks, played = [InputState()], OwnLoaders()
    with silence():
        trainer = fit(Validating(), played, max_steps=2, callbacks=callbacks)
        make_trainer(callbacks=callbacks).validate(Validating(), datamodule=played, verbose=False)
        with pytest.raises(tdi.UsageError, match="give the other trainer"):
            trainer.save_checkpoint(tmp_path / "inside.ckpt")
        trainer = fit(Validating(), played, max_epochs=1, callbacks=callbacks)
        make_trainer(callbacks=callbacks).validate(Validating(), datamodule=played, verbose=False)
        trainer.save_checkpoint(tmp_path / "behind.ckpt")  # nothing is lost of an epoch


@pytest.mark.parametrize("source", SOURCES)
def test_a_step_that_a_hook_has_skipped_was_not_trained(tmp_path, source):
    """Nor any after it in the epoch, which Lightning leaves."""

    class Skipping(Model):
        def on_train_batch_start(self, batch, batch_idx):
            return -1 if batch_idx == 2 else None

    saver, first = Saver(tmp_path, ["on_train_epoch_end"]), Skipping()
    fit(first, data(source, 4), callbacks=[saver], max_epochs=2)
    assert 4 == len(first.trained)
    inputs = torch.load(saver.saved[0][2], weights_only=False)["DataModule"]["loaders"]
    assert [2] == [one["input"]["steps"] for one in inputs]


def test_another_trainer_that_plays_other_data():
    """Also with data that the first one has tested only, which has no place to be forgotten."""
    train, test = data("indexed", 4), data("indexed", 4, test=range(3))
    with silence():
        trainer = fit(Model(), train, max_steps=1)
        trainer.test(trainer.lightning_module, datamodule=test, verbose=False)
        make_trainer().test(Model(), datamodule=test, verbose=False)
        trainer.save_checkpoint(os.devnull)


@pytest.mark.parametrize("make", [lambda: data("indexed", 4), InputState])
def test_what_was_not_trained_yet_goes_to_other_processes(make):
    """As Lightning takes it where it starts them itself."""
    assert {} == pickle.loads(pickle.dumps(make())).state_dict()


class OwnLoaders(pl.LightningDataModule):
    """Makes loaders itself."""

    def train_dataloader(self):
        return self.load(range(10))

    def val_dataloader(self):
        return self.load(range(3))

    def average_loss(self, losses):
        return self.trainer.train_dataloader.average_loss(losses)

    def load(self, rows):
        return Loader(self.trainer, torch.tensor(list(rows)) * 1.0, global_batch_size=4)
