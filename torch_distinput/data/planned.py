"""Indexed sources: the steps are planned by arithmetic, then fetched."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch_distinput.data.loader import TaskLoader
from torch_distinput.data.local_step import LocalStep, cut_step, empty_step
from torch_distinput.data.rows import check_row_count
from torch_distinput.data.structure import Batch
from torch_distinput.plan.batching import Cut, Splitter, totals
from torch_distinput.plan.order import GlobalBatches, Indices


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedStep:
    """One step of this worker, before its examples are fetched.

    Attributes:
        indices: the examples of this worker's replicas, in order.
        sizes: rows of each local replica.
        num_examples: examples over all replicas in sync.
    """

    indices: Indices
    sizes: tuple[int, ...]
    num_examples: int


@dataclass(frozen=True, slots=True)
class StepFetch:
    """The task of a step: a step without rows asks for nothing, but keeps its turn.

    So no more steps are planned ahead than are fetched, also where this worker never has rows.
    """

    fetch: Callable[[Indices], Batch]

    def __call__(self, indices: Indices) -> Batch | None:
        """Return the examples, None without any."""
        return self.fetch(indices) if len(indices) else None


def plan_steps(batches: GlobalBatches, splitter: Splitter) -> Iterator[PlannedStep]:
    """Yield this worker's steps; one without any example in sync is left out on all workers."""
    for number in range(batches.num_batches):
        size = batches.size(number)
        indices = batches.indices(number)
        for cut, total in zip(splitter.cuts(size), totals(splitter, size), strict=True):
            if total:
                yield _planned(indices, cut, total)


def num_steps(batches: GlobalBatches, splitter: Splitter) -> int:
    """Count the steps without making them."""
    return sum(
        count * sum(total > 0 for total in totals(splitter, size))
        for size, count in batches.size_counts.items()
    )


def fetch_steps(
    planned: Iterator[PlannedStep], loader: TaskLoader[Indices, Batch | None]
) -> Iterator[tuple[LocalStep, int]]:
    """Yield the steps with their examples, and the number of examples in sync."""
    waiting: deque[PlannedStep] = deque()  # planned, and asked of the loader
    return _merged(loader.run(_tasks(planned, waiting)), waiting)


def _planned(indices: Indices, cut: Cut, total: int) -> PlannedStep:
    mine = indices[cut.start : cut.start + cut.num_rows]
    return PlannedStep(indices=mine, sizes=cut.sizes, num_examples=total)


def _tasks(planned: Iterator[PlannedStep], waiting: deque[PlannedStep]) -> Iterator[Indices]:
    for step in planned:
        waiting.append(step)
        yield step.indices


def _merged(
    results: Iterator[Batch | None], waiting: deque[PlannedStep]
) -> Iterator[tuple[LocalStep, int]]:
    """Put fetched batches and what was planned together."""
    for batch in results:
        step = waiting.popleft()
        if batch is None:
            yield empty_step(len(step.sizes)), step.num_examples
        else:
            check_row_count(batch, len(step.indices))
            yield cut_step((batch, step.indices), step.sizes), step.num_examples
