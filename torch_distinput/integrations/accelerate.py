"""Accelerate: a distributed dataset as a loader that the Accelerator knows.

    loader = prepare(dataset, accelerator)
    for features, labels in loader:
        with accelerator.accumulate(model):
            losses = criterion(model(features), labels)    # one per example
            accelerator.backward(loader.average_loss(losses))
            optimizer.step()
            optimizer.zero_grad()

Accelerate asks the loader whether a step is the last of the epoch, so the loader reads one step
ahead; and the loss of a step is divided by the examples of all steps that the optimizer takes
together, so it reads these first. With three steps to accumulate and five in the epoch:

    read     0 1 2 3             4
    yielded          0 1 2           3 4
    state    after   0 1 2           3 4     of the step in use, not of the one read last
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Literal, NoReturn, final

import torch
from accelerate import Accelerator

import torch_distinput as tdi
from torch_distinput.integrations.accelerate_processes import check_processes
from torch_distinput.integrations.claims import claim, play
from torch_distinput.integrations.versions import check_names, check_version
from torch_distinput.integrations.wrapping import refuse_item

_log = logging.getLogger(__name__)
_Weights = Callable[[Any], torch.Tensor] | None
_CURE = "Call loader.average_loss(losses), or loader.average(losses) for a log."
"""How losses are averaged; what takes the place of a loader of the user's says it otherwise."""


def prepare(
    dataset: tdi.DistributedDataset, accelerator: Accelerator, *, weights: _Weights = None
) -> DistributedLoader:
    """Make a loader of a distributed dataset, as ``accelerator.prepare`` does of a DataLoader.

    A loader that trains is to be registered: ``accelerator.register_for_checkpointing(loader)``.

    Args:
        dataset: of a strategy over the accelerator's processes, with one device each. While the
            loader plays it, nobody else iterates it.
        accelerator: whose gradients it synchronizes at the end of an epoch.
        weights: what :func:`tdi.accumulate` takes, for losses by token.

    Raises:
        TypeError: if it is no distributed dataset.
        ConfigurationError: a ValueError; if the strategy is of other processes than the
            accelerator, or accumulation goes on across epochs (``sync_with_dataloader=False``).
        UsageError: if another integration plays the dataset.
    """
    check_version("accelerate", tested="1.15", stacklevel=3)
    if not isinstance(dataset, tdi.DistributedDataset):
        msg = (
            f"Expected a distributed dataset, got a {type(dataset).__name__}. Pass what "
            "strategy.distribute_dataset(...) returns; a DataLoader goes to accelerator.prepare."
        )
        raise TypeError(msg)
    check_processes(dataset.strategy, accelerator)
    state = accelerator.gradient_state
    check_names("accelerate", accelerator, ("step", "sync_gradients"))
    check_names("accelerate", state, ("end_of_dataloader", "remainder", "_add_dataloader"))
    if state.num_steps > 1 and not state.sync_with_dataloader:
        msg = (
            f"Expected sync_with_dataloader=True with {state.num_steps} steps to accumulate, got "
            "False: gradients of one epoch would wait for the next, and no checkpoint holds them. "
            "Leave it out of GradientAccumulationPlugin."
        )
        raise tdi.ConfigurationError(msg)
    claim(dataset, "Accelerate")
    loader = DistributedLoader(dataset, accelerator, weights)
    weak = weakref.ref(loader)  # the hook stays, the loader need not

    def before_save(*_: object) -> None:
        if held := weak():
            held.check_saved()

    accelerator.register_save_state_pre_hook(before_save)
    return loader


