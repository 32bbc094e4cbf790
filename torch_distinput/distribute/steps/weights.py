"""What the losses of a step weigh over all replicas in sync: what a loss by token is divided by.

    replica 0    labels  5  7  -     weights  1 1 0
    replica 1    labels  9  -  -              1 0 0     3 in all: what each sum is divided by

That is one small all-reduce over the workers, of float64 in host memory, and if sequences are cut
another one over the ranks that have the other slices of them.

All workers make it alike, those without rows too, and those whose weights are refused: an error
before it would leave the others waiting in it. Only if one has failed do they say why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch

from torch_distinput.cluster.membership import check_alone
from torch_distinput.distribute.replicas.replica import get_replica_context
from torch_distinput.errors import MismatchError, PeerFailedError

if TYPE_CHECKING:
    from torch_distinput.communicator import Communicator
    from torch_distinput.distribute.session import Session

_STEP_NUMBERS = 1 << 16
"""Steps are told apart by their number modulo this: float64 adds the squares of 2**21 replicas."""
_WITH_FLOAT64 = ("cpu", "cuda")


class _Sums(NamedTuple):
    """What is summed up over the replicas.

    Steps are equal if the sum of their squares, times how many know them, is the square of their
    sum: a rank that has passed over a step alone would add weights of another one.
    """

    weight: float
    num_failed: float
    num_known: float = 0
    step: float = 0
    squared_step: float = 0


def check_weights(weights: object, num_rows: int) -> torch.Tensor:
    """Return weights of a replica batch of ``num_rows`` rows, whatever they are.

    Whole numbers are refused: they may be the labels themselves, passed by mistake.
    """
    if not isinstance(weights, torch.Tensor):
        found = type(weights).__name__
    elif weights.dtype is not torch.bool and not weights.is_floating_point():
        found = f"a tensor of {weights.dtype}"
    elif weights.ndim == 0 or len(weights) != num_rows:
        msg = (
            f"Expected weights of shape (rows, ...) for the {num_rows} rows of the replica batch, "
            f"got {tuple(weights.shape)}. Make them from the batch whose losses they weigh."
        )
        raise ValueError(msg)
    else:
        return weights.detach()
    msg = (
        f"Expected weights to be a tensor of bools or floats, one for each loss, got {found}. "
        "Write which labels count, as in labels != -100, or convert: weights.bool()."
    )
    raise TypeError(msg)


def check_shape(weights: torch.Tensor, loss: torch.Tensor) -> None:
    """Refuse weights that are not one for each loss: broadcast, they would count other losses."""
    if weights.shape != loss.shape:
        msg = (
            f"Expected one weight for each loss, of shape {tuple(loss.shape)}, got weights of "
            f"shape {tuple(weights.shape)}. Shift and reshape both alike; keep the rows."
        )
        raise ValueError(msg)


def weigh(loss: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The losses times their weights; 0 where the weight is 0, also of a loss that is NaN there."""
    weights = weights.to(loss.device)
    product = loss if weights.dtype is torch.bool else loss * weights.to(loss.dtype)
    return torch.where(weights != 0, product, 0)


def sum_weights(
    session: Session,
    make: Callable[[], Sequence[torch.Tensor]],
    *,
    index: int | None,
    cp_dim: str | None,
) -> tuple[Sequence[torch.Tensor], float]:
    """Make this replica's weights and add up those of all replicas in sync; a collective call.

    Inside ``Strategy.run`` all local replicas make it; outside, this worker for all of them.

    Args:
        session: of the replicas.
        make: returns the weights, with zeros in rows that are padding.
        index: the number of the step, if it is known of which one the loss is.
        cp_dim: the dimension over whose ranks sequences are cut: they have the other weights.

    Raises:
        ValueError: for weights that are negative, infinite or NaN; or what ``make`` raises.
        PeerFailedError: in the same call, if that was on another worker.
        MismatchError: if workers have losses of different steps.
    """
    weights: Sequence[torch.Tensor] = ()
    own, error = 0.0, None
    try:
        weights = make()
        own = math.fsum(map(_sum_up, weights))
    except Exception as raised:  # noqa: BLE001 - raised again when the others have heard of it
        error = raised
    sums = _Sums(own, error is not None)
    if index is not None:
        step = index % _STEP_NUMBERS
        sums = sums._replace(num_known=1, step=step, squared_step=step**2)
    vector = torch.tensor(sums, dtype=torch.float64, device="cpu")
    context = get_replica_context()
    try:
        if context is not None:
            return weights, context.merge_call(_merge, args=(vector, error, cp_dim))
        return weights, _add_up(session, [vector], [error], cp_dim)
    finally:
        del error  # error -> traceback -> this frame -> error


