"""What each worker counts in its part of a step, and all are told of the whole of it.

Where workers share a stream each of them knows the whole batch, but for what it looks like when it
is collated. Else they join their numbers:

    sums     tokens, and the examples of each source of a mixture
    peaks    the length of the longest row, and how often each source has begun again
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from torch_distinput.data.sources.mixing.mixed_stream import MixedStream
from torch_distinput.data.steps.local_step import LocalStep, SourceCounts, StepFacts
from torch_distinput.data.steps.order_marks import is_order_measured
from torch_distinput.data.steps.step_padding import StepPadding
from torch_distinput.data.stream.chunk import Chunk
from torch_distinput.data.stream.protocols import Stream
from torch_distinput.plan.assignment.batching import Splitter
from torch_distinput.plan.progress.tally import Tally, TallySize


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class StepTally:
    """Which numbers of a step workers join.

    Attributes:
        counts_tokens: whether batches are filled by tokens.
        sources: names of those of a mixture.
        padding: fills up rows to the longest of the step.
        is_needed: workers vote also where the number of steps is known: to join these numbers, or
            to compare an order that each of them finds by what it measures.
    """

    counts_tokens: bool = False
    sources: tuple[str, ...] = ()
    padding: StepPadding | None = None
    is_needed: bool = False

    @staticmethod
    def of(
        stream: Stream,
        splitter: Splitter,
        *,
        counts_tokens: bool,
        padding: StepPadding | None = None,
    ) -> StepTally:
        """What workers count that do not know the whole of a step."""
        is_compared = splitter.shared and is_order_measured(stream)
        is_needed = splitter.topology.num_workers > 1 and (is_compared or padding is not None)
        if splitter.shared:
            return StepTally(padding=padding, is_needed=is_needed)
        names = stream.names if isinstance(stream, MixedStream) else ()
        return StepTally(
            counts_tokens=counts_tokens, sources=names, padding=padding, is_needed=is_needed
        )

    @property
    def size(self) -> TallySize:
        """How many numbers there are."""
        num_sources = len(self.sources)
        num_sums = 1 + num_sources if self.counts_tokens or num_sources else 0
        return TallySize(num_sums, num_sources + (self.padding is not None))

    def complete(self, step: LocalStep, tally: Tally) -> LocalStep:
        """The step with what is known of the whole of it."""
        facts, repeats = step.facts, tally.peaks
        if self.padding is not None:
            longest, repeats = repeats[0], repeats[1:]
            step = self.padding.widen_step(step, longest)
        if tally.sums:
            tokens, *examples = tally.sums
            counts = SourceCounts(self._by_name(examples), self._by_name(repeats))
            facts = facts._replace(
                num_tokens=tokens if self.counts_tokens else None,
                source_counts=counts if self.sources else None,
            )
        return step._replace(facts=facts)

    def join(self, steps: Sequence[LocalStep]) -> list[LocalStep]:
        """The parts of all workers in a step, with what is known of the whole of it."""
        size = self.size
        if not any(size):
            return list(steps)
        (tally,) = size.join(np.stack([size.encode([step.tally], 1) for step in steps]))
        return [self.complete(step, tally) for step in steps]

    def _by_name(self, numbers: Sequence[int]) -> dict[str, int]:
        return dict(zip(self.sources, numbers, strict=True))


NOTHING_COUNTED = StepTally()


def with_longest(facts: StepFacts, longest: int) -> StepFacts:
    """The facts of a step with the length of this worker's longest row in it."""
    sums, peaks = facts.tally
    return facts._replace(tally=Tally(sums, (longest, *peaks)))


def count_own(
    facts: StepFacts, chunk: Chunk, stream: Stream, splitter: Splitter, *, num_tokens: int = 0
) -> StepFacts:
    """The facts of a step with what this worker has in it, and of the whole if that is all."""
    if splitter.shared or not chunk.num_rows:
        return facts
    is_alone = splitter.topology.num_workers == 1
    if not isinstance(stream, MixedStream):
        return facts._replace(tally=Tally((num_tokens,))) if num_tokens and not is_alone else facts
    counts = SourceCounts(*stream.count_sources(chunk))
    if is_alone:
        return facts._replace(source_counts=counts)
    sums = (num_tokens, *counts.examples.values())
    return facts._replace(tally=Tally(sums, tuple(counts.repeats.values())))
