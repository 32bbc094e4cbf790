"""The loss of a step whose examples are spread over replicas, unevenly or not."""

from __future__ import annotations

import torch

from torch_distinput.distribute import context as current
from torch_distinput.distribute.replicas.replica import get_replica_context
from torch_distinput.errors import UsageError
from torch_distinput.options import check_count
from torch_distinput.values import PerReplica, StepInfo

_HALVES = (torch.float16, torch.bfloat16)


def compute_average_loss(
    per_example_loss: torch.Tensor,
    num_examples: int | None = None,
    *,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Sum a replica's losses and divide by the examples of the *global* batch.

    The sum of the results over all replicas is the mean loss of the global batch, also when
    replicas have different numbers of rows or none (``tf.nn.compute_average_loss``). DDP and FSDP
    average gradients over workers, so multiply by ``strategy.num_workers`` before ``backward()``.

    The rows that ``InputOptions(partial_batch="pad")`` has added are left out.

    Args:
        per_example_loss: shape ``(rows, ...)``: losses with ``reduction="none"``.
        num_examples: what to divide by; default: the examples in sync of the step delivered last
            to the current strategy. Pass it with several datasets at once and under gradient
            accumulation: ``iterator.last_step.num_examples``, or the total of the steps. Where
            several open iterators have delivered equally many steps since the last loss, as under
            ``zip``, it is refused on all workers unless their steps have as many examples.
        mask: bool, shape ``(rows,)``: which rows count. Pass it, as it came with the batch, beside
            the ``num_examples`` of padded batches, and only there: of the step delivered last it
            is known.

    Returns:
        A 0-dim tensor of the loss's dtype, summed in float32 if that is a half; exactly 0, with
        gradients, for a batch of zero rows.

    Raises:
        ValueError: if the loss has other rows than the replica batch delivered last, or the mask
            than the loss; for padded batches with ``num_examples`` and without their mask; if the
            loss may belong to steps of several datasets.
        UsageError: if no step has been delivered and ``num_examples`` is not given.
    """
    _check_per_example(per_example_loss, "compute_average_loss")
    if num_examples is None:
        if mask is not None:
            msg = (
                "Expected num_examples= beside mask=, got the mask alone: without num_examples= "
                "the loss is that of the step delivered last, whose padding is known and left out. "
                "Leave mask= out, or pass both."
            )
            raise ValueError(msg)
        num_examples, count = _last_step(per_example_loss.shape[0])
        if count is not None:
            mask = _mask_of(count, per_example_loss)
    else:
        _note_loss(None if mask is not None else per_example_loss.shape[0])
    check_count("num_examples", num_examples, minimum=1)
    if mask is not None:
        per_example_loss = _mask(per_example_loss, mask)
    return _divide(per_example_loss, num_examples)


def average_step_loss(
    per_example_loss: torch.Tensor, info: StepInfo, num_examples: int
) -> torch.Tensor:
    """Average the losses of a known step: see :meth:`Step.average`."""
    _check_per_example(per_example_loss, "Step.average")
    num_rows = per_example_loss.shape[0]
    count = info.local_counts[_find_replica(len(info.local_counts))]
    expected = count if info.padded_rows is None else info.padded_rows
    if num_rows != expected:
        msg = (
            f"Expected one loss for each of the {expected} rows of this replica's batch of step "
            f"{info.index}, got {num_rows}. Average each step's losses by its own step."
        )
        raise ValueError(msg)
    session = current.loss_session()
    if session is not None:
        session.loss_steps.note_loss()
    if info.padded_rows is not None:
        per_example_loss = _mask(per_example_loss, _mask_of(count, per_example_loss))
    return _divide(per_example_loss, num_examples)


def _check_per_example(loss: torch.Tensor, call: str) -> None:
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


def _divide(loss: torch.Tensor, num_examples: int) -> torch.Tensor:
    # The losses of many rows need not fit into a half where their mean does.
    if loss.dtype in _HALVES:
        return (loss.sum(dtype=torch.float32) / num_examples).to(loss.dtype)
    return loss.sum() / num_examples


def _mask_of(count: int, loss: torch.Tensor) -> torch.Tensor:
    """The examples of a padded batch come first."""
    return torch.arange(loss.shape[0], device=loss.device) < count


def _mask(loss: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The loss with 0 in the rows that do not count, whatever it is there; also infinite or NaN."""
    if mask.dtype is not torch.bool or mask.shape != loss.shape[:1]:
        msg = (
            f"Expected mask to be a bool tensor of shape ({loss.shape[0]},), one for each row of "
            f"the loss, got {mask.dtype} of shape {tuple(mask.shape)}. Pass the mask of its step."
        )
        raise ValueError(msg)
    return torch.where(mask.view(-1, *[1] * (loss.ndim - 1)), loss, 0)


def _note_loss(num_rows: int | None) -> None:
    """Note a loss with ``num_examples``; without a mask refuse rows that look like padded ones.

    The loss may be of any step, but what is padding is known of the last.
    """
    session = current.loss_session()
    if session is None:
        return
    session.loss_steps.note_loss()
    last = session.loss_steps.last
    if num_rows is None or last is None or last.info is None or last.info.padded_rows != num_rows:
        return
    msg = (
        f"Expected mask= beside num_examples=, got {num_rows} rows like the padded batch "
        "delivered last, and no mask: with num_examples= the loss may be of another step, "
        "whose examples are not known here. Pass the mask that came with the batch."
    )
    raise ValueError(msg)


def _last_step(num_rows: int) -> tuple[int, int | None]:
    """The examples in sync of the last step, and this replica's if they may be fewer than rows.

    Refuses a loss that does not belong to the step.
    """
    session = current.loss_session()
    candidates = [] if session is None else session.loss_steps.candidates()
    if session is None or not candidates:
        msg = (
            "compute_average_loss divides by the examples of the step delivered last, but none has "
            "been delivered in this thread. Pass num_examples=."
        )
        raise UsageError(msg)
    replica = _find_replica(len(session.devices))
    if len(candidates) > 1:
        _refuse_several(candidates)
    session.loss_steps.note_loss()
    for info in candidates:
        count = info.local_counts[replica]
        if info.padded_rows is None and count == num_rows:
            return info.num_examples, None
        if info.padded_rows == num_rows:
            return info.num_examples, count
    last = candidates[0]
    padded = last.padded_rows
    rows = f"{last.local_counts[replica]} examples" if padded is None else f"{padded} rows"
    msg = (
        f"Expected one loss for each of the {rows} of the replica batch delivered last, got "
        f"{num_rows} rows. Pass num_examples= if the loss belongs to another step."
    )
    raise ValueError(msg)


def _find_replica(num_replicas: int) -> int:
    """Which local replica the loss is of."""
    context = get_replica_context()
    if context is None and num_replicas > 1:
        msg = (
            f"The loss of a step with {num_replicas} local replicas must be averaged inside "
            "Strategy.run, once per replica. Or pass num_examples= to compute_average_loss."
        )
        raise UsageError(msg)
    return 0 if context is None else context.local_replica


def _refuse_several(candidates: list[StepInfo]) -> None:
    """Refuse what all workers refuse alike: a loss that may be of steps with other examples.

    Steps of as many examples give one result, whichever it is; but which rows are padding is known
    of one step only.
    """
    counts = [info.num_examples for info in candidates]
    is_padded = any(info.padded_rows for info in candidates)
    if len(set(counts)) > 1 or is_padded:
        padded = " and mask=" if is_padded else ""
        msg = (
            f"Expected the loss of one dataset's step, got {len(counts)} open iterators that have "
            f"delivered in turn, steps of {' and '.join(map(str, counts))} examples in sync: which "
            f"of them the loss belongs to is not known. Pass num_examples={padded}, from last_step "
            "of the iterator whose batch it is of; close() an iterator that you are done with."
        )
        raise ValueError(msg)