def _sum_up(weights: torch.Tensor) -> float:
    if weights.dtype is torch.bool:
        return float(weights.sum())
    wide = weights.to(torch.float64 if weights.device.type in _WITH_FLOAT64 else torch.float32)
    is_weight = (wide >= 0) & wide.isfinite()
    total, is_fine = torch.stack([wide.sum(), is_weight.all().to(wide.dtype)]).tolist()
    if not is_fine:
        wrong = wide[~is_weight]
        msg = (
            f"Expected weights of 0 or more, got {len(wrong)} others, the first of them "
            f"{wrong[0].item():g}. What is not to count has a weight of 0."
        )
        raise ValueError(msg)
    return float(total)


def _merge(strategy: Any, vector: Any, error: Any, cp_dim: str | None) -> float:
    """Called once for all local replicas."""
    vectors, errors = map(strategy.local_results, (vector, error))
    return _add_up(strategy._session, vectors, errors, cp_dim)  # noqa: SLF001 - not for users


def _add_up(
    session: Session,
    vectors: Sequence[torch.Tensor],
    errors: Sequence[Exception | None],
    cp_dim: str | None,
) -> float:
    check_alone(session.communicator)
    ranks = [session.communicator]
    if cp_dim is not None:
        ranks.append(session.join_slices(cp_dim))
    vector = torch.stack(list(vectors)).sum(0)
    for some in ranks:
        vector = some.all_reduce(vector)
    sums = _Sums(*vector.tolist())
    if sums.num_failed:
        _raise_first(ranks, errors)
    if int(sums.num_known) * int(sums.squared_step) != int(sums.step) ** 2:
        _raise_mismatch(ranks, _Sums(*vectors[0].tolist()))
    return sums.weight


def _raise_mismatch(ranks: Sequence[Communicator], own: _Sums) -> NoReturn:
    told = [int(own.step) if own.num_known else None]
    for some in ranks:
        told = [step for part in some.gather_objects(told) for step in part]
    known = [(place % ranks[0].size, step) for place, step in enumerate(told) if step is not None]
    first, expected = known[0]
    odd, got = next((worker, step) for worker, step in known if step != expected)
    msg = (
        f"Expected the weights of one step from all workers, got those of step {expected} on "
        f"worker {first} and of step {got} on worker {odd}. Did one rank pass over a step alone, "
        "as by `continue`? Do so on all ranks; or weigh the losses of the step with 0 on that one."
    )
    raise MismatchError(msg)


def _raise_first(ranks: Sequence[Communicator], errors: Sequence[Exception | None]) -> None:
    own = next((error for error in errors if error is not None), None)
    told = [None if own is None else f"{type(own).__name__}: {own}"]
    for some in ranks:
        told = [words for part in some.gather_objects(told) for words in part]
    if own is not None:
        try:
            raise own
        finally:
            del own, errors
    number, words = next((number, words) for number, words in enumerate(told) if words)
    worker = number % ranks[0].size  # the workers come anew for each slice of their sequences
    msg = f"Expected weights from every worker, but worker {worker} failed: {words}"
    raise PeerFailedError(msg)
