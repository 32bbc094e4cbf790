"""What was trained, for checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, final

import torch_distinput as tdi
from torch_distinput.integrations.lightning import framework
from torch_distinput.integrations.lightning.delivered_steps import DeliveredStep

_log = logging.getLogger(__name__)
_KEY = "torch_distinput"
_FORMAT = 1


@final
class Trained:
    """How far a training loader is. It outlives the loader, which Lightning may ask for again.

    Attributes:
        epoch: Lightning's epoch in which the last step was trained.
        is_over: whether it was the last one of its epoch.
        loaded: the dataset's state in the checkpoint; None where there was none or it is used up.
        is_waiting: whether gradients are accumulated with which the optimizer has yet to step.
    """

    def __init__(self, loaded: Mapping[str, Any] | None = None) -> None:
        """Begin at the beginning, or where a checkpoint was saved."""
        saved = loaded or {"epoch": -1, "is_over": False, "input": None}
        self.epoch: int = saved["epoch"]
        self.is_over: bool = saved["is_over"]
        self.loaded: dict[str, Any] | None = saved["input"]
        self.is_waiting = False
        self._step: tdi.Step | None = None

    @property
    def input_state(self) -> dict[str, Any] | None:
        """The dataset's state after the step trained last; None before the first."""
        return self.loaded if self._step is None else self._step.state_dict()

    def note(self, delivered: DeliveredStep, *, epoch: int, is_over: bool) -> None:
        """A step was trained."""
        self._step, self.epoch, self.is_over, self.loaded = delivered.step, epoch, is_over, None
        self.is_waiting = not delivered.is_trained

    def state_dict(self) -> dict[str, Any]:
        """All that a checkpoint keeps of it."""
        return {"epoch": self.epoch, "is_over": self.is_over, "input": self.input_state}


@final
class TrainingProgress:
    """How far all training loaders of a trainer are, and what they share: the strategy."""

    def __init__(self) -> None:
        self._trainer: Any = None
        self._strategy: tdi.Strategy | None = None
        self._trained: dict[int, Trained] = {}
        self._num_loaded: int | None = None
        self._has_told = False

    def follow(self, trainer: Any) -> None:
        """Forget what was trained by another trainer."""
        if trainer is not self._trainer:
            self._trainer, self._strategy, self._trained, self._num_loaded = trainer, None, {}, None

    @property
    def strategy(self) -> tdi.Strategy:
        """The strategy of the trainer's ranks, made when it is asked for first."""
        if self._strategy is None:
            self._strategy = framework.make_strategy(self._trainer)
        return self._strategy

    def trained(self, place: int, num_loaders: int) -> Trained:
        """How far the training loader at a place is."""
        if self._num_loaded not in (None, num_loaders):
            msg = (
                f"Expected {self._num_loaded} training loader(s) as in the checkpoint, got "
                f"{num_loaders}. Return those with which it was saved, in their order."
            )
            raise tdi.ConfigurationError(msg)
        return self._trained.setdefault(place, Trained())

    def state_dict(self) -> dict[str, Any]:
        """Where each training loader stands after the step trained last; empty before the first."""
        if any(trained.is_waiting for trained in self._trained.values()):
            self._tell_of_lost_gradients()
        states = [trained.state_dict() for _, trained in sorted(self._trained.items())]
        if all(state["input"] is None for state in states):
            return {}
        return {_KEY: _FORMAT, "loaders": states}

    def _tell_of_lost_gradients(self) -> None:
        if not self._has_told:
            self._has_told = True
            _log.warning(
                "This checkpoint is saved between two steps of the optimizer: Lightning does not "
                "save the gradients that were accumulated since the last one, and the examples "
                "behind them are not trained again. Save after steps of the optimizer, as "
                "ModelCheckpoint does with every_n_train_steps=..., or at the end of an epoch. "
                "Said once."
            )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the training loaders go on where a checkpoint was saved."""
        if state.get(_KEY) != _FORMAT:
            msg = (
                f"Expected a state of this DataModule, with {_KEY!r}: {_FORMAT}, got one with the "
                f"keys {sorted(map(str, state))}. A checkpoint of another DataModule or loader "
                "cannot tell where an epoch of this one stands: start from the end of an epoch "
                "without its state, or with the DataModule that wrote it."
            )
            raise ValueError(msg)
        loaded = state["loaders"]
        self._num_loaded = len(loaded)
        self._trained = {place: Trained(one) for place, one in enumerate(loaded)}
        if self._trainer is not None:
            # estimated_stepping_batches may have asked for lengths and steps, which are others now
            framework.forget_loaders(self._trainer)
