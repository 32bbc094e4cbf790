"""Indexed sources: the steps are planned by arithmetic, then fetched."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from torch_distinput.data.loader import TaskLoader
from torch_distinput.data.local_step import LocalStep, cut_step, empty_step, part_of
from torch_distinput.data.structure import Batch
from torch_distinput.plan.batching import Splitter, totals
from torch_distinput.plan.order import GlobalBatches
from torch_distinput.plan.permutation import Indices


class PlannedStep(NamedTuple):
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
    for run in batches.runs:
        cuts = splitter.cuts(run.size)
        start, stop = cuts[0].start, cuts[-1].stop
        steps = [
            (cut.start - start, cut.stop - start, cut.sizes, total)
            for cut, total in zip(cuts, totals(splitter, run.size), strict=True)
            if total
        ]
        for rows in batches.rows(run, start, stop):
            for first, last, sizes, total in steps:
                yield PlannedStep(rows[first:last], sizes, total)


def num_steps(batches: GlobalBatches, splitter: Splitter) -> int:
    """Count the steps without making them."""
    return sum(
        run.count * sum(total > 0 for total in totals(splitter, run.size)) for run in batches.runs
    )


def fetch_steps(
    planned: Iterator[PlannedStep], loader: TaskLoader[Indices, Batch | None], *, owned: bool
) -> Iterator[tuple[LocalStep, int]]:
    """Yield the steps with their examples, and the number of examples in sync.

    ``owned``: see :class:`LocalStep`.
    """
    waiting: deque[PlannedStep] = deque()  # planned, and asked of the loader
    merged = _merged(loader.run(_tasks(planned, waiting)), waiting, owned=owned)
    return loader.guarded(merged)


def _tasks(planned: Iterator[PlannedStep], waiting: deque[PlannedStep]) -> Iterator[Indices]:
    for step in planned:
        waiting.append(step)
        yield step.indices


def _merged(
    results: Iterator[Batch | None], waiting: deque[PlannedStep], *, owned: bool
) -> Iterator[tuple[LocalStep, int]]:
    """Put fetched batches and what was planned together."""
    for batch in results:
        step = waiting.popleft()
        if batch is None:
            yield empty_step(len(step.sizes)), step.num_examples
        else:
            part = part_of(batch, step.indices)
            yield cut_step(part, step.sizes, owned=owned), step.num_examples
