"""Global batches by a budget: as many consecutive examples of an order as fit.

    order        7   2   9   4   0   1
    lengths     30  50  60  10  40  90        budget 100
    totals    0  30  80  140 150 190 280
    batches   | 7   2 | 9   4 | 0   | 1   |   80, 70, 40 and 90 tokens

The whole order is worked out beforehand, with the sums of its lengths: 24 bytes an example.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import final

import numpy as np

from torch_distinput.errors import ConfigurationError
from torch_distinput.plan.assignment.batching import Splitter, cut_for_all
from torch_distinput.plan.assignment.bounds import BatchBudget, find_begins
from torch_distinput.plan.assignment.bucketing import BucketedOrder
from torch_distinput.plan.assignment.order import (
    ExampleOrder,
    GivenOrder,
    Run,
    check_within,
)
from torch_distinput.plan.assignment.permutation import Indices


@final
@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BudgetBatches:
    """Consecutive pieces of an order, each as long as a budget allows.

    Attributes:
        order: all examples.
        sequence: their indices, in order.
        totals: the tokens before each place of the order, and before its end.
        begins: the places at which batches begin, and at which the last one ends.
        budget: what fits.
        drop_last: leave the last batch out, unless it is full.
        borders: the places at which batches begin, where the order says it, and its end.
    """

    order: ExampleOrder
    sequence: Indices
    totals: Indices
    begins: Indices
    budget: BatchBudget
    drop_last: bool
    borders: Indices | None

    @staticmethod
    def of(
        order: ExampleOrder, lengths: Indices, budget: BatchBudget, *, drop_last: bool = False
    ) -> BudgetBatches:
        """Cut an order.

        Args:
            order: all examples.
            lengths: of each index.
            budget: what fits.
            drop_last: leave the last batch out, if it has fewer tokens than the budget.

        Raises:
            ConfigurationError: a ValueError; an example is longer than the budget, or of no length.
        """
        sequence = order.take_range(0, order.num_examples)
        _check_indices(sequence, len(lengths))
        counted = budget.cap(lengths[sequence])
        check_fits(sequence, counted, budget)
        totals = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counted)])
        whole = BudgetBatches(
            order=order,
            sequence=sequence,
            totals=totals,
            begins=totals[:1],
            budget=budget,
            drop_last=drop_last,
            borders=order.find_begins() if isinstance(order, BucketedOrder) else None,
        )
        return whole._begin_with(0)

    @property
    def num_batches(self) -> int:
        """How many there are."""
        return len(self.begins) - 1

    @property
    def num_dropped(self) -> int:
        """Examples of the last batch, if it is left out."""
        return len(self.sequence) - int(self.begins[-1])

    @property
    def runs(self) -> tuple[Run, ...]:
        """The batches by number of examples, as long as it does not change."""
        sizes = np.diff(self.begins)
        firsts = np.flatnonzero(np.diff(sizes, prepend=-1))
        counts = np.diff(firsts, append=len(sizes))
        columns = (firsts.tolist(), counts.tolist(), sizes[firsts].tolist())
        return tuple(map(Run, *columns))

    @property
    def num_tokens(self) -> list[int]:
        """The tokens of each batch."""
        tokens: list[int] = np.diff(self.totals[self.begins]).tolist()
        return tokens

    def count_tokens(self, splitter: Splitter) -> Iterator[int]:
        """Yield the tokens in sync of each step that has an example."""
        if splitter.shared:
            yield from self.num_tokens
            return
        for begin, end in pairwise(self.begins.tolist()):
            before = self.totals[begin : end + 1]
            tokens, rows = np.zeros((2, splitter.steps_per_batch), dtype=np.int64)
            for sizes in cut_for_all(splitter, (end - begin,)):
                played = sizes.sum(axis=1)
                tokens += np.diff(before[np.cumsum(played)], prepend=before[0])
                rows += played
            yield from tokens[rows > 0].tolist()

    def take(self, batch: int) -> Indices:
        """Return the examples of a batch, in order."""
        return self.sequence[self.begins[batch] : self.begins[batch + 1]].copy()

    def iterate_rows(self, run: Run, start: int, stop: int) -> Iterator[Indices]:
        """Yield the rows from ``start`` to ``stop`` of each batch of a run."""
        for begin in self.begins[run.first : run.first + run.count].tolist():
            # The user gets them as ids, and may write into these.
            yield self.sequence[begin + start : begin + stop].copy()

    @property
    def digest(self) -> str:
        """Names the order, if it was given."""
        return self.order.digest if isinstance(self.order, GivenOrder) else ""

    def skip(self, *, steps: int, examples: int) -> BudgetBatches:  # noqa: ARG002
        """Return the batches of what is left; they begin where delivery stopped."""
        check_within(examples, len(self.sequence), "examples")
        number = int(np.searchsorted(self.begins, examples))
        if number < len(self.begins) and self.begins[number] == examples:
            return replace(self, begins=self.begins[number:])
        return self._begin_with(examples)

    def _begin_with(self, first: int) -> BudgetBatches:
        """The batches from a place of the order on, wherever those before it end."""
        if self.borders is None:
            begins = first + find_begins(self.totals[first:], self.budget)
        else:  # what is left of a batch is one
            left = self.borders[self.borders > first]
            begins = np.concatenate([np.array([first], dtype=np.int64), left])
        last = self.totals[begins[-2:]]
        if self.drop_last and len(last) > 1 and last[1] - last[0] < self.budget.num_tokens:
            begins = begins[:-1]
        return replace(self, begins=begins)


def _check_indices(sequence: Indices, num_lengths: int) -> None:
    """Refuse what a sampler gives, and nobody knows the length of."""
    wrong = np.flatnonzero((sequence < 0) | (sequence >= num_lengths))
    if len(wrong):
        msg = (
            f"Expected a sampler that yields indices from 0 to {num_lengths - 1}, whose lengths "
            f"are known, got {sequence[wrong[0]]}. Let it yield indices of the dataset only."
        )
        raise ConfigurationError(msg)


def check_fits(sequence: Indices, counted: Indices, budget: BatchBudget) -> None:
    """Refuse an example that fits into no batch; say which.

    Raises:
        ConfigurationError: a ValueError; there is one.
    """
    wrong = np.flatnonzero(counted > budget.num_tokens)
    if len(wrong):
        first = wrong[np.argmin(sequence[wrong])]  # the same whatever the order
        name, length = f"example {sequence[first]}", int(counted[first])
        raise make_too_long_error(name, length, budget, len(wrong))


def make_too_long_error(
    name: str, length: int, budget: BatchBudget, count: int = 1
) -> ConfigurationError:
    """Return the error for an example that fits into no batch; ``count``: how many there are."""
    others = f" ({count} examples are too long)" if count > 1 else ""
    msg = (
        f"Expected examples of at most {budget.num_tokens} tokens, the budget of a global batch, "
        f"got {length} in {name}{others}. Raise the budget, or leave long examples out; or pass "
        "max_length, for which a longer one counts, and let the collate_fn cut it to that."
    )
    return ConfigurationError(msg)


def make_no_lengths_error(budget: BatchBudget) -> ConfigurationError:
    """Return the error for batches of a budget that are asked of a dataset without one."""
    msg = (
        "Expected a token budget, whose lengths tell where batches end, to look at a state "
        f"of batches of {budget.num_tokens} tokens, got a dataset with a number of examples. "
        "Distribute it as it was when the state was saved."
    )
    return ConfigurationError(msg)
