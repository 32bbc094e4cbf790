"""Steps that train together: gradient accumulation, with the gradients of one large batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import MethodType
from typing import TYPE_CHECKING, Any, NoReturn, final

from torch_distinput.distribute import context
from torch_distinput.distribute.replicas.replica import split_arguments
from torch_distinput.distribute.steps.step import GroupShare, Step
from torch_distinput.distribute.steps.step_loss import mask_step
from torch_distinput.distribute.steps.weights import sum_weights
from torch_distinput.options import check_count
from torch_distinput.values import Distributed

if TYPE_CHECKING:
    import torch


@final
class StepGroup(tuple[Step, ...]):
    """Steps that train together, from :func:`accumulate`."""

    __slots__ = ()

    @property
    def num_examples(self) -> int:
        """Examples of all its steps over all replicas in sync."""
        return sum(step.num_examples for step in self)

    @property
    def num_tokens(self) -> int | None:
        """Tokens of all its steps over all replicas in sync; None where they are not known."""
        counts = [step.num_tokens for step in self]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    def state_dict(self) -> dict[str, Any]:
        """Where the epoch stands after its last step."""
        return self[-1].state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> NoReturn:
        """Refuse, as :meth:`Step.load_state_dict`."""
        self[-1].load_state_dict(state)


def accumulate(
    steps: Iterable[Step],
    num_steps: int,
    *,
    weights: Callable[[Any], torch.Tensor] | None = None,
) -> Iterator[StepGroup]:
    """Yield groups of ``num_steps`` steps, the last of an epoch perhaps of fewer.

    For gradient accumulation: ``step.average`` divides by the examples of the whole group, so that
    the gradients that its steps add up to are those of one large batch. All ranks get the same
    groups.

        for group in tdi.accumulate(train.steps(), 4):
            for step in group:
                (step.average(loss_of(step.batch)) * strategy.num_workers).backward()
            optimizer.step()

    Args:
        steps: those of ``dataset.steps()``.
        num_steps: how many are held at once, at least 1.
        weights: from a replica's batch to the weights of its losses, as of ``Step.average``: then
            ``step.average(losses, per="token")`` divides by those of the whole group. The replicas
            add them up in one small all-reduce for each group, before it is yielded.

    Raises:
        ValueError: if ``num_steps`` is less than 1; for weights that are negative, infinite or NaN,
            or of other rows than the batch.
        TypeError: for what is no step, as the batches of ``iter(dataset)`` are; for weights that
            are no function.
        PeerFailedError: if another worker's weights are refused.
    """
    num_steps = check_count("num_steps", num_steps, minimum=1)
    if weights is not None and not callable(weights):
        msg = (
            "Expected weights of accumulate() to be a function of a replica's batch, got "
            f'{type(weights).__name__}. Write weights=lambda batch: batch["labels"] != -100.'
        )
        raise TypeError(msg)
    is_dataset = isinstance(steps, Distributed) and hasattr(steps, "steps")
    if is_dataset or isinstance(steps, MethodType):  # before iter(), which begins an epoch
        raise _make_no_step_error(steps, num_steps)
    return _Groups(iter(steps), num_steps, weights)


def _make_no_step_error(given: Any, num_steps: int) -> TypeError:
    return TypeError(
        "accumulate() groups the steps of dataset.steps(), which know their examples, got "
        f"{type(given).__name__}. Pass accumulate(dataset.steps(), {num_steps})."
    )


@final
class _Groups(Iterator[StepGroup]):
    """The groups of an epoch.

    No generator: that would be over after an error, and the next group asked for would be the end
    of the epoch. The steps say again what they have said.
    """

    def __init__(
        self, steps: Iterator[Step], num_steps: int, weights: Callable[[Any], Any] | None
    ) -> None:
        """Take the steps."""
        self._steps = steps
        self._num_steps = num_steps
        self._weights = weights
        self._begun: list[Step] = []  # of a group that an error, or Ctrl-C, came into

    def __iter__(self) -> _Groups:
        """Return itself; the steps say so if all of them were delivered."""
        iter(self._steps)
        return self

    def __next__(self) -> StepGroup:
        """Take the steps of the next group; raises what they raise."""
        while len(self._begun) < self._num_steps and (step := next(self._steps, None)) is not None:
            self._begun.append(step)
        group = StepGroup(self._begun)
        if not group:
            raise StopIteration
        for step in group:
            if type(step) is not Step:
                raise _make_no_step_error(step, self._num_steps)
        share = GroupShare(num_examples=group.num_examples, num_tokens=group.num_tokens)
        weights = self._weights
        shares = [share] * len(group) if weights is None else _weigh(group, share, weights)
        made = StepGroup(map(_in_group, group, shares))
        self._begun = []
        return made


def _in_group(step: Step, share: GroupShare) -> Step:
    return replace(step, _share=share)


def _weigh(group: StepGroup, share: GroupShare, weights: Callable[[Any], Any]) -> list[GroupShare]:
    """What each step has of its group, whose weights all replicas add up now."""
    session = group[0]._find_session()  # noqa: SLF001 - a group knows its steps
    context.check_cross_replica(session, "accumulate(weights=...)")

    def make() -> list[torch.Tensor]:
        return [own for step in group for own in _weights_of(step, weights)]

    first = group[0].info
    found, total = sum_weights(session, make, index=first.index, cp_dim=first.cp_dim)
    width = len(session.devices)
    parts = (tuple(found[start : start + width]) for start in range(0, len(found), width))
    return [replace(share, total_weight=total, weights=part) for part in parts]


def _weights_of(step: Step, weights: Callable[[Any], Any]) -> Iterator[torch.Tensor]:
    """Those of each local replica's batch."""
    batches = split_arguments(step.batch, len(step.local_counts))
    for replica, batch in enumerate(batches):
        yield mask_step(weights(batch), step.info, replica)
