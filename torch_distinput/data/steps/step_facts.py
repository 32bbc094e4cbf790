"""What is told of steps of examples by index, beside their rows: it follows from the plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from torch_distinput.data.steps.local_step import LocalStep, PackedCounts, SourceCounts
from torch_distinput.plan.assignment.permutation import Indices

if TYPE_CHECKING:
    from torch_distinput.plan.assignment.mixed_order import MixedIndices


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
        yield replace(step, trace=step.trace._replace(source_counts=found)), num_examples


def with_num_tokens(
    steps: Iterator[tuple[LocalStep, int]], num_tokens: Iterable[int]
) -> Iterator[tuple[LocalStep, int]]:
    """Steps with the tokens of their global batches."""
    for (step, num_examples), tokens in zip(steps, num_tokens, strict=True):
        yield replace(step, trace=step.trace._replace(num_tokens=tokens)), num_examples


def with_packed_counts(
    steps: Iterator[tuple[LocalStep, int]], contents: Indices
) -> Iterator[tuple[LocalStep, int]]:
    """Steps of packed rows with what these are filled with.

    ``contents``: ``(rows, 3)``: of each row its documents, tokens and places.
    """
    for step, num_examples in steps:
        ids = [part.ids for part in step.parts if part is not None]
        counts = PackedCounts.of(contents[np.concatenate(ids)]) if ids else None
        yield replace(step, trace=step.trace._replace(packed=counts)), num_examples
