"""What was trained, for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final
from weakref import WeakSet

import torch_distinput as tdi
from torch_distinput.integrations.lightning import framework

_KEY = "torch_distinput"
_FORMAT = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderPosition:
    """How far a training loader is, after one of its steps.

    Attributes:
        epoch: Lightning's epoch in which the step was trained.
        is_over: whether it was the last one of its epoch.
        loaded: the dataset's state, where a checkpoint has it; None where ``step`` has it, or none.
        step: the step; None before the first one.
    """

    epoch: int = -1
    is_over: bool = False
    loaded: dict[str, Any] | None = None
    step: tdi.Step | None = None

    @property
    def input_state(self) -> dict[str, Any] | None:
        """The dataset's state after the step; None before the first."""
        return self.loaded if self.step is None else self.step.state_dict()

    @property
    def num_steps(self) -> int:
        """Steps of the epoch that were trained."""
        state = self.input_state
        return 0 if state is None else int(state["steps"])

    def state_dict(self) -> dict[str, Any]:
        """All that a checkpoint keeps of it."""
        return {"epoch": self.epoch, "is_over": self.is_over, "input": self.input_state}


@final
class Trained:
    """How far a training loader is. It outlives the loader, which Lightning may ask for again.

    Checkpoints lose gradients with which the optimizer has not stepped yet. So they keep a position
    of their own. With three batches to a step of the optimizer:

        trained             0 1 2 | 3 4
        for a checkpoint        2          3 and 4 come again

    Attributes:
        last: after the step trained last.
        kept: after the last one with which the optimizer has stepped.
    """

    def __init__(self, loaded: Mapping[str, Any] | None = None) -> None:
        """Begin at the beginning, or where a checkpoint was saved."""
        self.last = LoaderPosition()
        if loaded is not None:
            self.last = LoaderPosition(
                epoch=loaded["epoch"], is_over=loaded["is_over"], loaded=loaded["input"]
            )
        self.kept = self.last

    def note(self, position: LoaderPosition, *, is_waiting: bool) -> None:
        """A step was trained; if it is waiting, the optimizer has yet to step with it."""
        self.last = position
        if not is_waiting:
            self.kept = position

    def end_epoch(self) -> None:
        """Leave out what is left of the epoch."""
        self.last = self.kept = replace(self.last, is_over=True)


@final
class TrainingProgress:
    """How far all training loaders of a trainer are, and what they share: the strategy."""

    def __init__(self) -> None:
        self._trainer: Any = None
        self._strategy: tdi.Strategy | None = None
        self._trained: dict[int, Trained] = {}
        self._num_loaded: int | None = None
        self._num_waiting = self._num_lost = 0
        self._forgotten: WeakSet[Any] = WeakSet()  # trainers that have trained, before others did

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which has trainers of its own, and has forgotten none."""
        return {name: value for name, value in vars(self).items() if name != "_forgotten"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """As it was made there."""
        vars(self).update(state, _forgotten=WeakSet())

    def follow(self, trainer: Any) -> None:
        """Forget what was trained by another trainer."""
        if trainer is not self._trainer:
            if self._trained:
                self._forgotten.add(self._trainer)
            self._trainer, self._strategy, self._trained, self._num_loaded = trainer, None, {}, None
            self._num_waiting = self._num_lost = 0

    def has_forgotten(self, trainer: Any) -> bool:
        """Whether it is not known any more how far its loaders are."""
        return trainer in self._forgotten

    @property
    def strategy(self) -> tdi.Strategy:
        """The strategy of the trainer's ranks, made when it is asked for first."""
        if self._strategy is None:
            self._strategy = framework.make_strategy(self._trainer)
        return self._strategy

    def repair(self, checkpoint: dict[str, Any]) -> None:
        """Have a trainer count, from a checkpoint that was loaded here, what was trained."""
        loaded = [trained.last for trained in self._trained.values()]
        framework.count_totals_anew(checkpoint)
        if self._num_lost or any(one.loaded is not None and not one.is_over for one in loaded):
            framework.reopen_epoch(checkpoint)
        if self._num_lost:
            framework.put_back(checkpoint, self._num_lost)

    def trained(self, place: int, num_loaders: int) -> Trained:
        """How far the training loader at a place is."""
        if self._num_loaded not in (None, num_loaders):
            msg = (
                f"Expected {self._num_loaded} training loader(s) as in the checkpoint, got "
                f"{num_loaders}. Return those with which it was saved, in their order."
            )
            raise tdi.ConfigurationError(msg)
        return self._trained.setdefault(place, Trained())

    def count(self, *, is_waiting: bool) -> None:
        """A step of each loader was trained; if it is waiting, the optimizer has yet to step."""
        self._forgotten.discard(self._trainer)
        self._num_waiting = self._num_waiting + 1 if is_waiting else 0

    def state_dict(self) -> dict[str, Any]:
        """Where each training loader stood when the optimizer stepped last; empty before it trains.

        ``waiting`` is how many steps Lightning counts since then.
        """
        states = [trained.kept.state_dict() for _, trained in sorted(self._trained.items())]
        if not self._num_waiting and all(state["input"] is None for state in states):
            return {}
        return {_KEY: _FORMAT, "loaders": states, "waiting": self._num_waiting}

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
        self._num_lost, self._num_waiting = state["waiting"], 0
        if self._trainer is not None:
            # estimated_stepping_batches may have asked for lengths and steps, which are others now
            framework.forget_loaders(self._trainer)


def find_progress(trainer: Any) -> TrainingProgress:
    """Where a trainer keeps how far its loaders are."""
    for owner in (trainer.datamodule, *trainer.callbacks):
        progress = getattr(owner, "input_progress", None)
        if isinstance(progress, TrainingProgress):
            return progress
    msg = (
        "Expected a trainer that keeps in its checkpoints where its loaders stand, got one with "
        "neither a DataModule of torch_distinput nor InputState among its callbacks. Write "
        "Trainer(callbacks=[InputState()]), or derive your DataModule from "
        "torch_distinput.integrations.lightning.DataModule."
    )
    raise tdi.UsageError(msg)
