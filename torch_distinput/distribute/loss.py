"""The loss of a step whose examples are spread over replicas, unevenly or not."""

from __future__ import annotations

import torch

from torch_distinput.distribute import current
from torch_distinput.errors import UsageError
from torch_distinput.options import check_count


def compute_average_loss(
    per_example_loss: torch.Tensor, num_examples: int | None = None
) -> torch.Tensor:
    """Sum a replica's losses and divide by the examples of the *global* batch.

    The sum of the results over all replicas is the mean loss of the global batch, also when
    replicas have different numbers of rows or none (``tf.nn.compute_average_loss``). DDP and FSDP
    average gradients over workers, so multiply by ``strategy.num_workers`` before ``backward()``.

    Args:
        per_example_loss: shape ``(rows, ...)``: losses with ``reduction="none"``.
        num_examples: what to divide by; default: the examples in sync of the step delivered last
            to the current strategy. Pass it with several datasets at once and under gradient
            accumulation: ``iterator.last_step.num_examples``, or the total of the steps.

    Returns:
        A 0-dim tensor; exactly 0, with gradients, for a batch of zero rows.

    Raises:
        ValueError: if the loss has other rows than the replica batch delivered last.
        UsageError: if no step has been delivered and ``num_examples`` is not given.
    """
    if per_example_loss.ndim == 0:
        msg = (
            "compute_average_loss needs one loss per example, shape (rows, ...), got a 0-dim "
            'tensor. Use reduction="none" in the loss function.'
        )
        raise ValueError(msg)
    if num_examples is None:
        num_examples = _num_examples(per_example_loss.shape[0])
    check_count("num_examples", num_examples, minimum=1)
    return per_example_loss.sum() / num_examples


def _num_examples(num_rows: int) -> int:
    """The examples in sync of the last step, if the loss belongs to it."""
    last = current.last_delivered()
    if last is None:
        msg = (
            "compute_average_loss divides by the examples of the step delivered last, but none has "
            "been delivered in this thread. Pass num_examples=."
        )
        raise UsageError(msg)
    strategy, info = last
    context = current.get_replica_context()
    if context is None and len(strategy.devices) > 1:
        msg = (
            f"compute_average_loss with {len(strategy.devices)} local replicas must be called "
            "inside Strategy.run, once per replica. Or pass num_examples=."
        )
        raise UsageError(msg)
    rows = info.local_counts[0 if context is None else context.local_replica]
    if rows != num_rows:
        msg = (
            f"Expected one loss for each of the {rows} examples of the replica batch delivered "
            f"last, got {num_rows} rows. Pass num_examples= if the loss belongs to another step."
        )
        raise ValueError(msg)
    return info.num_examples
