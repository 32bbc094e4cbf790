"""What cannot be played exactly is refused on every rank, with its cure."""

from __future__ import annotations

import subprocess
import sys
import warnings
from importlib import metadata

import lightning.pytorch as pl
import pytest
from lightning.fabric import Fabric
from lightning.pytorch.tuner import Tuner
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import torch_distinput as tdi
from tests.commands import LIMIT_SECONDS
from tests.integrations.lightning_runs import (
    Indexed,
    Model,
    Saver,
    data,
    examples,
    fit,
    make_trainer,
    silence,
    whole_epochs,
)
from torch_distinput.integrations import versions
from torch_distinput.integrations.lightning import DataModule, InputState, Loader


class Plain(Model):
    def training_step(self, batch, batch_idx):
        self.trained.append(batch.long().tolist())
        return (batch * self.weight).mean()


class Evaluated(Model):
    def validation_step(self, batch, batch_idx):
        return batch.sum()


class OneLoader(Evaluated):
    """Evaluates and trains with the same loader."""

    def train_dataloader(self):
        if not hasattr(self, "loader"):
            self.loader = Loader(self.trainer, Indexed(), global_batch_size=4)
        return self.loader

    val_dataloader = train_dataloader

    def training_step(self, batch, batch_idx):
        return self.loader.average_loss(batch * self.weight)


