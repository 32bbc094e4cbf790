"""Global batches whose rows are dealt by what they cost, instead of cut one after another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple, final

import numpy as np

from torch_distinput.data.sources.sequences.balance import (
    BALANCE,
    Balance,
    ExampleCosts,
    check_costs,
)
from torch_distinput.data.sources.sequences.lengths import measure_rows
from torch_distinput.data.sources.source import IndexedSource
from torch_distinput.data.steps.local_step import StepFacts
from torch_distinput.data.steps.planned_steps import PlannedStep, plan_steps
from torch_distinput.data.stream.chunk import Chunk
from torch_distinput.data.stream.protocols import Stream
from torch_distinput.plan.assignment.balancing import Deal, StepCosts, deal_rows
from torch_distinput.plan.assignment.batching import Splitter
from torch_distinput.plan.assignment.order import GlobalBatches
from torch_distinput.plan.assignment.permutation import Indices
from torch_distinput.plan.assignment.topology import Topology
from torch_distinput.plan.progress.position import Position
from torch_distinput.plan.progress.route import Shard
from torch_distinput.plan.progress.state import Recipe


class DealtStep(NamedTuple):
    """One step of this worker in a global batch.

    Attributes:
        rows: of this worker's replicas, in the batch.
        sizes: rows of each of them.
        costs: of all replicas among which rows were dealt.
    """

    rows: Indices
    sizes: tuple[int, ...]
    costs: StepCosts


def deal_batch(costs: Indices, splitter: Splitter, balance: Balance) -> DealtStep:
    """This worker's part of a batch that all workers share, with rows of such costs."""
    deal = _deal(costs, _plain_sizes(splitter, len(costs)), splitter, balance)
    first, num_replicas = splitter.topology.first_replica, splitter.topology.replicas_per_worker
    bounds = np.cumsum([0, *deal.sizes])
    rows = deal.rows[bounds[first] : bounds[first + num_replicas]]
    return DealtStep(rows, deal.sizes[first : first + num_replicas], deal.costs)


def deal_own(
    costs: Indices, sizes: tuple[int, ...], splitter: Splitter, balance: Balance
) -> DealtStep:
    """The rows of a step that are this worker's, among its own replicas; ``sizes`` before."""
    deal = _deal(costs, sizes, splitter, balance)
    return DealtStep(deal.rows, deal.sizes, deal.costs)


def _deal(costs: Indices, plain: tuple[int, ...], splitter: Splitter, balance: Balance) -> Deal:
    most_rows = splitter.most_rows if balance.is_bounded else None
    return deal_rows(costs, plain, most_rows=most_rows, is_padded=balance.is_padded)


@lru_cache(maxsize=64)
def _plain_sizes(splitter: Splitter, num_rows: int) -> tuple[int, ...]:
    """Rows of all replicas in sync, if a batch were cut without balance."""
    everywhere = Topology(replicas_per_worker=splitter.topology.num_replicas_in_sync)
    (cut,) = replace(splitter, topology=everywhere, shared=True).cut(num_rows)
    return cut.sizes


@final
class ExampleDealer:
    """Deals examples by index, whose costs are known before they are read."""

    def __init__(self, balance: Balance, source: IndexedSource) -> None:
        """Take what was asked for, and of what."""
        self.costs = ExampleCosts(balance, source)
        self._balance = balance

    def describe(self, position: Position, splitter: Splitter) -> Recipe:
        """What rows are dealt by, where all workers must know the same.

        No state is worth reading all examples before the first step.
        """
        if not splitter.shared or not (position.steps or self.costs.is_known):
            return {}
        return self.costs.describe()

    def plan_steps(
        self,
        batches: GlobalBatches,
        splitter: Splitter,
        *,
        padded_lengths: Indices | None = None,
    ) -> Iterator[PlannedStep]:
        """Yield this worker's steps; costs are measured by then."""
        if splitter.shared:
            yield from self._plan_shared(batches, splitter, padded_lengths)
            return
        for step in plan_steps(batches, splitter, padded_lengths=padded_lengths):
            if len(step.indices):
                costs = self.costs.look_up(step.indices)
                dealt = deal_own(costs, step.sizes, splitter, self._balance)
                yield _plan(step.indices, dealt, step.num_examples, step.longest)
            else:
                yield step

    def _plan_shared(
        self, batches: GlobalBatches, splitter: Splitter, lengths: Indices | None
    ) -> Iterator[PlannedStep]:
        for run in batches.runs:
            for indices in batches.iterate_rows(run, 0, run.size):
                longest = None if lengths is None else int(lengths[indices].max())
                yield _plan(indices, self.deal(indices, splitter), run.size, longest)

    def deal(self, indices: Indices, splitter: Splitter) -> DealtStep:
        """This worker's part of a global batch."""
        return deal_batch(self.costs.look_up(indices), splitter, self._balance)


def _plan(
    indices: Indices, dealt: DealtStep, num_examples: int, longest: int | None
) -> PlannedStep:
    facts = StepFacts(costs=dealt.costs)
    return PlannedStep(indices[dealt.rows], dealt.sizes, num_examples, longest, facts)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class RowDealer:
    """Deals rows of a stream once they are read. Picklable, for loader processes.

    A cost is that of a finished example. So rows are mapped here to be measured, and those of this
    worker once more when its batch is made.

    Attributes:
        balance: what was asked for.
        stream: where the rows are from.
        shard: which part of it.
        splitter: cuts global batches for this worker.
    """

    balance: Balance
    stream: Stream
    shard: Shard
    splitter: Splitter

    def deal_batch(self, batch: Chunk) -> tuple[DealtStep, int]:
        """This worker's part of a global batch that all workers read; and a mark of the costs."""
        costs = self._measure(batch)
        step = deal_batch(costs, self.splitter, self.balance)
        digest = blake2b(costs.tobytes(), digest_size=7).digest()  # fits into an int64
        return step, int.from_bytes(digest, "little")

    def deal_own(self, chunk: Chunk, sizes: tuple[int, ...]) -> DealtStep:
        """The rows of a step that are this worker's, among its own replicas."""
        return deal_own(self._measure(chunk), sizes, self.splitter, self.balance)

    def _measure(self, chunk: Chunk) -> Indices:
        examples = self.stream.examples(chunk, self.shard)
        return check_costs(measure_rows(self.balance.cost, examples, name=BALANCE))
