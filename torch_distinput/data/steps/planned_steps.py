"""Indexed sources: the steps are planned by arithmetic, then fetched."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple, final

from torch_distinput.data.batch import rows
from torch_distinput.data.batch.tree import Batch
from torch_distinput.data.loader.processes import TaskLoader
from torch_distinput.data.sources.indexed import ColumnFetch
from torch_distinput.data.sources.source import IndexedSource
from torch_distinput.data.sources.spot_check import Fingerprints, SpotCheck
from torch_distinput.data.steps.local_step import (
    NO_FACTS,
    LocalStep,
    ReplicaBatch,
    StepFacts,
    cut_step,
    empty_step,
    take_apart,
    with_work,
)
from torch_distinput.data.steps.timing.timed_fetch import TimedBatch, TimedFetch
from torch_distinput.data.user_sources.epochs import AtEpoch
from torch_distinput.data.user_sources.source_errors import make_batch_error
from torch_distinput.errors import SourceError
from torch_distinput.meter import Work
from torch_distinput.plan.assignment.batching import Splitter, count_in_sync
from torch_distinput.plan.assignment.order import GlobalBatches, count_by_size
from torch_distinput.plan.assignment.permutation import Indices


class PlannedStep(NamedTuple):
    """One step of this worker, before its examples are fetched.

    Attributes:
        indices: the examples of this worker's replicas, in order.
        sizes: rows of each local replica.
        num_examples: examples over all replicas in sync.
        longest: length of the longest of these; None where rows are not padded to it.
        facts: what is told of the step.
    """

    indices: Indices
    sizes: tuple[int, ...]
    num_examples: int
    longest: int | None = None
    facts: StepFacts = NO_FACTS


class PaddedRows(NamedTuple):
    """Asks for examples, padded to the longest of their step."""

    indices: Indices
    longest: int


FetchTask = Indices | SpotCheck | PaddedRows


@final
@dataclass(frozen=True, slots=True)
class StepFetch:
    """Does the task of a step. A step without rows asks for nothing, but keeps its turn.

    So no more steps are planned ahead than are fetched, also where this worker never has rows.
    A spot check goes the same way: a dataset that is to be read in loader processes, where it may
    open its files, is read nowhere else.

    ``copies``: what is fetched may be written over by what is fetched next.
    """

    fetch: Callable[[Indices], Batch]
    copies: bool = False

    def __call__(self, task: FetchTask) -> Batch | Fingerprints | None:
        """Return the examples, None without any; or the fingerprints that were asked for."""
        if isinstance(task, SpotCheck):
            return task.run(self.fetch)
        if not len(task):
            return None
        if isinstance(task, PaddedRows):
            fetch, indices = pad_to(self.fetch, task.longest), task.indices
        else:
            fetch, indices = self.fetch, task
        try:
            batch = fetch(indices)
        except SourceError:
            raise
        except Exception as error:
            raise make_batch_error(error, indices.tolist()) from error
        return rows.copy_rows(batch) if self.copies else batch


def make_loader(source: IndexedSource) -> TaskLoader[FetchTask, Any]:
    """What fetches the steps of a source, here or elsewhere."""
    fetch: Any = StepFetch(source.fetch, copies=source.copies_batches)
    options = source.loader
    if source.clock is not None and (options.num_workers or options.num_threads):
        fetch = TimedFetch(fetch, source.clock)
    return TaskLoader(fetch, options, grouped=True)


def make_early_end_error() -> SourceError:
    """The error for data that ends before its plan, whatever the cause.

    The other workers play the steps that are missing here, and would wait for this one.
    """
    return SourceError(
        "Expected a batch for every step of the plan, but the data ended before it. Code that "
        "reads it ended early without an error: look for a StopIteration that is taken for the "
        "end, or for an iterator that ends where it should fail."
    )


def plan_steps(
    batches: GlobalBatches, splitter: Splitter, *, padded_lengths: Indices | None = None
) -> Iterator[PlannedStep]:
    """Yield this worker's steps; one without any example in sync is left out on all workers.

    ``padded_lengths``: of each example, where rows are padded to the longest of their global batch.
    """
    cut_size = lru_cache(maxsize=256)(splitter.cut)  # budgets give few sizes, in any order
    for run in batches.runs:
        cuts = cut_size(run.size)
        start, stop = cuts[0].start, cuts[-1].stop
        steps = [
            (cut.start - start, cut.stop - start, cut.sizes, total)
            for cut, total in zip(cuts, count_in_sync(splitter, (run.size,)), strict=True)
            if total
        ]
        if padded_lengths is not None:
            for batch in batches.iterate_rows(run, 0, run.size):
                longest = int(padded_lengths[batch].max())
                mine = batch[start:stop]
                for first, last, sizes, total in steps:
                    yield PlannedStep(mine[first:last], sizes, total, longest)
            continue
        for indices in batches.iterate_rows(run, start, stop):
            for first, last, sizes, total in steps:
                yield PlannedStep(indices[first:last], sizes, total)


def num_steps(batches: GlobalBatches, splitter: Splitter) -> int:
    """Count the steps without making them."""
    return sum(
        count * sum(total > 0 for total in count_in_sync(splitter, (size,)))
        for size, count in count_by_size(batches.runs).items()
    )


def fetch_steps(
    planned: Iterator[PlannedStep],
    loader: TaskLoader[FetchTask, Any],
    *,
    epoch: int,
    owned: bool,
    check: SpotCheck | None = None,
    is_timed: bool = False,
) -> tuple[Fingerprints, Iterator[tuple[LocalStep, int]]]:
    """Start fetching.

    Args:
        planned: the steps.
        loader: fetches them.
        epoch: which epoch they are of; loader processes tell it to the user's dataset.
        owned: see :class:`LocalStep`.
        check: is made before the first step, and waited for.
        is_timed: the loader says what fetching took.

    Returns:
        The fingerprints that were asked for; and the steps with their examples, each with the
        number of examples in sync.
    """
    checked: Fingerprints = []
    if check is not None and not loader.has_processes:
        with loader.at_epoch(epoch):
            checked = loader.fetch(check)
    if loader.fetches_here:
        fetch: Any = loader.fetch
        return checked, _fetch_here(planned, fetch.fetch, loader.at_epoch(epoch), owned=owned)
    if is_timed:
        planned = _plan_work(planned)
    waiting: deque[PlannedStep] = deque()  # planned, and asked of the loader
    tasks = _tasks(planned, waiting)
    there = [check] if check is not None and loader.has_processes else []
    results = loader.run(chain(there, tasks) if there else tasks, epoch)
    if is_timed:
        results = _unpack_batches(results, waiting)
    if there:
        checked = next(results)
    return checked, loader.guard(_merge(results, waiting, planned, owned=owned))


def pad_to(fetch: Callable[[Indices], Batch], longest: int) -> Callable[[Indices], Batch]:
    """Let rows be padded to the longest of their step."""
    from torch_distinput.data.sources.sequences.pad_collate import told_longest  # noqa: PLC0415 - who pads has it too

    return told_longest(fetch, longest)


def _fetch_here(
    planned: Iterator[PlannedStep],
    fetch: Callable[[Indices], Batch],
    at_epoch: AtEpoch,
    *,
    owned: bool,
) -> Iterator[tuple[LocalStep, int]]:
    """Fetch each step when its turn comes, in as few calls as can be."""
    columns = fetch if isinstance(fetch, ColumnFetch) else None
    for indices, sizes, num_examples, longest, facts in planned:
        if not len(indices):
            yield empty_step(len(sizes), facts=facts), num_examples
            continue
        try:
            if columns is not None:
                part = ReplicaBatch(columns.leaves(indices), columns.structure, indices)
            else:
                with at_epoch:
                    fetched = (fetch if longest is None else pad_to(fetch, longest))(indices)
                part = take_apart(fetched, indices)
        except SourceError:
            raise
        except Exception as error:
            raise make_batch_error(error, indices.tolist()) from error
        step = cut_step(part, sizes, owned=owned, facts=facts, is_alike=columns is not None)
        yield step, num_examples


def _tasks(planned: Iterator[PlannedStep], waiting: deque[PlannedStep]) -> Iterator[FetchTask]:
    for step in planned:
        waiting.append(step)
        if step.longest is None or not len(step.indices):
            yield step.indices
        else:
            yield PaddedRows(step.indices, step.longest)


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
            yield empty_step(len(step.sizes), facts=step.facts), step.num_examples
        else:
            part = take_apart(batch, step.indices)
            cut = cut_step(part, step.sizes, owned=owned, facts=step.facts)
            yield cut, step.num_examples
    if waiting or next(planned, None) is not None:
        raise make_early_end_error()


def _plan_work(planned: Iterator[PlannedStep]) -> Iterator[PlannedStep]:
    """Planned steps with room for what making them takes."""
    for indices, sizes, num_examples, longest, facts in planned:
        yield PlannedStep(indices, sizes, num_examples, longest, with_work(facts, Work()))


def _unpack_batches(results: Iterator[Any], waiting: deque[PlannedStep]) -> Iterator[Any]:
    """The batches, whose work goes to the steps that wait for them, the oldest first."""
    for made in results:
        if not isinstance(made, TimedBatch):  # a check
            yield made
            continue
        work = waiting[0].facts.work
        if work is not None:
            work.source, work.collate = made.source, made.collate
        yield made.batch
