"""A loss that is the mean of a batch, and what it is a mean over."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

_log = logging.getLogger(__name__)
CURE = "Return the plain mean of the batch from compute_loss."
"""What to do instead of ``compute_average_loss``, which Trainer's division makes wrong."""


def count_items(batch: Any, num_rows: int, shifts_labels: bool) -> torch.Tensor:
    """What a mean loss is taken over: labels that count, else examples.

    Args:
        batch: of this process.
        num_rows: its examples.
        shifts_labels: whether a label is that of the token before it, so that the first has none.
    """
    labels = batch.get("labels") if isinstance(batch, Mapping) else None
    if not isinstance(labels, torch.Tensor):
        return torch.tensor(float(num_rows), dtype=torch.float64, device="cpu")
    if "shift_labels" in batch:
        labels = batch["shift_labels"]
    elif shifts_labels:
        labels = labels[..., 1:]
    return labels.ne(-100).sum().double()


def average_loss(
    trainer: Any, loss: torch.Tensor, batch: Any, num_rows: int, *, is_scaled: bool
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
    shifts_labels = trainer._loss_shifts_labels  # noqa: SLF001 - as the mixin asks for it
    items = count_items(batch, num_rows, shifts_labels).to(loss.device)
    weight = torch.ones_like(items) if is_scaled and has_labels else items
    share = torch.where(items == 0, 0, loss.double()) * weight
    sums = trainer.accelerator.gather(torch.stack([share, weight])[None]).sum(0)
    average: torch.Tensor = (sums[0] / sums[1]).to(loss.dtype)
    return average


def try_losses(trainer: Any, batch: Any) -> torch.Tensor:
    """The loss as one of 1 item, and of 2; a model that divides by them halves it."""
    training, losses = trainer.model.training, []
    trainer.model.eval()
    with torch.no_grad(), trainer.compute_loss_context_manager():
        for number in (1, 2):
            num_items = torch.tensor(number, device=trainer.args.device)
            inputs = trainer._prepare_inputs(dict(batch))  # noqa: SLF001 - as in its own steps
            loss = trainer.compute_loss(trainer.model, inputs, num_items_in_batch=num_items)
            losses.append(loss.detach().float().mean())
    trainer.model.train(training)
    return torch.stack(losses)


def warn_of_mean(model: nn.Module) -> None:
    """Say that the loss of a model is weighed otherwise than Trainer would."""
    _log.warning(
        "%s takes num_items_in_batch and does not use it: its loss is the mean of a batch, and "
        "is weighted as one. Without this, Trainer would multiply its gradients by the "
        "processes and by gradient_accumulation_steps.",
        type(model).__name__,
    )
