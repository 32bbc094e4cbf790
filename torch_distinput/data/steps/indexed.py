"""Indexed sources: the steps are planned by arithmetic, then fetched."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple, final

from torch_distinput.data.batch.tree import Batch
from torch_distinput.data.loader.processes import TaskLoader
from torch_distinput.data.sources.spot_check import Prints, SpotCheck
from torch_distinput.data.steps.local_step import (
    LocalStep,
    SourceCounts,
    cut_step,
    empty_step,
    take_apart,
)
from torch_distinput.errors import SourceError
from torch_distinput.plan.assignment.batching import Splitter, count_in_sync
from torch_distinput.plan.assignment.mixed_order import MixedIndices
from torch_distinput.plan.assignment.order import GlobalBatches
from torch_distinput.plan.assignment.permutation import Indices

FetchTask = Indices | SpotCheck


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


@final
@dataclass(frozen=True, slots=True)
class StepFetch:
    """The task of a step: a step without rows asks for nothing, but keeps its turn.

    So no more steps are planned ahead than are fetched, also where this worker never has rows.
    A spot check goes the same way: a dataset that is to be read in loader processes, where it may
    open its files, is read nowhere else.
    """

    fetch: Callable[[Indices], Batch]

    def __call__(self, task: FetchTask) -> Batch | Prints | None:
        """Return the examples, None without any; or the fingerprints that were asked for."""
        if isinstance(task, SpotCheck):
            return task.run(self.fetch)
        return self.fetch(task) if len(task) else None


def with_source_counts(
    steps: Iterator[tuple[LocalStep, int]], mixture: MixedIndices, first: int
) -> Iterator[tuple[LocalStep, int]]:
    """Steps of a mixture with what their global batches are from; ``first``: examples before."""
    names = [member.name for member in mixture.members]
    before = mixture.count(first)
    for step, num_examples in steps:
        first += num_examples
        after = mixture.count(first)
        counts = (count - had for count, had in zip(after, before, strict=True))
        found = SourceCounts(
            dict(zip(names, counts, strict=True)),
            dict(zip(names, mixture.count_passes(after), strict=True)),
        )
        before = after
        yield replace(step, trace=replace(step.trace, source_counts=found)), num_examples


def ended_early() -> SourceError:
    """The error for data that ends before its plan, whatever the cause.

    The other workers play the steps that are missing here, and would wait for this one.
    """
    return SourceError(
        "Expected a batch for every step of the plan, but the data ended before it. Something "
        "that it is read with ended early without an error: look for a StopIteration that passes "
        "for an end, or for an iterator that ends where it should fail."
    )


def plan_steps(batches: GlobalBatches, splitter: Splitter) -> Iterator[PlannedStep]:
    """Yield this worker's steps; one without any example in sync is left out on all workers."""
    for run in batches.runs:
        cuts = splitter.cut(run.size)
        start, stop = cuts[0].start, cuts[-1].stop
        steps = [
            (cut.start - start, cut.stop - start, cut.sizes, total)
            for cut, total in zip(cuts, count_in_sync(splitter, (run.size,)), strict=True)
            if total
        ]
        for rows in batches.iterate_rows(run, start, stop):
            for first, last, sizes, total in steps:
                yield PlannedStep(rows[first:last], sizes, total)


def num_steps(batches: GlobalBatches, splitter: Splitter) -> int:
    """Count the steps without making them."""
    return sum(
        run.count * sum(total > 0 for total in count_in_sync(splitter, (run.size,)))
        for run in batches.runs
    )


def fetch_steps(
    planned: Iterator[PlannedStep],
    loader: TaskLoader[FetchTask, Any],
    *,
    epoch: int,
    owned: bool,
    check: SpotCheck | None = None,
) -> tuple[Prints, Iterator[tuple[LocalStep, int]]]:
    """Start fetching.

    Args:
        planned: the steps.
        loader: fetches them.
        epoch: which epoch they are of.
        owned: see :class:`LocalStep`.
        check: is made before the first step, and waited for.

    Returns:
        The fingerprints that were asked for; and the steps with their examples, each with the
        number of examples in sync.
    """
    waiting: deque[PlannedStep] = deque()  # planned, and asked of the loader
    tasks = _tasks(planned, waiting)
    results = loader.run(tasks if check is None else chain([check], tasks), epoch)
    checked = [] if check is None else next(results)
    return checked, loader.guard(_merge(results, waiting, planned, owned=owned))


def _tasks(planned: Iterator[PlannedStep], waiting: deque[PlannedStep]) -> Iterator[FetchTask]:
    for step in planned:
        waiting.append(step)
        yield step.indices


def _merge(
    results: Iterator[Batch | None],
    waiting: deque[PlannedStep],
    planned: Iterator[PlannedStep],
    *,
    owned: bool,
) -> Iterator[tuple[LocalStep, int]]:
    """Put fetched batches and what was planned together; the plan says where the end is."""
    for batch in results:
        step = waiting.popleft()
        if batch is None:
            yield empty_step(len(step.sizes)), step.num_examples
        else:
            part = take_apart(batch, step.indices)
            yield cut_step(part, step.sizes, owned=owned), step.num_examples
    if waiting or next(planned, None) is not None:
        raise ended_early()
