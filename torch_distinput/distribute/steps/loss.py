"""The loss of the step delivered last, whose examples are spread over replicas, unevenly or not."""

from __future__ import annotations

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
    warn_of_sums,
)
from torch_distinput.errors import UsageError, refer
from torch_distinput.options import check_count

if TYPE_CHECKING:
    from torch_distinput.distribute.session import Session
    from torch_distinput.values import StepInfo

_EXPLAINED_IN = "docs/errors.md#the-loss-does-not-belong-to-the-step"


def compute_average_loss(
    per_example_loss: torch.Tensor,
    num_examples: int | None = None,
    *,
    mask: torch.Tensor | None = None,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Sum a replica's losses and divide by the examples of the *global* batch.

    The sum of the results over all replicas is the mean loss of the global batch, also when
    replicas have different numbers of rows or none (``tf.nn.compute_average_loss``). DDP and FSDP
    average gradients over workers, so multiply by ``strategy.num_workers`` before ``backward()``.

    The rows that ``InputOptions(partial_batch="pad")`` has added are left out.

    With ``weights`` it is the mean by weight: losses times weights, divided by all weights of the
    global batch. The replicas add these up in one small all-reduce, so all of them pass weights.

    Args:
        per_example_loss: shape ``(rows, ...)``: losses with ``reduction="none"``. Several of an
            example are added up.
        num_examples: what to divide by; default: the examples in sync of the step delivered last
            to the current strategy. Pass it with several datasets at once and under gradient
            accumulation: ``iterator.last_step.num_examples``, or the total of the steps. Where
            several open iterators have delivered equally many steps since the last loss, as under
            ``zip``, it is refused on all workers unless their steps have as many examples.
        mask: bool, shape ``(rows,)``: which rows count. Pass it, as it came with the batch, beside
            the ``num_examples`` or the ``weights`` of padded batches of another step than the one
            delivered last, of which it is known.
        weights: of the shape of the losses, bools or floats from 0 on: which of them count
            (``labels != -100``), and how much. They carry no gradient, and may be anything in rows
            that are padding.

    Returns:
        A 0-dim tensor of the loss's dtype, summed in float32 if that is a half, of the default one
        if it is not floating; exactly 0, with gradients, for a batch of zero rows, and for all
        where everything weighs 0.

    Raises:
        ValueError: if the loss has other rows than the replica batch delivered last, or the mask
            than the loss; for padded batches with ``num_examples`` and without their mask; if the
            loss may belong to steps of several datasets; for weights of another shape than the
            loss, or that are negative, infinite or NaN.
        PeerFailedError: if another worker's weights, or its loss, are refused.
        MismatchError: if weights are of different steps on different workers.
        UsageError: if no step has been delivered and ``num_examples`` is not given; or if an
            integration plays the dataset, which has a way of its own to average.
    """
    if weights is not None:
        return _average_by_weight(per_example_loss, weights, mask, num_examples)
    check_per_example(per_example_loss, "compute_average_loss")
    warn_of_sums(per_example_loss)
    if num_examples is None:
        if mask is not None:
            msg = (
                "Expected num_examples= beside mask=, got the mask alone: without num_examples= "
                "the loss is that of the step delivered last, whose padding is known and left out. "
                "Leave mask= out, or pass both."
            )
            raise ValueError(msg)
        num_examples, count = _last_step(per_example_loss.shape[0])
        mask = mask_of(count, per_example_loss)
    else:
        _note_loss(None if mask is not None else per_example_loss.shape[0])
    check_count("num_examples", num_examples, minimum=1)
    if mask is not None:
        per_example_loss = mask_rows(per_example_loss, mask)
    return divide(per_example_loss, num_examples)


def _average_by_weight(
    loss: torch.Tensor,
    weights: torch.Tensor,
    mask: torch.Tensor | None,
    num_examples: int | None,
) -> torch.Tensor:
    """The mean by weight of a loss of the step delivered last, or of one whose mask is given."""
    if num_examples is not None:
        msg = (
            f"Expected num_examples= or weights=, got both: a loss is divided by {num_examples} "
            "examples, or by what all replicas' weights add up to. Leave one of them out."
        )
        raise ValueError(msg)
    session = context.loss_session()
    if session is None:
        msg = (
            "Expected a strategy whose replicas add up their weights, got none: no step has been "
            "delivered in this thread. Call compute_average_loss where next(iterator) is called, "
            "or inside strategy.scope()."
        )
        raise UsageError(msg)
    _refuse_integrated(session)

    def find_mask() -> torch.Tensor | None:
        check_per_example(loss, "compute_average_loss")
        if mask is None:
            return mask_of(_last_step(loss.shape[0], by_weight=True)[1], loss)
        find_replica(len(session.devices))
        _note_loss(None)
        return mask

    index = None
    if mask is None and (candidates := session.loss_steps.candidates()):
        index = candidates[0].index
    cp_dim = _find_cp_dim(session)
    return average_by_weight(loss, weights, find_mask, session, index=index, cp_dim=cp_dim)


def _find_cp_dim(session: Session) -> str | None:
    """Over which dimension the sequences are cut of which the loss is."""
    last = session.loss_steps.last
    found = {info.cp_dim for info in session.loss_steps.candidates()}
    if not found and last is not None and last.info is not None:
        found = {last.info.cp_dim}
    if len(found) > 1:
        msg = (
            "Expected the loss of one dataset's step, got open iterators that have delivered in "
            "turn, with whole sequences and with slices of them (cp_dim). Use step.average of "
            "dataset.steps()."
        )
        raise ValueError(msg)
    return next(iter(found), None)


def _note_loss(num_rows: int | None) -> None:
    """Note a loss with ``num_examples``; without a mask refuse rows that look like padded ones.

    The loss may be of any step, but what is padding is known of the last.
    """
    session = context.loss_session()
    if session is None:
        return
    last = session.loss_steps.turns.last
    if last is not None and last.is_open:  # after it, what is logged may be of all its steps
        _refuse_integrated(session)
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


def _last_step(num_rows: int, *, by_weight: bool = False) -> tuple[int, int | None]:
    """The examples in sync of the last step, and this replica's if they may be fewer than rows.

    Refuses a loss that does not belong to the step.
    """
    session = context.loss_session()
    candidates = [] if session is None else session.loss_steps.candidates()
    if session is None or not candidates:
        cure = "mask=: which rows count" if by_weight else "num_examples="
        msg = (
            "compute_average_loss divides by the examples of the step delivered last, but none has "
            f"been delivered in this thread. Pass {cure}."
        )
        raise UsageError(msg)
    _refuse_integrated(session)
    replica = find_replica(len(session.devices))
    if len(candidates) > 1:
        _refuse_several(candidates, by_weight=by_weight)
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
    cure = "Pass num_examples= if the loss belongs to another step"
    if by_weight:
        cure = "Losses of tokens keep their rows: losses.view(labels.shape)"
    msg = (
        f"Expected one loss for each of the {rows} of the replica batch delivered last, got "
        f"{num_rows} rows. {cure}."
    )
    raise refer(ValueError(msg), _EXPLAINED_IN)


def _refuse_integrated(session: Session) -> None:
    """Refuse a loss that somebody else divides, too; also where it would come out right."""
    last = session.loss_steps.turns.last
    if last is not None and last.cure is not None:
        msg = (
            "Expected compute_average_loss in a loop of your own over the dataset, got it where "
            "an integration plays the dataset: that reads steps ahead, and what it trains with "
            f"divides gradients once more. {last.cure}"
        )
        raise UsageError(msg)


def _refuse_several(candidates: list[StepInfo], *, by_weight: bool) -> None:
    """Refuse what all workers refuse alike: a loss that may be of steps with other examples.

    Steps of as many examples give one result, whichever it is, and weights are added up whatever
    the step has; but which rows are padding is known of one step only.
    """
    counts = [info.num_examples for info in candidates]
    is_padded = any(info.padded_rows for info in candidates)
    if is_padded or (len(set(counts)) > 1 and not by_weight):
        names = ["num_examples="] * (not by_weight) + ["mask="] * is_padded
        msg = (
            f"Expected the loss of one dataset's step, got {len(counts)} open iterators that "
            f"have delivered in turn, steps of {' and '.join(map(str, counts))} examples in "
            f"sync: which of them the loss belongs to is not known. Pass {' and '.join(names)}, "
            "of the step that the loss belongs to; close() an iterator that you are done with."
        )
        raise refer(ValueError(msg), _EXPLAINED_IN)
