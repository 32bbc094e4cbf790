"""A LightningDataModule whose loaders play distributed datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch_distinput as tdi
from torch_distinput.integrations.lightning import checks, framework
from torch_distinput.integrations.lightning.loader import Loader
from torch_distinput.integrations.lightning.signals import Signals

if TYPE_CHECKING:
    import torch


class DataModule(framework.pytorch.LightningDataModule):  # type: ignore[misc] # not checked
    """Sources for a trainer: every example once an epoch, on all ranks together.

        data = DataModule(train=table, val=other, global_batch_size=256, shuffle=True)
        trainer.fit(model, datamodule=data)

    A subclass may set ``self.train``, ``self.val``, ``self.test`` and ``self.predict`` in its
    ``setup``, or override ``train_dataloader`` and return one or several :class:`Loader`.

    Checkpoints keep where the epoch stands, after the step that was trained last. It goes on from
    there on any number of ranks, with any global batch size.

    Args:
        train: what ``Strategy.distribute_dataset`` takes.
        val: another one; one source, for one loader.
        test: as ``val``.
        predict: as ``val``.
        shuffle: of ``train`` alone, as ``distribute_dataset`` has it.
        drop_last: of ``train`` alone.
        arguments: what ``distribute_dataset`` takes for all of them: ``global_batch_size``,
            ``seed``, ``collate_fn``, ``num_workers``, ``num_threads``, ``options``; and
            ``weights``, as of :class:`Loader`.

    Raises:
        TypeError: for an argument that ``distribute_dataset`` does not take.
    """

    def __init__(
        self,
        train: Any = None,
        *,
        val: Any = None,
        test: Any = None,
        predict: Any = None,
        shuffle: bool = False,
        drop_last: bool = False,
        **arguments: Any,
    ) -> None:
        self._signals = Signals()
        self._trainer: Any = None
        super().__init__()
        self.train, self.val, self.test, self.predict = train, val, test, predict
        checks.check_dataset_arguments(arguments)
        self._for_training = {"shuffle": shuffle, "drop_last": drop_last}
        self._arguments = arguments

    @property
    def trainer(self) -> Any:
        """The trainer that it belongs to; Lightning sets it before anything else."""
        return self._trainer

    @trainer.setter
    def trainer(self, trainer: Any) -> None:
        self._trainer = trainer
        if trainer is None:
            return
        self.input_progress.follow(trainer)
        if self._signals not in trainer.callbacks:
            trainer.callbacks = [*trainer.callbacks, self._signals]

    @property
    def input_progress(self) -> Any:
        """How far its training loaders are."""
        return self._signals.input_progress

    def train_dataloader(self) -> Any:
        """Return the training loader."""
        return self._load("train", self.train, **self._for_training)

    def val_dataloader(self) -> Any:
        """Return the loader for validation; none where ``fit`` has nothing to validate with."""
        if self.val is None and self.trainer is not None and self.trainer.state.fn == "fit":
            return []
        return self._load("val", self.val)

    def test_dataloader(self) -> Any:
        """Return the loader for tests."""
        return self._load("test", self.test)

    def predict_dataloader(self) -> Any:
        """Return the loader for predictions."""
        return self._load("predict", self.predict)

    def _load(self, name: str, source: Any, **arguments: Any) -> Loader:
        if source is None:
            msg = (
                f"Expected a source for {name}, got none. Pass {name}=..., set self.{name} in "
                f"setup(), or override {name}_dataloader()."
            )
            raise tdi.UsageError(msg)
        if self.trainer is None:
            msg = (
                f"Expected a Trainer that plays the loader of {name}, got none: trainer.fit(model, "
                "datamodule=...) and its like set it. To look at a batch without, write "
                'next(iter(tdi.OneDeviceStrategy("cpu").distribute_dataset(source, ...))).'
            )
            raise tdi.UsageError(msg)
        return Loader(self.trainer, source, **self._arguments, **arguments)

    @property
    def loader(self) -> Loader:
        """The loader whose step is in use: of training, or of the evaluation that is under way.

        Raises:
            UsageError: before the first step; where several train at once: ask
                ``trainer.train_dataloader`` for each.
        """
        loaders = self._signals.in_use
        if not loaders:
            msg = (
                "Expected a step in use, got none: Lightning has not begun one, or its "
                "callbacks are missing: Tuner.lr_find and Tuner.scale_batch_size, or the finders "
                "that call them, remove all while they run. Ask in training_step or another step; "
                "find a learning rate or a batch size with a DataLoader."
            )
            raise tdi.UsageError(msg)
        if len(loaders) != 1:
            msg = (
                f"Expected one loader, got {len(loaders)} whose steps make up a batch together. "
                'Ask each of them, as in self.trainer.train_dataloader["a"].average_loss(losses).'
            )
            raise tdi.UsageError(msg)
        return loaders[0]

    @property
    def step(self) -> tdi.Step:
        """The step in use, as :attr:`Loader.step`."""
        return self.loader.step

    def average_loss(
        self, per_example_loss: torch.Tensor, *, per: Literal["example", "token"] | None = None
    ) -> torch.Tensor:
        """The loss that ``training_step`` returns, as :meth:`Loader.average_loss`."""
        return self.loader.average_loss(per_example_loss, per=per)

    def average(self, per_example_value: torch.Tensor) -> torch.Tensor:
        """The mean over the step in use for ``self.log``, as :meth:`Loader.average`."""
        return self.loader.average(per_example_value)

    def state_dict(self) -> dict[str, Any]:
        """Where the training loaders stand, after the step that was trained last."""
        return self._signals.save_inputs()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""
        self.input_progress.load_state_dict(state_dict)
