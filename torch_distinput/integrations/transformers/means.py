"""What the loss of a model is, and what a mean loss is over."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from typing import Any, final

import torch
from torch import nn

_log = logging.getLogger(__name__)
_IGNORED = -100
"""A label that does not count, in torch's cross entropy and in Transformers."""
_EXACT, _HALF = 1e-6, 0.03
"""So far from the whole a mean of parts may be, as a share of it, by rounding: in float32, and in
half precision."""
_RANDOM = 0.05
"""A loss that differs so much from itself tells nothing."""
_CLEAR = 4
"""So many times nearer is the mean that a loss is."""
_MOST_TRIES, _MOST_ASKED = 8, 64
"""Batches that are parted, and batches of the training that are looked at for it, until what is
likely is taken for granted."""
_SAME_MEAN = 0.01
"""Whatever is farther away is another mean."""
_NUM_WAYS, _ROWS = 3, 2
"""Of means, and which of them is over examples."""
_SETTINGS = (bool, int, float, str, type(None))
"""Of a batch, what is of all of it."""
CURE = "Return the plain mean of the batch from compute_loss."
"""What to do instead of ``compute_average_loss``, which Trainer's division makes wrong."""


@final
class ModelLoss:
    """What the loss of a model is: its share of an update's, or a mean over labels or examples.

    Cross entropy ignores labels of -100, and is a mean over the others; over those behind the first
    of each example, where a label is that of the token before it. CTC is a mean over examples.
    """

    def __init__(self) -> None:
        """Take Trainer's word, and a mean for one over labels, until asked."""
        self._is_tried = False
        self._ways = list(range(_NUM_WAYS))  # as in _list_ways: those that may be it
        self._is_mean_found = False
        self._num_asked = self._num_tries = 0

    def find_out(self, trainer: Any, batch: Any, num_rows: int) -> None:
        """Try it with a batch, and with parts of it; once, where that tells.

        All processes ask together, also one whose batch stands in for no rows: it has no say.

        Trainer concludes from ``**kwargs`` in its signature that a model divides its loss by the
        labels of the whole update. Where the loss is a mean all the same, its gradients would be
        multiplied by processes and accumulated batches.
        """
        if trainer.compute_loss_func is not None:
            return
        has_labels = isinstance(batch, Mapping) and "labels" in batch
        if trainer.model_accepts_loss_kwargs and has_labels and not self._is_tried:
            items = [torch.tensor(number, device=trainer.args.device) for number in (1, 2)]
            losses = _try_losses(trainer, [(batch, number) for number in items])
            found = trainer.accelerator.gather(losses[None] * bool(num_rows)).nansum(0).tolist()
            self._is_tried = found[0] != 0
            if self._is_tried and math.isclose(*found, rel_tol=1e-3):  # else it is halved
                trainer.model_accepts_loss_kwargs = False
                _warn_of_mean(trainer.model)
        if not trainer.model_accepts_loss_kwargs and not self._is_mean_found:
            self._find_mean(trainer, batch, num_rows)

    def _find_mean(self, trainer: Any, batch: Any, num_rows: int) -> None:
        """Find out what it is over, at the first batch of any process that makes a difference."""
        counts = _list_ways(trainer, batch, num_rows)
        place, shares = _choose_cut(batch, counts, num_rows, self._ways)
        # Also where this batch has no labels, as in a prediction: those of others may have some.
        told = torch.tensor([place], device=trainer.args.device)
        self._num_asked += bool(trainer.model.training)
        if not trainer.accelerator.gather(told).any():
            self._is_mean_found = self._num_asked >= _MOST_ASKED
            return
        self._num_tries += 1
        misses, noise = _measure(trainer, batch, place, num_rows, shares)
        self._rule_out(trainer.model, misses, noise)
        if self._num_tries == _MOST_TRIES and not self._is_mean_found:
            self._is_mean_found = True
            # Else the two ways to count labels are left, which differ by less than rounding.
            if _ROWS in self._ways:
                _warn_of_unknown_mean(trainer.model)

    def _rule_out(self, model: nn.Module, misses: list[float], noise: float) -> None:
        """Leave the ways that may be it, seen from how far the loss is from the mean each way."""
        least = min(misses[way] for way in self._ways)
        bound, is_odd = max(_CLEAR * least, noise), max(_SAME_MEAN, noise) < least < math.inf
        if noise < _RANDOM:  # what is no number tells nothing, either
            self._ways = [way for way in self._ways if not bound < misses[way] < math.inf]
            self._is_mean_found = is_odd or len(self._ways) == 1
            if is_odd:
                _warn_of_odd_mean(model)

    def count(self, trainer: Any, batch: Any, num_rows: int) -> torch.Tensor:
        """What the loss of a batch is taken over: labels that count, else examples.

        Args:
            trainer: whose model has the loss.
            batch: of this process.
            num_rows: its examples.
        """
        ways = _list_ways(trainer, batch, num_rows)
        return ways[min(self._ways[0], len(ways) - 1)].sum()

    def average(
        self, trainer: Any, loss: torch.Tensor, batch: Any, num_rows: int, *, is_scaled: bool
    ) -> torch.Tensor:
        """The mean over all examples of a step of evaluation; processes may have none.

        Args:
            trainer: on all processes.
            loss: of this process.
            batch: what it was to be the loss of.
            num_rows: the examples of that.
            is_scaled: it is divided by the labels of all processes, if there are any.
        """
        has_labels = isinstance(batch, Mapping) and "labels" in batch
        items = self.count(trainer, batch, num_rows).to(loss.device)
        weight = torch.ones_like(items) if is_scaled and has_labels else items
        share = torch.where(items == 0, 0, loss.double()) * weight
        sums = trainer.accelerator.gather(torch.stack([share, weight])[None]).sum(0)
        average: torch.Tensor = (sums[0] / sums[1]).to(loss.dtype)
        return average


