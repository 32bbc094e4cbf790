"""A step as a value: what was delivered, and where the epoch stands after it.

What trains is not what was delivered last: trainers read ahead, accumulate, and look one step
ahead. A step that travels with its batch through all that still knows its examples and its state.

    delivered   0  1  2  3  4  5         dataset.state_dict(): after 5
    trained     0  1  2                  step.state_dict() of step 2: 3, 4 and 5 come again
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn, final

from torch_distinput.distribute.steps.loss import average_step_loss
from torch_distinput.options import check_count
from torch_distinput.plan.progress.state import to_state

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from torch_distinput.engine.epoch_record import StepEnd
    from torch_distinput.plan.progress.position import Position
    from torch_distinput.plan.progress.state import Recipe
    from torch_distinput.values import PerReplica, StepInfo


@final
@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class Step:
    """One step of an epoch, from :meth:`DistributedDataset.steps`.

    Attributes:
        batch: what ``next(iterator)`` returns: the user's structure, each leaf of shape
            ``(rows, ...)``, PerReplica with several local replicas.
        info: facts about it; they can be asked of the step itself.
    """

    batch: Any
    info: StepInfo
    _end: StepEnd
    _recipe: Callable[[Position], Recipe]
    _num_averaged: int | None = None

    def __repr__(self) -> str:
        """Show the numbers, not the batch."""
        return f"Step(index={self.index}, num_examples={self.num_examples})"

    def __iter__(self) -> NoReturn:
        """Refuse to be unpacked like a batch."""
        msg = (
            f"Expected a batch to iterate or unpack, got step {self.index}, which holds one. "
            "Write step.batch: x, y = step.batch."
        )
        raise TypeError(msg)

    @property
    def index(self) -> int:
        """Number of the step within its epoch, from 0."""
        return self.info.index

    @property
    def num_examples(self) -> int:
        """Examples in this step over all replicas in sync."""
        return self.info.num_examples

    @property
    def local_counts(self) -> tuple[int, ...]:
        """Examples of each local replica, in replica order."""
        return self.info.local_counts

    @property
    def ids(self) -> NDArray[np.int64] | PerReplica[NDArray[np.int64]]:
        """Names of the examples, in order, as in :class:`StepInfo`."""
        return self.info.ids

    @property
    def padded_rows(self) -> int | None:
        """Rows that each batch was filled up to; None where the rows are the examples."""
        return self.info.padded_rows

    @property
    def sources(self) -> Mapping[str, int] | None:
        """Examples by source of a mixture, as in :class:`StepInfo`."""
        return self.info.sources

    @property
    def is_empty(self) -> bool:
        """Whether no local replica has an example, as in :class:`StepInfo`."""
        return self.info.is_empty

    def average(self, per_example_loss: torch.Tensor) -> torch.Tensor:
        """Sum a replica's losses and divide by the examples of the global batch.

        The sum of the results over all replicas is the mean loss of the global batch; of all steps
        of the group, where :func:`accumulate` gave it. DDP and FSDP average gradients over workers,
        so multiply by ``strategy.num_workers`` before ``backward()``. Rows that
        ``InputOptions(partial_batch="pad")`` has added are left out.

        Args:
            per_example_loss: shape ``(rows, ...)``: losses of this step's batch, with
                ``reduction="none"``.

        Returns:
            A 0-dim tensor of the loss's dtype, summed in float32 if that is a half; exactly 0, with
            gradients, for a batch of zero rows.

        Raises:
            ValueError: if the loss has other rows than the batch.
            UsageError: with several local replicas outside ``Strategy.run``.
        """
        num_examples = self.num_examples if self._num_averaged is None else self._num_averaged
        return average_step_loss(per_example_loss, self.info, num_examples)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy or pickle what it knows; what tells it of its epoch stays in this process."""
        recipe = _Known(self._recipe(self._end.position))
        return _remake, (self.batch, self.info, self._end, recipe, self._num_averaged)

    def state_dict(self) -> dict[str, Any]:
        """Where the epoch stands after this step, for :meth:`DistributedDataset.load_state_dict`.

        Whatever was delivered since; the same on all ranks, and no other rank is asked for it.
        """
        position = self._end.position
        return to_state(position, self._recipe(position))


@final
@dataclass(frozen=True, slots=True)
class _Known:
    """The recipe of one position, where that is the only one to be asked for."""

    recipe: Recipe

    def __call__(self, position: Position) -> Recipe:  # noqa: ARG002
        return self.recipe


def _remake(
    batch: Any, info: StepInfo, end: StepEnd, recipe: _Known, num_averaged: int | None
) -> Step:
    return Step(batch=batch, info=info, _end=end, _recipe=recipe, _num_averaged=num_averaged)


@final
class StepGroup(tuple[Step, ...]):
    """Steps that train together, from :func:`accumulate`."""

    __slots__ = ()

    @property
    def num_examples(self) -> int:
        """Examples of all its steps over all replicas in sync."""
        return sum(step.num_examples for step in self)

    def state_dict(self) -> dict[str, Any]:
        """Where the epoch stands after its last step."""
        return self[-1].state_dict()


def accumulate(steps: Iterable[Step], num_steps: int) -> Iterator[StepGroup]:
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

    Raises:
        ValueError: if ``num_steps`` is less than 1.
        TypeError: for what is no step, as the batches of ``iter(dataset)`` are.
    """
    num_steps = check_count("num_steps", num_steps, minimum=1)
    return _group(iter(steps), num_steps)


def _group(steps: Iterator[Step], num_steps: int) -> Iterator[StepGroup]:
    while group := StepGroup(islice(steps, num_steps)):
        for step in group:
            if type(step) is not Step:
                msg = (
                    "accumulate() groups the steps of dataset.steps(), which know their examples, "
                    f"got {type(step).__name__}. Pass accumulate(dataset.steps(), {num_steps})."
                )
                raise TypeError(msg)
        total = group.num_examples
        yield StepGroup(replace(step, _num_averaged=total) for step in group)
