"""Indexed sources: the steps are planned by arithmetic, then fetched."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
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
    planned: Iterator[PlannedStep], loader: TaskLoader[Indices, Batch]
) -> Iterator[tuple[LocalStep, int]]:
    """Yield the steps with their examples, and the number of examples in sync."""
    waiting: deque[PlannedStep] = deque()  # planned, and asked of the loader where they have rows
    return _merged(loader.run(_tasks(planned, waiting)), waiting)


def _planned(indices: Indices, cut: Cut, total: int) -> PlannedStep:
    mine = indices[cut.start : cut.start + cut.num_rows]
    return PlannedStep(indices=mine, sizes=cut.sizes, num_examples=total)


def _tasks(planned: Iterator[PlannedStep], waiting: deque[PlannedStep]) -> Iterator[Indices]:
    for step in planned:
        waiting.append(step)
        if len(step.indices):
            yield step.indices


def _merged(
    results: Iterator[Batch], waiting: deque[PlannedStep]
) -> Iterator[tuple[LocalStep, int]]:
    """Put fetched batches and steps without rows back into one order."""
    for batch in results:
        while not len(waiting[0].indices):
            yield _without_rows(waiting.popleft())
        step = waiting.popleft()
        check_row_count(batch, len(step.indices))
        yield cut_step((batch, step.indices), step.sizes), step.num_examples
    while waiting:
        yield _without_rows(waiting.popleft())


def _without_rows(step: PlannedStep) -> tuple[LocalStep, int]:
    return empty_step(len(step.sizes)), step.num_examples