def _list_ways(trainer: Any, batch: Any, num_rows: int) -> list[torch.Tensor]:
    """What an example counts in a mean, each way that there is; the likely one first.

    Labels may be classes, of which some do not count; those that are numbers all do.
    """
    labels = batch.get("labels") if isinstance(batch, Mapping) else None
    rows = torch.ones(num_rows, dtype=torch.float64, device="cpu")
    if not isinstance(labels, torch.Tensor) or labels.is_floating_point() or not labels.ndim:
        return [rows]
    if "shift_labels" in batch:
        return [_count(batch["shift_labels"])] * 2 + [rows]
    own = _count(labels)
    shifted = own if labels.ndim == 1 else _count(labels[..., 1:])
    likely = [shifted, own] if trainer._loss_shifts_labels else [own, shifted]  # noqa: SLF001
    return [*likely, rows]


def _count(labels: torch.Tensor) -> torch.Tensor:
    """How many labels count of each example."""
    counted = labels.ne(_IGNORED)
    return (counted.flatten(1).sum(1) if counted.ndim > 1 else counted).double()


def _choose_cut(
    batch: Any, counts: list[torch.Tensor], num_rows: int, ways: list[int]
) -> tuple[int, torch.Tensor]:
    """Where to cut, so that the ways still open give the first part shares that differ most.

    Returns the rows of that part, 0 if the shares are equal at every cut; and its share each way.
    """
    nowhere = 0, torch.zeros(_NUM_WAYS)
    if len(counts) < _NUM_WAYS or num_rows < 2:  # no labels: the batch may be no mapping, either
        return nowhere
    values = [value for value in batch.values() if not isinstance(value, _SETTINGS)]
    has_rows = all(isinstance(one, torch.Tensor) and one.ndim for one in values)
    if not has_rows or any(len(one) != num_rows for one in (*counts, *values)):
        return nowhere
    before = torch.stack([(count.cumsum(0)[:-1] / count.sum()).cpu() for count in counts])
    spread = before[ways].amax(0) - before[ways].amin(0)
    spread[~((before > 0) & (before < 1)).all(0)] = 0  # a part without labels has no loss
    place = int(spread.argmax())
    return (place + 1, before[:, place]) if spread[place] > 0 else nowhere


