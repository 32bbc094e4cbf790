"""From one loss for each row, or each token of it, to a replica's part of the mean of a step."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from torch_distinput.distribute.replicas.replica import get_replica_context
from torch_distinput.distribute.steps.weights import (
    check_shape,
    check_weights,
    sum_weights,
    weigh,
)
from torch_distinput.errors import UsageError
from torch_distinput.values import PerReplica

if TYPE_CHECKING:
    from torch_distinput.distribute.session import Session

_log = logging.getLogger(__name__)
_HALVES = (torch.float16, torch.bfloat16)


def check_per_example(loss: object, call: str) -> None:
    """Refuse what is not a tensor with a row for each example."""
    if not isinstance(loss, torch.Tensor):
        is_grouped = isinstance(loss, PerReplica)
        cure = "Call it inside strategy.run, for each replica" if is_grouped else "Stack the losses"
        msg = (
            f"{call} needs a tensor with one loss per example, shape (rows, ...), got "
            f"{type(loss).__name__}. {cure}."
        )
        raise TypeError(msg)
    if loss.ndim == 0:
        msg = (
            f"{call} needs one loss per example, shape (rows, ...), got a 0-dim tensor. "
            'Use reduction="none" in the loss function.'
        )
        raise ValueError(msg)


def warn_of_sums(loss: object) -> None:
    """Say once that several losses of an example are added up: most want their mean."""
    if torch.compiler.is_compiling() or not isinstance(loss, torch.Tensor) or loss.is_nested:
        return
    if math.prod(loss.shape[1:]) > 1:
        _warn_of_sums()


@functools.cache
def _warn_of_sums() -> None:
    _log.warning(
        "A loss has several numbers for each example, shape (rows, k). They are added up, and the "
        "sum is divided by examples alone: the gradient is k times that of "
        'reduction="mean". Pass loss.flatten(1).mean(1) for their mean, weights= where only some '
        "of them count, or loss.flatten(1).sum(1) if the sum is meant. (Logged once.)"
    )


def find_replica(num_replicas: int) -> int:
    """Which local replica the loss is of."""
    context = get_replica_context()
    if context is None and num_replicas > 1:
        msg = (
            f"The loss of a step with {num_replicas} local replicas must be averaged inside "
            "Strategy.run, once per replica. Or pass num_examples= to compute_average_loss."
        )
        raise UsageError(msg)
    return 0 if context is None else context.local_replica


def mask_of(count: int | None, loss: torch.Tensor) -> torch.Tensor | None:
    """The examples of a padded batch, which come first; None where all rows are examples."""
    if count is None:
        return None
    return torch.arange(loss.shape[0], device=loss.device) < count


def mask_rows(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Values with 0 in the rows that do not count, whatever they are there; infinite or NaN too."""
    if mask.dtype is not torch.bool or mask.shape != values.shape[:1]:
        msg = (
            f"Expected mask to be a bool tensor of shape ({values.shape[0]},), one for each row of "
            f"the loss, got {mask.dtype} of shape {tuple(mask.shape)}. Pass the mask of its step."
        )
        raise ValueError(msg)
    return values.masked_fill(~mask.view(-1, *[1] * (values.ndim - 1)), 0)


def divide(
    loss: torch.Tensor, divisor: float, weights: torch.Tensor | None = None
) -> torch.Tensor:
    """Sum the losses, times their weights, and divide by what all replicas have."""
    divisor = divisor or 1  # where nothing counts, the sum is 0
    if weights is not None and not (loss.is_floating_point() or loss.is_complex()):
        loss = loss.to(torch.get_default_dtype())  # as division makes of whole numbers elsewhere
    is_half = loss.dtype in _HALVES
    if weights is None and not is_half:
        return loss.sum() / divisor
    # The losses of many rows need not fit into a half where their mean does.
    if weights is None:
        summed = loss.sum(dtype=torch.float32)
    else:
        summed = weigh(loss.float() if is_half else loss, weights).sum()
    return (summed / divisor).to(loss.dtype)


def average_by_weight(
    loss: torch.Tensor,
    weights: object,
    find_mask: Callable[[], torch.Tensor | None],
    session: Session,
    *,
    index: int | None,
    cp_dim: str | None,
) -> torch.Tensor:
    """Divide by the weights of all replicas in sync, which are added up now; a collective call.

    Args:
        loss: shape ``(rows, ...)``.
        weights: of the same shape.
        find_mask: checks the loss, and returns which of its rows count. What it raises is told to
            the other workers, which would wait otherwise.
        session: of the replicas.
        index: the number of the step, if it is known of which one the loss is.
        cp_dim: the dimension over whose ranks sequences are cut, if they are.
    """

    def make() -> list[torch.Tensor]:
        mask = find_mask()
        own = check_weights(weights, loss.shape[0])
        check_shape(own, loss)
        return [own if mask is None else mask_rows(own, mask.to(own.device))]

    (own,), total = sum_weights(session, make, index=index, cp_dim=cp_dim)
    return divide(loss, total, own)
