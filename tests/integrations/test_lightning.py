"""What a Trainer does with our loaders: validation, limits, several loaders, its progress bar."""

from __future__ import annotations

import logging

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.strategies import SingleDeviceStrategy

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
from torch_distinput.integrations.lightning import DataModule, InputState, Loader


@pytest.mark.parametrize("source", SOURCES)
def test_validation_inside_an_epoch(source):
    """After 2 of 3 steps, and each time with all of its examples."""
    model = Validating()
    fit(model, data(source, 4, val=range(5)), max_epochs=2, val_check_interval=2)
    assert whole_epochs(0, 1) == examples(model.trained)
    assert [(2, [0, 1, 2, 3]), (2, [4]), (5, [0, 1, 2, 3]), (5, [4])] == model.validated


@pytest.mark.parametrize("source", SOURCES)
def test_the_sanity_check_uses_nothing_up(source):
    model = Validating()
    val = SOURCES[source]()
    module = data(source, 4, val=val)
    fit(model, module, max_epochs=1, num_sanity_val_steps=1)
    assert [(0, [0, 1, 2, 3])] == model.validated[:1]
    assert whole_epochs(0) == examples(batch for _, batch in model.validated[1:])
    assert whole_epochs(0) == examples(model.trained)


@pytest.mark.parametrize("source", SOURCES)
def test_a_limit_ends_an_epoch_and_says_what_it_leaves_out(source, tmp_path, caplog):
    saver, model = Saver(tmp_path), Model()
    limits = {"limit_train_batches": 2, "max_epochs": 3}
    caplog.set_level(logging.WARNING, "torch_distinput")
    fit(model, data(source, 4), callbacks=[saver], **limits)
    assert [8, 8, 8] == [len(examples(model.trained[i : i + 2])) for i in (0, 2, 4)]
    assert [0, 0, 1, 1, 2, 2] == [batch[0] // 100 for batch in model.trained]
    (told,) = [record.getMessage() for record in caplog.records]
    known = " of 3" if source == "indexed" else ""
    assert f"ended epoch 0 after 2{known} steps" in told
    assert f"its source ({SOURCES[source].__name__})" in told
    assert "in another order with shuffle=True, otherwise with the same examples again" in told
    for _, count, file in saver.saved:
        second = Model()
        fit(second, data(source, 4), ckpt_path=file, **limits)
        assert model.trained == model.trained[:count] + second.trained


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    "limits",
    [{"fast_dev_run": True}, {"limit_train_batches": 1}, {"overfit_batches": 1}],
    ids=lambda limits: next(iter(limits)),
)
def test_one_step_is_a_limit_and_not_all_of_an_epoch(source, limits):
    model = Model()
    fit(model, data(source, 4, shuffle=False), **{"max_epochs": 1, **limits})
    assert [[0, 1, 2, 3]] == model.trained


@pytest.mark.parametrize("argument", ["limit_train_batches", "limit_val_batches"])
def test_a_fraction_of_nobody_knows_how_many_is_refused(argument):
    module = data("stream", 4, val=SOURCES["stream"]())
    with pytest.raises(ValueError, match=rf"Trainer\({argument}=.*got 0.5.*Pass {argument}=100"):
        fit(Validating(), module, max_epochs=1, **{argument: 0.5})


def test_so_is_a_fraction_of_an_epoch_between_validations():
    with pytest.raises(ValueError, match=r"Pass val_check_interval=100"):
        fit(Validating(), data("stream", 4), max_epochs=1, val_check_interval=0.5)


@pytest.mark.parametrize("source", SOURCES)
def test_overfitting_repeats_the_same_batches(source):
    model = Model()
    fit(model, data(source, 4), max_epochs=3, overfit_batches=2)
    assert model.trained[:2] * 3 == model.trained


@pytest.mark.parametrize("source", SOURCES)
def test_loaders_that_are_asked_for_in_each_epoch(source, tmp_path):
    saver, model = Saver(tmp_path), Model()
    arguments = {"max_epochs": 3, "reload_dataloaders_every_n_epochs": 1}
    fit(model, data(source, 4), callbacks=[saver], **arguments)
    assert whole_epochs(0, 1, 2) == examples(model.trained)
    for _, count, file in saver.saved:
        second = Model()
        fit(second, data(source, 5), ckpt_path=file, **arguments)
        assert whole_epochs(0, 1, 2) == examples(model.trained[:count] + second.trained)


class LateRestore(SingleDeviceStrategy):
    """Restores after the optimizers are made, as FSDP does."""

    restore_checkpoint_after_setup = True


class Estimating(Model):
    def configure_optimizers(self):
        self.estimated = self.trainer.estimated_stepping_batches
        return super().configure_optimizers()


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("size", [4, 1, 7])
def test_a_state_that_comes_after_the_loader_was_asked_for(source, size, tmp_path):
    saver, model = Saver(tmp_path, ["on_train_batch_end"]), Estimating()
    fit(model, data(source, 4), callbacks=[saver], max_epochs=2)
    for _, count, file in saver.saved:
        second = Estimating()
        late = LateRestore(device=torch.device("cpu"))
        fit(second, data(source, size), ckpt_path=file, max_epochs=2, strategy=late)
        assert whole_epochs(0, 1) == examples(model.trained[:count] + second.trained)


