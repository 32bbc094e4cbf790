"""Examples by index: all counts are arithmetic, so steps are planned."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from torch_distinput.data.element_spec import spec_of
from torch_distinput.data.fingerprint import fingerprint
from torch_distinput.data.loader import TaskLoader
from torch_distinput.data.local_step import LocalStep, cut_step, part_of
from torch_distinput.data.planned import (
    PlannedStep,
    StepFetch,
    fetch_steps,
    num_steps,
    plan_steps,
)
from torch_distinput.data.sampling import sampled_batches
from torch_distinput.data.source import IndexedSource
from torch_distinput.distribute.feed import (
    Delivery,
    Feed,
    PlannedFeed,
)
from torch_distinput.distribute.inputs import Opening
from torch_distinput.errors import UsageError
from torch_distinput.options import Rebatch
from torch_distinput.plan.audit import IdSum, Reading, sum_of_range, summed
from torch_distinput.plan.batching import Splitter
from torch_distinput.plan.order import EpochOrder, GlobalBatches, UniformBatches
from torch_distinput.plan.position import Position, first_position, grid_of, not_elastic
from torch_distinput.plan.sharding import dealt
from torch_distinput.plan.state import Recipe
from torch_distinput.plan.topology import Topology

_log = logging.getLogger(__name__)


class IndexedInput:
    """Examples by index: all counts are arithmetic."""

    def __init__(self, source: IndexedSource, splitter: Splitter, *, seed: int) -> None:
        """Take an indexed source."""
        self._source = source
        self._splitter = splitter
        self._seed = seed
        self._loader = TaskLoader(StepFetch(source.fetch), source.loader)
        self._sampled: dict[int, GlobalBatches] = {}  # by epoch: that which runs, and the next
        self._said_dropped = False

    def first(self, epoch: int) -> Position:
        """The beginning of an epoch: what is delivered is a number of examples."""
        return first_position(epoch, grid_of(self._splitter), 0)

    def recipe(self, epoch: int) -> Recipe:
        """The number of examples, and the order that a sampler of the user's gives."""
        recipe: dict[str, Any] = {
            "number of examples": self._source.num_examples,
        }
        if self._source.sampler is not None:
            recipe["order of the sampler"] = self._batches(epoch).digest
        return recipe

    def facts(self, position: Position) -> dict[str, object]:
        """The number of examples, and the order where a sampler of the user gives it."""
        facts: dict[str, object] = {"number of examples": self._source.num_examples}
        if self._source.sampler is not None:
            name = type(self._source.sampler).__name__
            facts |= _facts_of_order(self._batches(position.epoch), name)
        return facts

    def share(self) -> None:
        """All know all."""

    def open(self, opening: Opening) -> Feed:
        """Plan what is left of the epoch and start fetching."""
        before, grid = opening.position, grid_of(self._splitter)
        if not self._splitter.shared and before.grid != grid:
            raise not_elastic(before, grid, "AutoShardPolicy.OFF")
        position = replace(before, grid=grid)
        batches = self._batches(position.epoch)
        if batches.num_dropped and not self._said_dropped:
            self._said_dropped = True
            _log.info("drop_last leaves out %d examples at the end", batches.num_dropped)
        fetched = fetch_steps(
            self._planned(batches, position), self._loader, owned=self._source.owns_batches
        )
        steps = (
            Delivery(step=step, num_examples=total, where=lambda: position)
            for step, total in fetched
        )
        worker = self._splitter.topology.worker_index
        return PlannedFeed(
            steps, opening.watch, worker=worker, first_step=position.steps, spec=self.spec
        )

    def _planned(self, batches: GlobalBatches, position: Position) -> Iterator[PlannedStep]:
        """The steps from a position on: an example of the order, or a step of each worker's own."""
        if self._splitter.shared:
            return plan_steps(batches.after(position), self._splitter)
        return islice(plan_steps(batches, self._splitter), position.steps, None)

    def replay(self, position: Position, step: int) -> list[LocalStep] | None:
        """Fetch the step as one worker with all the replicas."""
        if not self._splitter.shared:
            msg = "replay needs one order for all workers, got AutoShardPolicy.OFF. Use DATA."
            raise UsageError(msg)
        grid = position.grid
        everywhere = Topology(replicas_per_worker=grid.num_workers * grid.replicas_per_worker)
        splitter = replace(
            self._splitter,
            topology=everywhere,
            rebatch=Rebatch(grid.rebatch),
            global_batch_size=grid.global_batch_size,
        )
        batches = self._batches(position.epoch, grid.global_batch_size).after(position)
        number = step - position.steps
        if number >= batches.num_batches:
            return None
        indices = batches.indices(number)
        (cut,) = splitter.cuts(len(indices))
        return [cut_step(part_of(self._source.fetch(indices), indices), cut.sizes)]

    def expected_ids(
        self,
        before: Position,
        after: Position,  # noqa: ARG002
        reading: Reading | None,  # noqa: ARG002
    ) -> IdSum | None:
        """Of a whole epoch, every W-th part of the indices; else every W-th planned batch."""
        if not self._splitter.shared:
            return None  # all of it comes many times
        topology, count = self._splitter.topology, self._source.num_examples
        worker, num_workers = topology.worker_index, topology.num_workers
        batches = self._batches(before.epoch).after(before)
        whole = self._source.sampler is None and not before.examples and not batches.num_dropped
        if whole and count is not None:
            return sum_of_range(
                worker * count // num_workers, (worker + 1) * count // num_workers
            )
        mine = map(batches.indices, dealt(batches.num_batches, num_workers, worker))
        return sum(map(summed, mine), IdSum())

    def first_example(self) -> int | None:
        """That of example 0, where it is the same when it is fetched twice."""
        if not self._source.num_examples:
            return None
        first = np.zeros(1, dtype=np.int64)
        one, again = (fingerprint(self._source.fetch(first)) for _ in range(2))
        return one if one == again else None

    def num_steps(self, epoch: int) -> int:
        """Steps of an epoch."""
        return num_steps(self._batches(epoch), self._splitter)

    def spec(self) -> Any:
        """Fetch one example; None if there is none."""
        if self._source.num_examples == 0:
            return None
        first = np.zeros(1, dtype=np.int64)
        for batches in self._sampled.values():  # a sampler may leave out example 0
            if batches.num_batches:
                first = batches.indices(0)[:1]
        return spec_of((self._source.fetch(first), first))

    def _batches(self, epoch: int, size: int | None = None) -> GlobalBatches:
        """The global batches; of the size that was asked for, or another."""
        request = self._source.request
        size = request.global_batch_size if size is None else size
        if self._source.sampler is not None:
            batches = self._from_sampler(epoch)
            if isinstance(batches, UniformBatches) and size is not None:
                batches = replace(batches, global_batch_size=size)
            return batches
        assert size is not None, "only a batch sampler has no batch size"
        assert self._source.num_examples is not None, "only a sampler does without"
        order = EpochOrder(
            num_examples=self._source.num_examples,
            shuffle=request.shuffle,
            seed=self._seed,
            epoch=epoch,
        )
        return UniformBatches(
            order=order, global_batch_size=size, drop_last=request.drop_last
        )

    def _from_sampler(self, epoch: int) -> GlobalBatches:
        """Iterate the user's sampler once per epoch: it may keep a state of its own.

        The epoch that runs is kept while ``len()`` asks for the next one.
        """
        if epoch not in self._sampled:
            request = self._source.request
            assert self._source.sampler is not None, "asked for by the caller"
            self._sampled = dict(list(self._sampled.items())[-1:])
            self._sampled[epoch] = sampled_batches(
                self._source.sampler,
                request.global_batch_size,
                drop_last=request.drop_last,
                key=(self._seed, epoch),
            )
        return self._sampled[epoch]


def _facts_of_order(batches: GlobalBatches, sampler: str) -> dict[str, object]:
    """Facts about the batches 0, 1, 2 to 3, 4 to 7, ...: the first that differs tells the place."""
    facts: dict[str, object] = {f"number of batches from {sampler}": batches.num_batches}
    start = 0
    while start < batches.num_batches:
        stop = min(2 * start or 1, batches.num_batches)
        digest = hashlib.blake2b(digest_size=8)
        for number in range(start, stop):
            digest.update(batches.indices(number).tobytes())
            digest.update(b"|")
        first = ", ".join(map(str, batches.indices(start)[:5].tolist()))
        facts[f"order from {sampler} in batches {start} to {stop - 1}"] = (
            f"{first}, ... (digest {digest.hexdigest()})"
        )
        start = stop
    return facts
