"""Runs of Lightning that note what they train, in this process and on the ranks of the test kit."""

from __future__ import annotations

import contextlib
import gc
import logging
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins.environments import ClusterEnvironment
from torch.utils.data import Dataset, IterableDataset

from torch_distinput.integrations.lightning import DataModule

NUM_EXAMPLES = 10
QUIET = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
}


class Indexed(Dataset):
    """Examples whose number is known: 100 times the epoch, and their own number."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return NUM_EXAMPLES

    def __getitem__(self, index):
        return torch.tensor(100.0 * self.epoch + index)


class Stream(IterableDataset):
    """The same examples, as many as come."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return (torch.tensor(100.0 * self.epoch + index) for index in range(NUM_EXAMPLES))


SOURCES = {"indexed": Indexed, "stream": Stream}


class Model(pl.LightningModule):  # type: ignore[misc] # not checked
    """One weight, and a note of each batch: of training as (rows of this rank, in sync)."""

    def __init__(self, *, fails_at=None):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.fails_at = fails_at
        self.trained, self.epochs = [], []
        self.validated, self.tested = [], []

    def training_step(self, batch, batch_idx):
        if len(self.trained) == self.fails_at:
            raise KeyboardInterrupt
        self.trained.append(batch.long().tolist())
        self.epochs.append(self.current_epoch)
        return self.trainer.datamodule.average_loss(batch * self.weight)

    def test_step(self, batch, batch_idx):
        self.tested.append(batch.long().tolist())

    def predict_step(self, batch, batch_idx):
        return 2 * batch

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-6)


class Validating(Model):
    def validation_step(self, batch, batch_idx):
        self.validated.append((len(self.trained), batch.long().tolist()))


class Saver(pl.Callback):  # type: ignore[misc]
    """Saves wherever a checkpoint may be saved: (where, after how many steps, file)."""

    HOOKS = (
        *("on_train_epoch_start", "on_train_batch_end", "on_validation_end"),
        *("on_train_epoch_end", "on_exception"),
    )

    def __init__(self, folder, hooks=HOOKS):
        self.saved = []
        for hook in hooks:
            setattr(self, hook, self.saving(hook, Path(folder)))

    def saving(self, hook, folder):
        def save(trainer, model, *_):
            file = str(folder / f"{hook}-{len(model.trained)}.ckpt")
            trainer.save_checkpoint(file)
            self.saved.append((hook, len(model.trained), file))

        return save


@contextlib.contextmanager
def silence():
    """What Lightning says of small runs is no news here; what we say of them is."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        for module in ("lightning", "torch"):
            warnings.filterwarnings("ignore", module=module)
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def make_trainer(**arguments: Any) -> pl.Trainer:
    return pl.Trainer(**{**QUIET, **arguments})


def fit(model, data, *, ckpt_path=None, **arguments):
    """Train; where Lightning ends the process for an interrupt, be there again."""
    with silence(), contextlib.suppress(SystemExit):
        trainer = make_trainer(**arguments)
        trainer.fit(model, datamodule=data, ckpt_path=ckpt_path, weights_only=False)
    return trainer


class Ranks(ClusterEnvironment):  # type: ignore[misc]
    """Those of the test kit, which have their process group already."""

    creates_processes_externally = True
    main_address = "127.0.0.1"
    main_port = 0

    def __init__(self, strategy):
        self.strategy = strategy

    @staticmethod
    def detect():
        return True

    def world_size(self):
        return self.strategy.num_workers

    def set_world_size(self, size):
        pass

    def global_rank(self):
        return self.strategy.worker_index

    def set_global_rank(self, rank):
        pass

    def local_rank(self):
        return self.strategy.worker_index

    def node_rank(self):
        return 0


def on_ranks(strategy):
    """The arguments of a Trainer with DDP on the ranks of the test kit; alone for one."""
    if strategy.num_workers == 1:
        return {}
    ranks = Ranks(strategy)
    return {"devices": strategy.num_workers, "strategy": "ddp", "plugins": [ranks]}


def data(source, global_batch_size, **arguments):
    """A DataModule; what has an index is shuffled."""
    shuffled = {"shuffle": source == "indexed"}
    return DataModule(
        SOURCES[source](), **{"global_batch_size": global_batch_size, **shuffled, **arguments}
    )


def examples(steps):
    """Count the examples of a rank's steps, or of all ranks' steps."""
    return Counter(example for step in steps for example in step)


def whole_epochs(*epochs):
    return Counter(100 * epoch + index for epoch in epochs for index in range(NUM_EXAMPLES))


def collect_models():
    """DDP must be gone before its process group is."""
    gc.collect()
