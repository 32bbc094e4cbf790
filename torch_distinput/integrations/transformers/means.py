"""What the loss of a model is, and what a mean loss is over."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any, final

import torch
from torch import nn

_log = logging.getLogger(__name__)
_IGNORED = -100
"""A label that does not count, in torch's cross entropy and in Transformers."""
_EXACT = 1e-6
"""So far from the whole a mean of parts may be, as a share of it, by rounding in float32."""
_CLEAR = 4
"""So many times nearer is the mean that a loss is: in half precision neither is exact."""
_SAME_MEAN = 0.01
"""Whatever is farther away is another mean."""
CURE = "Return the plain mean of the batch from compute_loss."
"""What to do instead of ``compute_average_loss``, which Trainer's division makes wrong."""


@final
class ModelLoss:
    """What the loss of a model is: its share of an update's, or a mean over labels or examples.

    Cross entropy ignores labels of -100, and is a mean over the others. CTC ignores them, too, and
    is a mean over examples.
    """

    def __init__(self) -> None:
        """Take Trainer's word for the one, and the other for a mean over labels, until asked."""
        self._is_tried = False
        self._is_over_rows = False
        self._is_mean_found = False

    def find_out(self, trainer: Any, batch: Any, num_rows: int) -> None:
        """Try it with a batch, and with parts of it; once, where that tells.

        All processes ask together, also one whose batch stands in for no rows: it has no say.

        Trainer concludes from ``**kwargs`` in its signature that a model divides its loss by the
        labels of the whole update. Where the loss is a mean all the same, its gradients would be
        multiplied by processes and accumulated batches.
        """
        if trainer.compute_loss_func is not None or "labels" not in batch:
            return
        if trainer.model_accepts_loss_kwargs and not self._is_tried:
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
        labels, device = _find_labels(trainer, batch), trainer.args.device
        if labels is None:
            return
        place = _choose_cut(batch, labels, num_rows)
        if not trainer.accelerator.gather(torch.tensor([place], device=device)).any():
            return
        parts = [_cut(batch, 0, place), _cut(batch, place, num_rows)] if place else [batch] * 2
        whole, first, second = _try_losses(trainer, [(part, None) for part in (batch, *parts)])
        misses = torch.full((2,), math.nan, device=device)
        if place:
            by_labels = labels[:place].ne(_IGNORED).sum() / labels.ne(_IGNORED).sum()
            by_rows = torch.full_like(by_labels, place / num_rows)
            shares = torch.stack([by_rows, by_labels])
            misses = ((shares * first + (1 - shares) * second) / whole - 1).abs()
        misses = trainer.accelerator.gather(misses[None]).nanmean(0)
        least, most = misses.min().item(), misses.max().item()
        is_odd = _SAME_MEAN < least < math.inf
        if not is_odd and not max(_CLEAR * least, _EXACT) < most < math.inf:
            return  # the parts have one loss, or none
        self._is_mean_found = True
        self._is_over_rows = int(misses.argmin()) == 0
        if is_odd:
            _warn_of_odd_mean(trainer.model)

    def count(self, trainer: Any, batch: Any, num_rows: int) -> torch.Tensor:
        """What the loss of a batch is taken over: labels that count, else examples.

        Args:
            trainer: whose model has the loss.
            batch: of this process.
            num_rows: its examples.
        """
        labels = None if self._is_over_rows else _find_labels(trainer, batch)
        if labels is None:
            return torch.tensor(float(num_rows), dtype=torch.float64, device="cpu")
        return labels.ne(_IGNORED).sum().double()

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


def _find_labels(trainer: Any, batch: Any) -> torch.Tensor | None:
    """The labels that a loss is of; None if they are no classes, of which some may not count."""
    labels = batch.get("labels") if isinstance(batch, Mapping) else None
    if not isinstance(labels, torch.Tensor) or labels.is_floating_point():
        return None
    if "shift_labels" in batch:
        shifted: torch.Tensor = batch["shift_labels"]
        return shifted
    # A label may be that of the token before it, so that the first has none.
    return labels[..., 1:] if trainer._loss_shifts_labels else labels  # noqa: SLF001


def _choose_cut(batch: Mapping[str, Any], labels: torch.Tensor, num_rows: int) -> int:
    """Where the share of labels differs most from that of examples; 0 if it does nowhere."""
    tensors = [value for value in batch.values() if isinstance(value, torch.Tensor)]
    if num_rows < 2 or any(not one.ndim or len(one) != num_rows for one in (labels, *tensors)):
        return 0
    counts = labels.ne(_IGNORED).reshape(num_rows, -1).sum(1).double().cpu()
    before = counts.cumsum(0)[:-1]
    examples = torch.arange(1, num_rows, device="cpu") / num_rows
    differences = (before / counts.sum() - examples).abs()
    differences[(before == 0) | (before == counts.sum())] = 0  # a part without labels has no loss
    return int(differences.argmax()) + 1 if differences.max() > 0 else 0


def _cut(batch: Mapping[str, Any], start: int, stop: int) -> dict[str, Any]:
    return {
        name: value[start:stop] if isinstance(value, torch.Tensor) else value
        for name, value in batch.items()
    }


def _try_losses(trainer: Any, asked: list[tuple[Any, torch.Tensor | None]]) -> torch.Tensor:
    """The losses of batches, each as one of so many items, without a trace in the model."""
    training, losses = trainer.model.training, []
    trainer.model.eval()
    with torch.no_grad(), trainer.compute_loss_context_manager():
        for batch, num_items in asked:
            inputs = trainer._prepare_inputs(dict(batch))  # noqa: SLF001 - as in its own steps
            loss = trainer.compute_loss(trainer.model, inputs, num_items_in_batch=num_items)
            losses.append(loss.detach().float().mean())
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