class OfLightning(pl.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(Indexed(), batch_size=4)


def save_with(module, tmp_path, model=None):
    saver = Saver(tmp_path, ["on_train_batch_end", "on_train_epoch_end"])
    fit(model or Plain(), module, callbacks=[saver], max_epochs=1)
    return [file for *_, file in saver.saved]


def test_a_checkpoint_of_another_loader(tmp_path):
    """In the middle of an epoch it cannot tell what was trained; at its end there is no need."""
    inside, *_, end = save_with(OfLightning(), tmp_path)
    with pytest.raises(tdi.ConfigurationError, match="saved 1 steps into its epoch and does not"):
        fit(Model(), data("indexed", 4), ckpt_path=inside, max_epochs=2)
    model = Model()
    fit(model, data("indexed", 4), ckpt_path=end, max_epochs=2)
    assert whole_epochs(1) == examples(model.trained)


def test_a_state_of_something_else(tmp_path):
    class DataModule(OfLightning):
        """Of the name under which ours looks for its state."""

        def state_dict(self):
            return {"position": 1}

    DataModule.__qualname__ = "DataModule"
    inside, *_ = save_with(DataModule(), tmp_path)
    with pytest.raises(ValueError, match="Expected a state of this DataModule.*'position'"):
        fit(Model(), data("indexed", 4), ckpt_path=inside, max_epochs=2)


@pytest.mark.parametrize(
    "other", [{"source": "stream"}, {"source": "indexed", "seed": 1}], ids=["source", "seed"]
)
def test_a_state_of_another_dataset(tmp_path, other):
    inside, *_ = save_with(data("indexed", 4), tmp_path, Model())
    with pytest.raises(tdi.ConfigurationError):
        fit(Model(), data(global_batch_size=4, **other), ckpt_path=inside, max_epochs=2)


def test_another_number_of_loaders(tmp_path):
    class Two(DataModule):
        def train_dataloader(self):
            return [Loader(self.trainer, Indexed(), global_batch_size=4) for _ in range(2)]

        load_state_dict = DataModule.load_state_dict

    inside, *_ = save_with(data("indexed", 4), tmp_path, Model())
    Two.__qualname__ = "DataModule"
    with pytest.raises(tdi.ConfigurationError, match=r"Expected 1 training loader\(s\).*got 2"):
        fit(Model(), Two(), ckpt_path=inside, max_epochs=2)


def test_a_loader_without_a_keeper_of_its_state():
    with pytest.raises(tdi.UsageError, match=r"Trainer\(callbacks=\[InputState\(\)\]\)"):
        Loader(make_trainer(), Indexed(), global_batch_size=4)


def test_a_dataloader_around_a_loader():
    class Wrapping(DataModule):
        def train_dataloader(self):
            return DataLoader(super().train_dataloader(), batch_size=2)

    with pytest.raises(tdi.UsageError, match="Expected a Loader to be iterated as it is"):
        fit(Model(), Wrapping(Indexed(), global_batch_size=4), max_epochs=1)


def test_a_distributed_sampler_in_the_source():
    sampler = DistributedSampler(Indexed(), num_replicas=2, rank=0)
    loader = DataLoader(Indexed(), batch_size=4, sampler=sampler)
    with pytest.raises(ValueError, match="DistributedSampler"):
        fit(Model(), DataModule(loader), max_epochs=1)


def test_a_dataset_that_is_distributed_already():
    """By another integration, or by hand."""
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(Indexed(), global_batch_size=4)
    with pytest.raises((TypeError, ValueError), match="distributed"):
        fit(Model(), DataModule(dataset), max_epochs=1)


def test_fabric_takes_no_loader():
    loader = Loader(make_trainer(callbacks=[InputState()]), Indexed(), global_batch_size=4)
    with pytest.raises(TypeError, match="Only PyTorch DataLoader"):
        Fabric(accelerator="cpu").setup_dataloaders(loader)


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_a_stage_without_a_source(stage):
    name = {"validate": "val"}.get(stage, stage)
    module = DataModule(Indexed(), global_batch_size=4)
    model = Model()
    model.validation_step = model.test_step
    with pytest.raises(tdi.UsageError, match=f"Pass {name}=..., set self.{name} in setup"):
        getattr(make_trainer(), stage)(model, datamodule=module)


@pytest.mark.parametrize("name", ["batch_size", "train_dataset", "source"])
def test_an_argument_that_nobody_takes(name):
    """Where it is written, not where training begins."""
    with pytest.raises(TypeError, match=f"sources .train.* and .*global_batch_size.*got {name}="):
        DataModule(Indexed(), **{name: 4})


@pytest.mark.parametrize("name", ["train", "val"])
def test_a_loader_before_there_is_a_trainer(name):
    module = DataModule(Indexed(), val=Indexed(), global_batch_size=4)
    with pytest.raises(tdi.UsageError, match=f"Expected a Trainer that plays the loader of {name}"):
        getattr(module, f"{name}_dataloader")()


def test_a_step_before_there_is_one():
    class Asking(Model):
        def on_train_start(self):
            return self.trainer.train_dataloader.step

    with pytest.raises(tdi.UsageError, match="Expected a step in use, got none"):
        fit(Asking(), data("indexed", 4), max_epochs=1)


def test_a_tuner_that_takes_the_callbacks_away(tmp_path):
    class Tuned(Model):
        lr = 0.1

    trainer = make_trainer(max_epochs=1, default_root_dir=tmp_path)
    with silence(), pytest.raises(tdi.UsageError, match="got none.*find a learning rate or"):
        Tuner(trainer).lr_find(Tuned(), datamodule=data("indexed", 4), num_training=2)


def test_a_step_that_reads_by_itself():
    class Reading(Model):
        def training_step(self, dataloader_iter):
            raise AssertionError

    with pytest.raises(tdi.UsageError, match="Expected training_step.*with dataloader_iter"):
        fit(Reading(), data("indexed", 4), max_epochs=1)


def test_a_version_that_was_not_tested(monkeypatch):
    monkeypatch.setattr(versions, "_told", set())
    monkeypatch.setattr(metadata, "version", lambda package: "2.9.1")
    trainer = make_trainer(callbacks=[InputState()])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("ignore")  # of what is collected meanwhile
        warnings.simplefilter("always", UserWarning)
        for _ in range(2):
            Loader(trainer, Indexed(), global_batch_size=4)
    (warning,) = told
    assert "Expected lightning 2.6" in str(warning.message)
    assert "got lightning 2.9.1" in str(warning.message)


def test_a_trainer_that_would_not_go_on_in_an_epoch(monkeypatch):
    """A version that has given another name to what is set."""
    monkeypatch.delattr(type(make_trainer().fit_loop), "restarted_on_epoch_end")
    with pytest.raises(tdi.ConfigurationError, match="restarted_on_epoch_end in its _FitLoop"):
        fit(Model(), data("indexed", 4), max_epochs=1)


OTHER_NAME = """
import pytorch_lightning as pl, torch
from torch_distinput.integrations.lightning import DataModule

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def training_step(self, batch, batch_idx):
        print("trained", *batch.tolist())
        return self.trainer.datamodule.average_loss(batch * self.weight)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

assert issubclass(DataModule, pl.LightningDataModule)
trainer = pl.Trainer(accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False)
trainer.fit(Model(), datamodule=DataModule(torch.arange(5), global_batch_size=3))
"""


def test_the_other_name_of_lightning(tmp_path):
    pytest.importorskip("pytorch_lightning")
    command = [sys.executable, "-W", "ignore", "-c", OTHER_NAME]
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=True, cwd=tmp_path
    )
    lines = [line.rpartition("trained")[2] for line in run.stdout.splitlines() if "trained" in line]
    assert [" 0 1 2", " 3 4"] == lines


def test_ranks_that_train_by_themselves(monkeypatch):
    """Under torchrun a Trainer has to be told of the ranks; one of them may evaluate for all."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    module = DataModule(Indexed(), val=Indexed(), global_batch_size=4)
    with pytest.raises(tdi.UsageError, match=r"over the 2 ranks .* got one of a single device"):
        fit(Model(), module, max_epochs=1)
    trainer = make_trainer(max_epochs=1)
    with silence():
        trainer.validate(Evaluated(), module, verbose=False)
    with silence(), pytest.raises(tdi.UsageError, match="one of a single device"):
        trainer.fit(Evaluated(), module)
    trainer, model = make_trainer(max_epochs=1, callbacks=[InputState()]), OneLoader()
    with silence():
        trainer.validate(model, verbose=False)
    with silence(), pytest.raises(tdi.UsageError, match="one of a single device"):
        trainer.fit(model)
    monkeypatch.setenv("WORLD_SIZE", "")
    assert fit(Model(), module, max_epochs=1).global_step > 0