def _measure(
    trainer: Any, batch: Any, place: int, num_rows: int, shares: torch.Tensor
) -> tuple[list[float], float]:
    """How far the loss is from the mean of those of two parts, each way; and what is noise of it.

    As shares of the loss, on average over the processes that have a batch to part.
    """
    told = torch.full((_NUM_WAYS + 1,), math.nan, dtype=torch.float64, device=trainer.args.device)
    with suppress(Exception):  # a model may need two rows, say; and then this batch tells nothing
        parts = [_cut(batch, 0, place), _cut(batch, place, num_rows)] if place else [batch] * 2
        losses = _try_losses(trainer, [(part, None) for part in (batch, batch, *parts)])
        whole, again, first, second = losses.to(told)
        shares = shares.to(told)
        means = torch.cat([shares * first + (1 - shares) * second, again[None]])
        told = (means / whole - 1).abs() if place else told
    *misses, noise = trainer.accelerator.gather(told[None]).nanmean(0).tolist()
    kinds = {parameter.dtype for parameter in trainer.model.parameters()}
    is_half = trainer.args.bf16 or trainer.args.fp16 or not kinds <= {torch.float32, torch.float64}
    return misses, noise + (_HALF if is_half else _EXACT)


def _cut(batch: Any, start: int, stop: int) -> Any:
    """Some of its rows, in a mapping of its class, as Trainer makes it when it moves a batch."""
    part = {
        name: value[start:stop] if isinstance(value, torch.Tensor) else value
        for name, value in batch.items()
    }
    return type(batch)(part)


def _try_losses(trainer: Any, asked: list[tuple[Any, torch.Tensor | None]]) -> torch.Tensor:
    """The losses of batches, each as one of so many items, without a trace in the model."""
    training, losses, device = trainer.model.training, [], torch.device(trainer.args.device)
    trainer.model.eval()
    try:
        with (
            torch.random.fork_rng([device] if device.type == "cuda" else []),
            torch.no_grad(),
            trainer.compute_loss_context_manager(),
        ):
            for batch, num_items in asked:
                inputs = trainer._prepare_inputs(copy(batch))  # noqa: SLF001 - as in its own steps
                loss = trainer.compute_loss(trainer.model, inputs, num_items_in_batch=num_items)
                losses.append(loss.detach().float().mean())
    finally:
        trainer.model.train(training)
    return torch.stack(losses)


def _warn_of_mean(model: nn.Module) -> None:
    """Say that the loss of a model is weighed otherwise than Trainer would."""
    _log.warning(
        "%s takes num_items_in_batch and does not use it: its loss is the mean of a batch, and "
        "is weighted as one. Without this, Trainer would multiply its gradients by the "
        "processes and by gradient_accumulation_steps.",
        type(model).__name__,
    )


def _warn_of_odd_mean(model: nn.Module) -> None:
    """Say that the loss of a model is not understood."""
    _log.warning(
        "The loss of %s is neither a mean over its examples nor one over its labels that are not "
        "-100, as two parts of a batch show. It is weighted by what comes nearer: on several "
        "processes its gradients are not those of one. Pass a compute_loss_func that divides a sum "
        "by num_items_in_batch.",
        type(model).__name__,
    )


def _warn_of_unknown_mean(model: nn.Module) -> None:
    """Say that what is likely was taken for granted."""
    _log.warning(
        "Whether the loss of %s is a mean over its examples or over its labels that are not -100 "
        "was not to be seen: it is too much alike in parts of a batch, random, or rounded as in "
        "half precision. It is taken for one over labels. Pass a compute_loss_func that divides a "
        "sum by num_items_in_batch where that is wrong.",
        type(model).__name__,
    )