@final
class DistributedLoader:
    """Plays a distributed dataset as Accelerate's own loaders play theirs, epoch by epoch.

    ``accelerator.register_for_checkpointing(loader)`` puts its state into each ``save_state``;
    ``load_state`` goes on from there, on any number of processes.

    Attributes:
        dataset: what it plays.
        end_of_dataloader: whether the step in use is the last one; Accelerate asks.
        remainder: 0; ``gather_for_metrics`` cuts nothing off, as no example came twice.
    """

    remainder = 0

    def __init__(
        self,
        dataset: tdi.DistributedDataset,
        accelerator: Accelerator,
        weights: _Weights = None,
        *,
        cure: str = _CURE,
    ) -> None:
        """Called by :func:`prepare`."""
        self.dataset = dataset
        self.end_of_dataloader = False
        self._accelerator = accelerator
        self._weights = weights
        self._step: tdi.Step | None = None
        self._before: dict[str, Any] | tdi.Step | None = None  # what the optimizer has not taken
        self._num_waiting = 0  # examples of the steps before the one in use that it has not taken
        self._num_averaged = 0  # examples of all steps that it takes together
        self._do_others_wait = False  # gradients of other steps, as these began
        self._is_averaged = False  # the loss of the step in use, for its gradients
        self._has_told = False
        self._is_playing = False
        self._is_training = False  # inside of an epoch, with gradients
        self._cure = cure

    def __repr__(self) -> str:
        """Show the dataset."""
        return f"DistributedLoader({self.dataset!r})"

    def __len__(self) -> int:
        """The steps of the epoch that the next ``iter()`` plays, as of the dataset."""
        return len(self.dataset)

    def __bool__(self) -> bool:
        """True, as of the dataset."""
        return True

    def __iter__(self) -> Iterator[Any]:
        """Play the next epoch; collective from its first step on.

        While it is under way, the Accelerator knows of it: the last step synchronizes gradients.
        """
        accelerator = self._accelerator
        self._step, self._before = None, self.dataset.state_dict()
        self._num_waiting = 0
        steps = play(self.dataset, cure=self._cure)
        accelerator.gradient_state._add_dataloader(self)  # noqa: SLF001 - as its own loaders do
        self._is_playing = True
        try:
            for step, is_last in self._look_ahead(steps):
                self._step, self.end_of_dataloader = step, is_last
                self._is_averaged = False
                self._is_training = torch.is_grad_enabled()
                yield step.batch
                if accelerator.sync_gradients:
                    self._before, self._num_waiting = step, 0
                else:
                    self._num_waiting += step.num_examples
            self._is_training = False
        finally:
            self._is_playing = self.end_of_dataloader = False
            accelerator.gradient_state._remove_dataloader(self)  # noqa: SLF001
            steps.close()

    def _look_ahead(self, steps: Iterator[tdi.Step]) -> Iterator[tuple[tdi.Step, bool]]:
        """Each step, and whether it is the last; in groups that end where gradients synchronize."""
        accelerator = self._accelerator
        following = next(steps, None)
        while following is not None:
            num_steps, before = accelerator.gradient_accumulation_steps, accelerator.step
            ahead = chain([following], steps)
            size = num_steps - before % num_steps
            group = next(tdi.accumulate(ahead, size, weights=self._weights))
            self._num_averaged = group.num_examples
            self._do_others_wait = size < num_steps and not accelerator.sync_gradients
            for number, step in enumerate(group, start=1):
                if number == len(group):
                    following = next(steps, None)
                is_last = number == len(group) and following is None
                yield step, is_last
                due, counted = 0 if is_last else before + number, accelerator.step
                is_used = counted != before  # accumulate(); else the user adds up by himself
                if self._is_averaged and is_used and (counted - due) % num_steps:
                    raise self._make_added_up_error()

    def __getitem__(self, index: object) -> NoReturn:
        """Refuse: a DataLoader around this one would sample it, and distribute it once more."""
        del index
        refuse_item(self)

    def check_saved(self) -> None:
        """Refuse a checkpoint that would not know where the epoch stands that is trained.

        Accelerate calls it before it saves. Not for evaluation: its loaders begin anew.
        """
        saved = self._accelerator._custom_objects  # noqa: SLF001 - those that were registered
        if self._is_training and not any(one is self for one in saved):
            msg = (
                f"Expected a loader that is saved with the rest, got one inside of epoch "
                f"{self.dataset.epoch - 1} that the Accelerator does not know: after load_state() "
                "its examples would come again. Call "
                "accelerator.register_for_checkpointing(loader) once, before load_state(). If it "
                "evaluates, iterate it under torch.no_grad(), the whole loop."
            )
            raise tdi.UsageError(msg)

    @property
    def step(self) -> tdi.Step:
        """The step in use, whose batch was yielded last. Raises UsageError before the first."""
        if self._step is None:
            msg = "Expected a step in use, got none: no batch was yielded yet. Ask inside the loop."
            raise tdi.UsageError(msg)
        return self._step

    def average_loss(
        self, per_example_loss: torch.Tensor, *, per: Literal["example", "token"] | None = None
    ) -> torch.Tensor:
        """The loss for ``accelerator.backward``: gradients become those of one large batch.

        Accelerate averages gradients over processes, and over the steps that it accumulates. The
        average of the results over both is the mean of all examples that the optimizer takes
        together, also of a partial or zero-row batch and of fewer steps at the end.

        Args:
            per_example_loss: shape ``(rows, ...)``: losses of the step in use, with
                ``reduction="none"``.
            per: as of ``Step.average``; by token with the ``weights`` of :func:`prepare`.

        Returns:
            A 0-dim tensor, as of :meth:`Step.average`.

        Raises:
            UsageError: where gradients of other steps wait, by which the loss is not divided. If
                ``accelerator.accumulate`` is not called for this step, the loop says it afterwards.
        """
        if torch.is_grad_enabled():
            self._is_averaged = True
            if self._do_others_wait:
                raise self._make_added_up_error()
        num_steps = self._accelerator.gradient_accumulation_steps
        average: torch.Tensor = self.step.average(per_example_loss, per=per)
        return average * float(self.dataset.strategy.num_workers * num_steps)

    def _make_added_up_error(self) -> tdi.UsageError:
        return tdi.UsageError(
            f"Expected Accelerate to add up gradients of the steps of this loader alone, and of "
            f"each of them, as their losses are divided by the examples of all, got others at step "
            f"{self.step.index}, where accelerator.step is {self._accelerator.step}. Call "
            "accelerator.accumulate once for each step, also for one whose loss is times 0; play "
            "several loaders by zip(strict=True), with one accumulate for all. After a loop that "
            "was left, call optimizer.zero_grad() and set accelerator.step = 0."
        )

    def average(self, per_example_value: torch.Tensor) -> torch.Tensor:
        """The mean of a value over the global batch of the step in use, for what is logged.

        ``accelerator.reduce(loader.average(losses), "mean")`` is the mean of the batch, and each of
        its examples counts the same.

        Args:
            per_example_value: shape ``(rows, ...)``: a value for each example of the batch.

        Returns:
            A 0-dim tensor; exactly 0 for a batch of zero rows.
        """
        step = self.step
        scale = self.dataset.strategy.num_workers * self._num_averaged / step.num_examples
        average: torch.Tensor = step.average(per_example_value, per="example") * scale
        return average

    @property
    def epoch(self) -> int:
        """The epoch that the next ``iter()`` plays, from 0."""
        return self.dataset.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next ``iter()`` plays; a loaded one goes on where it was."""
        self.dataset.set_epoch(epoch)
        if not self._is_playing:  # the place is in that epoch now, not after the step before
            self._step = self._before = None

    def state_dict(self) -> dict[str, Any]:
        """Where the epoch stands after the step in use; the same on all processes.

        Between the steps of one accumulation, where it stands after the accumulation before: no
        checkpoint holds gradients, so what they are of is to come again. That is logged once.
        """
        if self._step is None or self._before is None:
            return self.dataset.state_dict()
        if self._accelerator.sync_gradients:
            return self._step.state_dict()
        self._tell_of_repeats(self._num_waiting + self._step.num_examples)
        return self._before.state_dict() if isinstance(self._before, tdi.Step) else self._before

    def _tell_of_repeats(self, num_examples: int) -> None:
        if self._has_told or self.dataset.strategy.worker_index != 0:
            return
        self._has_told = True
        _log.warning(
            "A state was taken between two updates of the optimizer: a checkpoint holds no "
            "gradients, so the %d examples since the last update come again after a restart. "
            "Save where accelerator.sync_gradients is True, and none does. (Logged once.)",
            num_examples,
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next ``iter()`` go on where a state was taken, with a new accumulation.

        Raises:
            ValueError: if it is no state of a distributed dataset, or of another one.
        """
        self.dataset.load_state_dict(state)
        self._step = self._before = None
        self._accelerator.step = 0

    @property
    def sampler(self) -> NoReturn:
        """Not there, as ``accelerator.skip_first_batches`` finds out."""
        msg = (
            "Expected a DataLoader with a sampler, got a distributed dataset: nothing needs to "
            "be skipped, because it resumes from a state. Leave skip_first_batches out, and "
            "load the state with accelerator.load_state() or loader.load_state_dict()."
        )
        raise AttributeError(msg)
