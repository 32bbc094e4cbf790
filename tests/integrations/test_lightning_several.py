"""Several training loaders of one Trainer: how an epoch ends, and goes on from a checkpoint."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch.utilities import CombinedLoader

import torch_distinput as tdi
from tests.integrations.lightning_runs import (
    SOURCES,
    Model,
    Saver,
    Validating,
    examples,
    fit,
    whole_epochs,
)
from torch_distinput.integrations.lightning import DataModule, Loader


class Both(DataModule):
    """Two training loaders, of 3 and 5 steps."""

    def __init__(self, mode, source="indexed"):
        super().__init__()
        self.mode, self.source = mode, source

    def train_dataloader(self):
        short = Loader(self.trainer, torch.arange(6.0), global_batch_size=2, shuffle=True)
        long = Loader(self.trainer, SOURCES[self.source](), global_batch_size=2)
        return CombinedLoader({"short": short, "long": long}, self.mode)


class TrainingOnBoth(Model):
    def training_step(self, batch, batch_idx):
        parts = {name: part for name, part in batch.items() if part is not None}
        self.trained.append({name: part.long().tolist() for name, part in parts.items()})
        loaders = self.trainer.train_dataloader
        return sum(loaders[name].average_loss(part * self.weight) for name, part in parts.items())


@pytest.mark.parametrize(
    ("mode", "source", "num_steps"),
    [
        *[("max_size_cycle", "indexed", 5), ("min_size", "indexed", 3)],
        *[("max_size", "indexed", 5), ("max_size", "stream", 5), ("min_size", "stream", 3)],
    ],
)
@pytest.mark.parametrize("limit", [1.0, 9])
def test_several_training_loaders(mode, source, num_steps, limit, tmp_path):
    """Each goes on from its own step; one that is shorter is played again in another order."""
    saver, model = Saver(tmp_path, ["on_train_batch_end", "on_train_epoch_end"]), TrainingOnBoth()
    limits = {"max_epochs": 2, "limit_train_batches": limit}
    fit(model, Both(mode, source), callbacks=[saver], **limits)
    assert 2 * num_steps == len(model.trained)
    longs = [step["long"] for step in model.trained]
    if mode != "min_size":
        assert whole_epochs(0, 1) == examples(longs)
    shorts = [step.get("short", []) for step in model.trained]
    assert {0: 1, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1} == examples(shorts[:3])
    for _, count, file in saver.saved:
        second = TrainingOnBoth()
        fit(second, Both(mode, source), ckpt_path=file, **limits)
        assert model.trained == model.trained[:count] + second.trained


@pytest.mark.parametrize(
    ("mode", "accumulated", "is_refused"),
    [
        *[("max_size_cycle", 2, True), ("max_size_cycle", 3, False), ("max_size_cycle", 4, True)],
        *[("max_size", 2, False), ("min_size", 2, False)],
    ],
)
def test_a_loader_is_not_played_again_in_the_midst_of_an_optimizer_step(
    mode, accumulated, is_refused
):
    """The mean over the examples of that step would be two means, added up."""
    model, limits = TrainingOnBoth(), {"max_epochs": 2, "accumulate_grad_batches": accumulated}
    if is_refused:
        with pytest.raises(tdi.ConfigurationError, match="of 3 steps that begins after 0 steps"):
            fit(model, Both(mode), **limits)
        assert [] == model.trained
    else:
        fit(model, Both(mode), **limits)
        assert len(model.trained) == (6 if mode == "min_size" else 10)


class Streams(Both):
    """The short one is a stream; the long one too, unless ``source`` is another."""

    def train_dataloader(self):
        sources = {
            "short": lambda: map(torch.tensor, (0.0, 1.0, 2.0)),
            "long": SOURCES[self.source](),
        }
        loaders = {
            name: Loader(self.trainer, source, global_batch_size=1 + (name == "long"))
            for name, source in sources.items()
        }
        return CombinedLoader(loaders, self.mode)


def test_the_last_steps_of_several_loaders_reach_the_optimizer():
    """Of both that are streams, though there is a limit that neither of them reaches."""
    limits = {"max_epochs": 2, "limit_train_batches": 9, "accumulate_grad_batches": 2}
    assert 6 == fit(TrainingOnBoth(), Streams("max_size", "stream"), **limits).global_step


@pytest.mark.parametrize("source", SOURCES)
def test_groups_of_loaders_that_end_nobody_knows_when_are_refused(source):
    """The long one would have divided by the examples of a step that is not trained."""
    model = TrainingOnBoth()
    with pytest.raises(tdi.ConfigurationError, match=r"got number\(s\) 0.*accumulate_grad_batches"):
        fit(model, Streams("min_size", source), max_epochs=1, accumulate_grad_batches=2)
    assert [] == model.trained


class ValidatingOnBoth(TrainingOnBoth):
    validation_step = Validating.validation_step


def test_an_epoch_ends_with_a_stream_that_is_shorter_than_what_has_a_length(tmp_path):
    """Lightning takes the other one's length for that of the epoch, and would not validate."""
    module, model = Streams("min_size", "indexed"), ValidatingOnBoth()
    saver, module.val = Saver(tmp_path), torch.arange(2.0)
    module._arguments = {"global_batch_size": 2}
    fit(model, module, callbacks=[saver], max_epochs=2)
    assert [(3, [0, 1]), (6, [0, 1])] == model.validated
    for _, count, file in saver.saved:
        second = ValidatingOnBoth()
        fit(second, Streams("min_size", "indexed"), ckpt_path=file, max_epochs=2)
        assert model.trained == model.trained[:count] + second.trained


def test_loaders_that_end_nobody_knows_when_are_not_played_over_and_over():
    """Lightning reads over the end of one before its last step is in use, and forgets the end."""
    model = TrainingOnBoth()
    with pytest.raises(tdi.ConfigurationError, match=r"got number\(s\) 1 \(from 0\).*min_size"):
        fit(model, Both("max_size_cycle", "stream"), max_epochs=1)
    assert [] == model.trained


class Plain:
    """An iterable of somebody else's, without a length and without a dataset."""

    def __iter__(self):
        return iter([torch.zeros(1)] * 3)


class BesideAnother(Both):
    def train_dataloader(self):
        long = Loader(self.trainer, SOURCES["indexed"](), global_batch_size=2)
        return CombinedLoader({"other": Plain(), "long": long}, "min_size")


class TrainingOnLong(Validating):
    def training_step(self, batch, batch_idx):
        self.trained.append(batch["long"].long().tolist())
        return self.trainer.train_dataloader["long"].average_loss(batch["long"] * self.weight)


def test_an_epoch_ends_with_an_iterable_of_somebody_else():
    module, model = BesideAnother("min_size"), TrainingOnLong()
    module.val, module._arguments = torch.arange(2.0), {"global_batch_size": 2}
    fit(model, module, max_epochs=2)
    assert [(3, [0, 1]), (6, [0, 1])] == model.validated
