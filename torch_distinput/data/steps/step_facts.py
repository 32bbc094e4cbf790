"""What is told of steps of examples by index, beside their rows: it follows from the plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from torch_distinput.data.steps.local_step import LocalStep, PackedCounts, SourceCounts
from torch_distinput.plan.assignment.batching import Splitter, cut_for_all
from torch_distinput.plan.assignment.order import GlobalBatches
from torch_distinput.plan.assignment.permutation import Indices

if TYPE_CHECKING:
    from torch_distinput.data.sources.source import IndexedSource
    from torch_distinput.plan.assignment.mixed_order import MixedIndices
    from torch_distinput.plan.progress.position import Position


Counted = tuple[Sequence[int], int]
"""Examples of each source in a step, and the place of the order behind the last of them."""


def with_facts(
    steps: Iterator[tuple[LocalStep, int]],
    source: IndexedSource,
    batches: GlobalBatches,
    splitter: Splitter,
    position: Position,
    *,
    num_tokens: Iterable[int] | None,
) -> Iterator[tuple[LocalStep, int]]:
    """Steps of a source from a position on, each with its examples, with all that is told of them.

    ``num_tokens``: of their global batches, where these are filled by a token budget.
    """
    if source.counted_mixture is not None:
        steps = _with_source_counts(steps, source.counted_mixture, batches, splitter, position)
    if num_tokens is not None:
        steps = _with_num_tokens(steps, num_tokens)
    if source.packed_contents is not None:
        steps = _with_packed_counts(steps, source.packed_contents)
    return steps


def _with_source_counts(
    steps: Iterator[tuple[LocalStep, int]],
    mixture: MixedIndices,
    batches: GlobalBatches,
    splitter: Splitter,
    position: Position,
) -> Iterator[tuple[LocalStep, int]]:
    """Steps of a mixture, from a position on, with what they are from; each with its examples."""
    names = [member.name for member in mixture.members]
    own = None if splitter.shared else _count_own(mixture, batches, splitter, position.steps)
    place, before = position.examples, mixture.count(position.examples)
    for step, num_examples in steps:
        if own is None:  # a piece of the order
            place += num_examples
            after = mixture.count(place)
            counts: Sequence[int] = [n - had for n, had in zip(after, before, strict=True)]
            before = after
        else:
            counts, place = next(own)
            after = mixture.count(place)
        found = SourceCounts(
            dict(zip(names, counts, strict=True)),
            dict(zip(names, mixture.count_passes(after), strict=True)),
        )
        yield step._replace(facts=step.facts._replace(source_counts=found)), num_examples


def _with_num_tokens(
    steps: Iterator[tuple[LocalStep, int]], num_tokens: Iterable[int]
) -> Iterator[tuple[LocalStep, int]]:
    """Steps with the tokens of their global batches."""
    for (step, num_examples), tokens in zip(steps, num_tokens, strict=True):
        yield step._replace(facts=step.facts._replace(num_tokens=tokens)), num_examples


def _with_packed_counts(
    steps: Iterator[tuple[LocalStep, int]], contents: Indices
) -> Iterator[tuple[LocalStep, int]]:
    """Steps of packed rows with what these are filled with.

    ``contents``: ``(rows, 3)``: of each row its documents, tokens and places.
    """
    for step, num_examples in steps:
        ids = [part.ids for part in step.parts if part is not None]
        counts = PackedCounts.of(contents[np.concatenate(ids)]) if ids else None
        yield step._replace(facts=step.facts._replace(packed=counts)), num_examples


def _count_own(
    mixture: MixedIndices, batches: GlobalBatches, splitter: Splitter, num_steps: int
) -> Iterator[Counted]:
    """Each step where all workers play all of it; ``num_steps`` of them are over."""
    passed, first_step = divmod(num_steps, splitter.steps_per_batch)
    place = 0
    for run in batches.runs:
        skipped = min(passed, run.count)
        passed, place = passed - skipped, place + skipped * run.size
        if skipped == run.count:
            continue
        cuts = list(cut_for_all(splitter, (run.size,)))
        for _ in range(run.count - skipped):
            yield from islice(mixture.count_steps(place, cuts), first_step, None)
            place, first_step = place + run.size, 0
