"""A step as a value: what was delivered, and where the epoch stands after it.

What trains is not what was delivered last: trainers read ahead, accumulate, and look one step
ahead. A step that travels with its batch through all that still knows its examples and its state.

    delivered   0  1  2  3  4  5         dataset.state_dict(): after 5
    trained     0  1  2                  step.state_dict() of step 2: 3, 4 and 5 come again
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn, final

from torch_distinput.distribute import context
from torch_distinput.distribute.steps.averages import warn_of_sums
from torch_distinput.distribute.steps.step_loss import (
    average_step_by_weight,
    average_step_in_group,
    average_step_loss,
)
from torch_distinput.errors import UsageError
from torch_distinput.plan.progress.state import to_state

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from torch_distinput.distribute.session import Session
    from torch_distinput.engine.epoch_record import StepEnd
    from torch_distinput.plan.progress.position import Position
    from torch_distinput.plan.progress.state import Recipe
    from torch_distinput.values import PerReplica, StepInfo


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupShare:
    """What the steps have that train together with one.

    Attributes:
        num_examples: of all of them, in sync.
        num_tokens: of all of them, in sync; None where it is not known.
        total_weight: of all of them, in sync; None without weights.
        weights: of this step alone, for each local replica.
    """

    num_examples: int
    num_tokens: int | None
    total_weight: float | None = None
    weights: tuple[torch.Tensor, ...] = ()


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
    _session: Callable[[], Session | None] | None = None
    _share: GroupShare | None = None

    def __repr__(self) -> str:
        """Show the numbers, not the batch."""
        return f"Step(index={self.index}, num_examples={self.num_examples})"

    def _repr_html_(self) -> str:
        """Draw which rows this rank has, for notebooks."""
        session = None if self._session is None else self._session()
        return self.info._show(None if session is None else session.topology.first_replica)  # noqa: SLF001

    def __iter__(self) -> NoReturn:
        """Refuse to be unpacked like a batch."""
        msg = (
            f"Expected a batch to iterate or unpack, got step {self.index}, which holds one. "
            "Write step.batch: x, y = step.batch."
        )
        raise TypeError(msg)

    def __getitem__(self, key: object) -> NoReturn:
        """Refuse to be taken for a batch."""
        msg = (
            f"Expected a batch to take {key!r} of, got step {self.index}, which holds one. Write "
            f"step.batch[{key!r}]."
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

    @property
    def num_tokens(self) -> int | None:
        """Tokens in this step over all replicas in sync, as in :class:`StepInfo`."""
        return self.info.num_tokens

    def average(
        self,
        per_example_loss: torch.Tensor,
        *,
        per: Literal["example", "token"] | None = None,
        weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Sum a replica's losses and divide by the examples of the global batch, or its tokens.

        The sum of the results over all replicas is the mean loss of the global batch; of all steps
        of the group, where :func:`accumulate` gave it. DDP and FSDP average gradients over workers,
        so multiply by ``strategy.num_workers`` before ``backward()``. Rows that
        ``InputOptions(partial_batch="pad")`` has added are left out.

        Args:
            per_example_loss: shape ``(rows, ...)``: losses of this step's batch, with
                ``reduction="none"``. Several of an example are added up.
            per: ``"example"``, the default: divide by examples. ``"token"``: by the weights that
                :func:`accumulate` was given; without them by ``num_tokens``, all tokens that the
                source's lengths count, whether they have a loss or not. Where ``accumulate`` was
                given weights there is no default.
            weights: of the shape of the losses, bools or floats from 0 on: which of them count
                (``labels != -100``), and how much. The losses times their weights are divided by
                all weights of the step, which all replicas add up now, in one small all-reduce: all
                of them pass weights. These carry no gradient, and may be anything in rows that are
                padding.

        Returns:
            A 0-dim tensor of the loss's dtype, summed in float32 if that is a half, of the default
            one if it is not floating; exactly 0, with gradients, for a batch of zero rows, and for
            all where everything weighs 0.

        Raises:
            ValueError: if the loss has other rows than the batch; by token, if the tokens are not
                known; without ``per`` where ``accumulate`` was given weights; for weights of
                another shape than the loss, or that are negative, infinite or NaN, and for weights
                of one step of a group.
            PeerFailedError: if another worker's weights, or its loss beside them, are refused.
            MismatchError: if weights are of different steps on different workers.
            UsageError: with several local replicas outside ``Strategy.run``.
        """
        if weights is not None:
            return self._average_by_weight(per_example_loss, weights)
        if per == "token":
            return self._average_by_token(per_example_loss)
        if per is None:
            self._refuse_unused_weights()
        elif per != "example":
            msg = f'Expected per="example" or per="token", got {per!r}. Pass one of them.'
            raise ValueError(msg)
        num_examples = self.num_examples if self._share is None else self._share.num_examples
        warn_of_sums(per_example_loss)
        return average_step_loss(per_example_loss, self.info, num_examples)

    def _average_by_weight(self, loss: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        if self._share is not None:
            msg = (
                "Expected the weights of a group of steps before its first loss, got those of step "
                f"{self.index} alone: what to divide by is the sum over the group. Write "
                "accumulate(steps, num_steps, weights=lambda batch: ...), and "
                'step.average(losses, per="token").'
            )
            raise ValueError(msg)
        return average_step_by_weight(loss, weights, self.info, self._find_session())

    def _average_by_token(self, loss: torch.Tensor) -> torch.Tensor:
        share = self._share
        if share is not None and share.total_weight is not None:
            return average_step_in_group(loss, share.weights, self.info, share.total_weight)
        num_tokens = self.num_tokens if share is None else share.num_tokens
        if num_tokens is None:
            cure = "step.average(losses, weights=labels != -100)"
            if share is not None:
                cure = "accumulate(steps, num_steps, weights=lambda batch: ...)"
            msg = (
                f"Expected a number of tokens to divide by, got step {self.index}, which knows its "
                f"{self.num_examples} examples and not how long they are. Say which losses count: "
                f"{cure}."
            )
            raise ValueError(msg)
        return average_step_loss(loss, self.info, num_tokens)

    def _refuse_unused_weights(self) -> None:
        """Who adds up weights and forgets to name them would train on sums over tokens."""
        if self._share is None or self._share.total_weight is None:
            return
        msg = (
            "Expected per= in a group of steps whose weights accumulate() has added up, got none "
            f'for step {self.index}. Write step.average(losses, per="token") to divide by those '
            f'weights, or per="example" by the {self._share.num_examples} examples of the group.'
        )
        raise ValueError(msg)

    def _find_session(self) -> Session:
        """Whose replicas add up weights. A copy of a step, here or elsewhere, asks the scope."""
        session = context.entered_session() if self._session is None else self._session()
        if session is None:
            msg = (
                f"Expected a strategy whose replicas add up their weights, got step {self.index}, "
                "which is a copy, or whose strategy is gone. Keep the strategy, and average inside "
                "strategy.scope()."
            )
            raise UsageError(msg)
        context.check_same_strategy(session)
        return session

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy or pickle what it knows; what tells it of its epoch stays in this process."""
        recipe = _Known(self._recipe(self._end.position))
        return _remake, (self.batch, self.info, self._end, recipe, self._share)

    def state_dict(self) -> dict[str, Any]:
        """Where the epoch stands after this step, for :meth:`DistributedDataset.load_state_dict`.

        Whatever was delivered since; the same on all workers, and no other rank is asked for it.
        """
        position = self._end.position
        return to_state(position, self._recipe(position))

    def load_state_dict(self, state: dict[str, Any]) -> NoReturn:
        """Refuse: a state is loaded into the dataset.

        As there is such a method, ``torch.distributed.checkpoint`` saves the state of a step.
        """
        del state
        msg = (
            "A state is loaded into the dataset, and its next iter() continues from there: "
            f"dataset.load_state_dict(state). This is step {self.index} of an epoch."
        )
        raise UsageError(msg)


@final
@dataclass(frozen=True, slots=True)
class _Known:
    """The recipe of one position, where that is the only one to be asked for."""

    recipe: Recipe

    def __call__(self, position: Position) -> Recipe:  # noqa: ARG002
        return self.recipe


def _remake(
    batch: Any, info: StepInfo, end: StepEnd, recipe: _Known, share: GroupShare | None
) -> Step:
    return Step(batch=batch, info=info, _end=end, _recipe=recipe, _share=share)
