"""When a step goes into use, and when it was trained: Lightning tells its callbacks.

Lightning                          here
asks a loader for a step           it is delivered: perhaps one ahead of use
on_..._batch_start                 the oldest of those delivered goes into use
on_train_batch_end                 it was trained: a state stands after it if the optimizer stepped
on_train_start, on_train_epoch_end the epoch to come may have another number of steps
"""

from __future__ import annotations

from typing import Any, final

import torch_distinput as tdi
from torch_distinput.integrations.lightning import checks, framework
from torch_distinput.integrations.lightning.loader import Loader
from torch_distinput.integrations.lightning.training_progress import TrainingProgress


class Signals(framework.pytorch.Callback):  # type: ignore[misc] # Lightning is not checked
    """Tells the loaders of a trainer which of their steps is in use."""

    def __init__(self) -> None:
        self.input_progress = TrainingProgress()
        self.in_use: list[Loader] = []
        self._training: Any = None  # the trainer, while a step of its training is in use
        self._reloads_every: int | None = None
        self._is_shown = False

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Lightning begins something; its processes are there.

        This comes first from now on, so that a checkpoint of another callback knows of the step it
        is saved at.
        """
        if stage == "fit":
            framework.forget_failed_epoch(trainer)
        others = [callback for callback in trainer.callbacks if callback is not self]
        trainer.callbacks = [self, *others]
        framework.check_trainer(trainer)
        checks.check_steps(pl_module)
        self.input_progress.follow(trainer)

    def on_load_checkpoint(
        self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]
    ) -> None:
        """Lightning is about to load how far it was; of ours, a DataModule is loaded already."""
        del trainer, pl_module
        state = checkpoint["callbacks"].get(self.state_key)
        if state is not None:
            self.input_progress.load_state_dict(state)
        self.input_progress.repair(checkpoint)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Lightning has found out in which epoch it goes on."""
        del pl_module
        self._is_shown = False
        framework.count_epoch_as_ready(trainer)
        loaders = _ours(framework.training_loaders(trainer))
        if any(loader.begins_epoch for loader in loaders):
            framework.begin_epoch_anew(trainer)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """The loaders were asked for again."""
        del pl_module
        self.input_progress.count(is_waiting=False)  # gradients of an epoch left early are lost
        self._is_shown = True
        if self._reloads_every is not None:
            trainer.reload_dataloaders_every_n_epochs = self._reloads_every
            self._reloads_every = None

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """A step of each training loader goes into use."""
        del batch, batch_idx
        self.input_progress.follow(trainer)  # again: another one may have played meanwhile
        self._training = trainer
        framework.note_ends(trainer, self._begin(framework.loaders_in_use(trainer)))
        if not self._is_shown:
            self._is_shown = True
            framework.show_epoch(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """The steps in use were trained."""
        del trainer, pl_module, outputs, batch, batch_idx
        self._end_step()

    def _end_step(self) -> None:
        if self._training is None:
            return
        is_waiting = framework.has_gradients_left(self._training)
        self._training = None
        for loader in self.in_use:
            loader.end_step(is_waiting=is_waiting)
        self.input_progress.count(is_waiting=is_waiting)

    def save_inputs(self) -> dict[str, Any]:
        """Where the training loaders stand after the step that Lightning counts last.

        It does so before ``on_train_batch_end``. A scheduler may fail between the two, and a
        checkpoint be saved for that.
        """
        if self._training is not None and framework.counts_step(self._training):
            self._end_step()
        return self.input_progress.state_dict()

    def on_save_checkpoint(
        self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]
    ) -> None:
        """Refuse a checkpoint inside of an epoch whose place another trainer has made us forget."""
        del pl_module, checkpoint
        if self.input_progress.has_forgotten(trainer) and framework.is_inside_epoch(trainer):
            msg = (
                "Expected the trainer that has played this DataModule last, got one inside of an "
                "epoch after which another one has played it: a checkpoint would not know where "
                "the epoch stands. Save before, or give the other trainer a DataModule, or "
                "InputState, of its own."
            )
            raise tdi.UsageError(msg)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Have Lightning count again where the next epoch has another number of steps."""
        del pl_module
        self._training = None  # it has skipped the step in use
        loaders = _ours(framework.training_loaders(trainer))
        for loader in loaders:
            loader.end_epoch()
        if any(loader.was_resumed for loader in loaders):
            self._reloads_every = trainer.reload_dataloaders_every_n_epochs
            trainer.reload_dataloaders_every_n_epochs = 1

    def _begin_evaluation(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """A step of the loader that is played goes into use."""
        del pl_module, batch, batch_idx
        self._begin(framework.loaders_in_use(trainer, dataloader_idx))

    def _begin(self, loaders: list[Any]) -> list[bool]:
        """Whether each loader is known to have no other step."""
        self.in_use = _ours(loaders)
        return [loader.begin_step() for loader in self.in_use]

    on_validation_batch_start = _begin_evaluation
    on_test_batch_start = _begin_evaluation
    on_predict_batch_start = _begin_evaluation


@final
class InputState(Signals):
    """A callback that keeps in checkpoints where the training loaders stand.

    For a LightningModule or a LightningDataModule with loaders of its own; a :class:`DataModule`
    does it itself.

        Trainer(callbacks=[InputState()])
    """

    def state_dict(self) -> dict[str, Any]:
        """Where the training loaders stand after the step that was trained last."""
        return self.save_inputs()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""
        self.input_progress.load_state_dict(state_dict)


def _ours(loaders: list[Any]) -> list[Loader]:
    return [loader for loader in loaders if isinstance(loader, Loader)]
