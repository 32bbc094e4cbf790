"""The loss of a step that is known, whatever was delivered since: see :meth:`Step.average`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from torch_distinput.distribute import context
from torch_distinput.distribute.steps.averages import (
    average_by_weight,
    check_per_example,
    divide,
    find_replica,
    mask_of,
    mask_rows,
)
from torch_distinput.distribute.steps.weights import check_shape, check_weights
from torch_distinput.errors import refer
from torch_distinput.values import StepInfo

if TYPE_CHECKING:
    from torch_distinput.distribute.session import Session


def average_step_loss(loss: torch.Tensor, info: StepInfo, divisor: float) -> torch.Tensor:
    """Divide by examples, or by tokens of which each has a loss."""
    mask = _check_step(loss, info)
    if not divisor:  # examples of no length; their padding may have a loss all the same
        return divide(loss, divisor, torch.zeros_like(loss, dtype=torch.bool))
    return divide(loss if mask is None else mask_rows(loss, mask), divisor)


def average_step_by_weight(
    loss: torch.Tensor, weights: object, info: StepInfo, session: Session
) -> torch.Tensor:
    """Divide by weights that all replicas add up now; a collective call."""
    def check() -> torch.Tensor | None:
        return _check_step(loss, info)

    return average_by_weight(
        loss, weights, check, session, index=info.index, cp_dim=info.cp_dim
    )


def average_step_in_group(
    loss: torch.Tensor, weights: Sequence[torch.Tensor], info: StepInfo, total: float
) -> torch.Tensor:
    """Divide by weights that were added up before; ``weights``: of each local replica."""
    _check_step(loss, info)
    own = weights[find_replica(len(weights))]
    check_shape(own, loss)
    return divide(loss, total, own)


def mask_step(weights: object, info: StepInfo, replica: int) -> torch.Tensor:
    """The weights of a local replica's batch of a step, with zeros in rows that are padding."""
    count, num_rows = info.local_counts[replica], info.padded_rows
    if num_rows is None:
        return check_weights(weights, count)
    own = check_weights(weights, num_rows)
    return mask_rows(own, torch.arange(num_rows, device=own.device) < count)


def _check_step(loss: torch.Tensor, info: StepInfo) -> torch.Tensor | None:
    """Refuse losses of other rows; return which of the rows are examples, if it is padded."""
    check_per_example(loss, "Step.average")
    num_rows = loss.shape[0]
    count = info.local_counts[find_replica(len(info.local_counts))]
    expected = count if info.padded_rows is None else info.padded_rows
    if num_rows != expected:
        cure = "Average each step's losses by its own step."
        if num_rows > expected > 0 and not num_rows % expected:  # of tokens, in flattened logits
            cure += f" If each row has several, give them its shape: losses.view({expected}, -1)."
        msg = (
            f"Expected one loss for each of the {expected} rows of this replica's batch of step "
            f"{info.index}, got {num_rows}. {cure}"
        )
        raise refer(ValueError(msg), "docs/errors.md#the-loss-does-not-belong-to-the-step")
    session = context.loss_session()
    if session is not None:
        session.loss_steps.note_loss()
    return None if info.padded_rows is None else mask_of(count, loss)