@pytest.mark.parametrize("source", SOURCES)
def test_a_limit_at_the_end_of_the_data_leaves_nothing_out(source, tmp_path, caplog):
    """Of a stream, too, whose end is known when its last step is in use."""
    saver, model = Saver(tmp_path), Model()
    caplog.set_level(logging.WARNING, "torch_distinput")
    fit(model, data(source, 4), callbacks=[saver], limit_train_batches=3, max_epochs=2)
    assert whole_epochs(0, 1) == examples(model.trained)
    assert [] == caplog.records
    for _, count, file in saver.saved:
        second = Model()
        fit(second, data(source, 4), ckpt_path=file, limit_train_batches=3, max_epochs=2)
        assert model.trained == model.trained[:count] + second.trained


class Bar(TQDMProgressBar):
    """Notes what it shows at the end of each epoch."""

    def __init__(self):
        super().__init__()
        self.shown = []

    def on_train_epoch_end(self, trainer, pl_module):
        super().on_train_epoch_end(trainer, pl_module)
        self.shown.append((self.train_progress_bar.n, self.train_progress_bar.total))


def test_the_progress_bar_counts_right(tmp_path, capsys):
    """Of epochs of 3 steps; gone on after 2 of them with batches of 1: 2 + 2, then 10."""
    del capsys  # takes what it prints
    bar, saver = Bar(), Saver(tmp_path, ["on_train_batch_end"])
    arguments = {"enable_progress_bar": True, "max_epochs": 2}
    fit(Model(), data("indexed", 4), callbacks=[bar, saver], **arguments)
    assert [(3, 3), (3, 3)] == bar.shown
    again = Bar()
    fit(Model(), data("indexed", 1), ckpt_path=saver.saved[1][2], callbacks=[again], **arguments)
    assert [(4, 4), (10, 10)] == again.shown


def test_validate_test_and_predict():
    model, trainer = Validating(), make_trainer()
    sources = {name: torch.arange(count) for name, count in (("val", 5), ("test", 6))}
    module = DataModule(**sources, predict=torch.arange(7), global_batch_size=4, shuffle=True)
    with silence():
        trainer.validate(model, datamodule=module)
        trainer.test(model, datamodule=module)
        predicted = trainer.predict(model, datamodule=module)
    assert [(0, [0, 1, 2, 3]), (0, [4])] == model.validated
    assert [[0, 1, 2, 3], [4, 5]] == model.tested
    assert [0, 2, 4, 6, 8, 10, 12] == torch.cat(predicted).tolist()


class WithItsOwn(Model):
    """A LightningModule that has its loaders."""

    def __init__(self, source="indexed", size=4):
        super().__init__()
        self.source, self.size = source, size

    def train_dataloader(self):
        return Loader(self.trainer, SOURCES[self.source](), global_batch_size=self.size)

    def training_step(self, batch, batch_idx):
        self.trained.append(batch.long().tolist())
        return self.trainer.train_dataloader.average_loss(batch * self.weight)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_module_with_loaders_of_its_own(source, is_first, tmp_path):
    saver, model = Saver(tmp_path), WithItsOwn(source)
    callbacks = [InputState(), saver] if is_first else [saver, InputState()]
    fit(model, None, callbacks=callbacks, max_epochs=2)
    assert whole_epochs(0, 1) == examples(model.trained)
    for _, count, file in saver.saved:
        second = WithItsOwn(source, size=5)
        fit(second, None, ckpt_path=file, callbacks=[InputState()], max_epochs=2)
        assert whole_epochs(0, 1) == examples(model.trained[:count] + second.trained)


@pytest.mark.parametrize("source", SOURCES)
def test_a_state_is_stored_once(source, tmp_path):
    saver = Saver(tmp_path, ["on_train_batch_end"])
    fit(Model(), data(source, 4), callbacks=[saver], max_epochs=1)
    checkpoint = torch.load(saver.saved[1][2], weights_only=False)
    assert 8 == checkpoint["DataModule"]["loaders"][0]["input"]["examples"]
    assert [{}] == checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"]
    assert {} == checkpoint["callbacks"]


def test_a_trainer_of_its_own_begins_with_epoch_0():
    """A DataModule that another trainer has trained with."""
    module, models = data("indexed", 4), [Model(), Model()]
    for model in models:
        fit(model, module, max_epochs=2)
    assert models[0].trained == models[1].trained


def test_a_trainer_that_goes_on_plays_the_next_epochs():
    module, model, trainer = data("indexed", 4), Model(), make_trainer(max_epochs=2)
    with silence():
        trainer.fit(model, datamodule=module)
        trainer.fit_loop.max_epochs = 4
        trainer.fit(model, datamodule=module)
    assert whole_epochs(0, 1, 2, 3) == examples(model.trained)
    assert isinstance(trainer, pl.Trainer)


@pytest.mark.parametrize("source", SOURCES)
def test_batches_by_a_token_budget(source):
    """An epoch is as many steps as batches fit, and each example is trained once."""
    model = Model()
    budget = tdi.TokenBudget(4, length=lambda example: 1 + int(example) % 2)
    fit(model, data(source, budget, shuffle=False), max_epochs=2)
    assert whole_epochs(0, 1) == examples(model.trained)
    assert [[0, 1, 2], [3, 4], [5, 6], [7, 8], [9]] == model.trained[:5]
