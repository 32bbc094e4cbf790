"""The inputs of the street: from a source to this worker's feed.

An :class:`IndexedInput` plans its steps; a :class:`StreamedInput` reads them, from one of the kinds
of :class:`Steps`.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any, Protocol

import numpy as np

from torch_distinput.cluster.meeting import Meeting
from torch_distinput.cluster.watch import Watch
from torch_distinput.communicator import ChannelBrokenError
from torch_distinput.data.element_spec import spec_of
from torch_distinput.data.loader import TaskLoader
from torch_distinput.data.local_step import LocalStep, cut_step, empty_step
from torch_distinput.data.planned import StepFetch, fetch_steps, num_steps, plan_steps
from torch_distinput.data.read_log import Tally
from torch_distinput.data.sampling import sampled_batches
from torch_distinput.data.source import IndexedSource
from torch_distinput.distribute.feed import (
    Delivery,
    Feed,
    OwnFeed,
    PlannedFeed,
    VotedFeed,
    introduction,
)
from torch_distinput.distribute.steps import Steps
from torch_distinput.options import Rebatch
from torch_distinput.plan.batching import Splitter
from torch_distinput.plan.known_steps import KnownSteps
from torch_distinput.plan.ledger import Ledger, Standing
from torch_distinput.plan.order import EpochOrder, GlobalBatches, UniformBatches
from torch_distinput.plan.position import Position, first_position, grid_of
from torch_distinput.plan.state import Recipe
from torch_distinput.plan.topology import Topology

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Opening:
    """What a feed needs beside its input.

    Attributes:
        position: the epoch to play, and where to go on in it.
        shares: what each worker has found out for all: the results of :meth:`Input.share`.
        tally: takes notes on what is read.
        watch: tells and hears of failures.
        meeting: where workers agree.
        timeout: seconds that a worker waits for another.
    """

    position: Position
    shares: list[Any]
    tally: Tally
    watch: Watch
    meeting: Meeting
    timeout: float


class Input(Protocol):
    """Data that can be opened once per epoch."""

    def first(self, epoch: int) -> Position:
        """The beginning of an epoch."""

    def recipe(self) -> Recipe:
        """What decides which examples come in which order; finds files, so it may raise."""

    def facts(self, position: Position) -> dict[str, object]:
        """What must be equal on all workers; finds files, so it may raise."""

    def share(self) -> object:
        """What this worker finds out for all, as plain values. Called after :meth:`facts`."""

    def open(self, opening: Opening) -> Feed:
        """Start an epoch, or go on in it. Called after :meth:`facts` of the same position."""

    def replay(self, position: Position, step: int) -> list[LocalStep] | None:
        """One step of the epoch, of all workers at once; None if there is none."""

    def num_steps(self, epoch: int) -> int | None:
        """Steps of an epoch; None where they are not known beforehand."""

    def spec(self) -> Any:
        """The spec of a batch with ids where it needs no other worker, else None."""


class IndexedInput:
    """Examples by index: all counts are arithmetic."""

    def __init__(self, source: IndexedSource, splitter: Splitter, *, seed: int) -> None:
        """Take an indexed source."""
        self._source = source
        self._splitter = splitter
        self._seed = seed
        self._loader = TaskLoader(StepFetch(source.fetch), source.loader)
        self._sampled: tuple[int, GlobalBatches] | None = None
        self._said_dropped = False

    def first(self, epoch: int) -> Position:
        """The beginning of an epoch: what is delivered is a number of examples."""
        return first_position(epoch, grid_of(self._splitter), 0)

    def recipe(self) -> Recipe:
        """The number of examples, and the sampler of the user's."""
        sampler = self._source.sampler
        return {
            "source": "examples by index",
            "number of examples": self._source.num_examples,
            "sampler": None if sampler is None else type(sampler).__name__,
        }

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
        position = replace(opening.position, grid=grid_of(self._splitter))
        batches = self._batches(position.epoch).after(position)
        if batches.num_dropped and not self._said_dropped:
            self._said_dropped = True
            _log.info("drop_last leaves out %d examples at the end", batches.num_dropped)
        fetched = fetch_steps(plan_steps(batches, self._splitter), self._loader)
        steps = (
            Delivery(step=step, num_examples=total, where=lambda: position)
            for step, total in fetched
        )
        worker = self._splitter.topology.worker_index
        return PlannedFeed(steps, opening.watch, worker=worker, spec=self.spec)

    def replay(self, position: Position, step: int) -> list[LocalStep] | None:
        """Fetch the step as one worker with all the replicas."""
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
        return [cut_step((self._source.fetch(indices), indices), cut.sizes)]

    def num_steps(self, epoch: int) -> int:
        """Steps of an epoch."""
        return num_steps(self._batches(epoch), self._splitter)

    def spec(self) -> Any:
        """Fetch one example; None if there is none."""
        if self._source.num_examples == 0:
            return None
        first = np.zeros(1, dtype=np.int64)
        if self._sampled is not None and self._sampled[1].num_batches:
            first = self._sampled[1].indices(0)[:1]  # a sampler may leave out example 0
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
        """Iterate the user's sampler once per epoch: it may keep a state of its own."""
        if self._sampled is None or self._sampled[0] != epoch:
            request = self._source.request
            assert self._source.sampler is not None, "asked for by the caller"
            batches = sampled_batches(
                self._source.sampler,
                request.global_batch_size,
                drop_last=request.drop_last,
                key=(self._seed, epoch),
            )
            self._sampled = (epoch, batches)
        return self._sampled[1]


class StreamedInput:
    """Steps that are read in order.

    Where their number is not known beforehand, several workers agree on them ahead of use.
    """

    def __init__(self, steps: Steps, splitter: Splitter) -> None:
        """Take this worker's steps."""
        self._steps = steps
        self._splitter = splitter

    def first(self, epoch: int) -> Position:
        """The beginning of an epoch."""
        return self._steps.first(epoch)

    def recipe(self) -> Recipe:
        """The files or shards, and what is done with them."""
        return self._steps.recipe()

    def facts(self, position: Position) -> dict[str, object]:
        """The files or shards that were found."""
        return self._steps.facts(position)

    def share(self) -> object:
        """What this worker found in its share of the files."""
        return self._steps.share()

    def open(self, opening: Opening) -> Feed:
        """Start reading, and voting where it must be."""
        self._steps.accept(opening.shares, opening.tally)
        position = self._steps.resumed(opening.position)
        known = self._steps.known(position)
        steps = self._started(opening.tally, position, known)
        if known is None:
            return self._agreed(opening, position, steps)
        deliveries = (
            Delivery(
                step=step,
                num_examples=piece.num_examples,
                where=partial(_known_position, position, known, piece.rounds),
            )
            for step, piece in zip(steps, known.pieces(), strict=True)
        )
        worker = self._splitter.topology.worker_index
        return PlannedFeed(deliveries, opening.watch, worker=worker, spec=self._steps.spec)

    def _agreed(self, opening: Opening, position: Position, steps: Iterator[LocalStep]) -> Feed:
        """Steps whose number is not known beforehand."""
        topology, shared = self._splitter.topology, self._splitter.shared
        ledger = Ledger(position, topology.num_workers, shared=shared)
        where = partial(_voted_position, position, shared=shared)
        if topology.num_workers == 1:
            return OwnFeed(steps, ledger, where)
        try:
            agreement = opening.meeting.start(
                steps,
                shared=shared,
                introduce=introduction,
                ledger=ledger,
                timeout=opening.timeout,
            )
        except ChannelBrokenError as error:
            opening.watch.call_roll(error)
        return VotedFeed(
            agreement,
            opening.watch,
            worker=topology.worker_index,
            timeout=opening.timeout,
            where=where,
        )

    def replay(self, position: Position, step: int) -> list[LocalStep] | None:
        """Play all workers side by side, from the position to the step."""
        workers = self._steps.replayed(position)
        tally = Tally(self._splitter.topology.worker_index)
        started = [
            tally.sift(steps.start(position, steps.known(position))) for steps in workers
        ]
        number = position.steps
        for rounds in zip_longest(*started):
            steps = [part or empty_step(position.grid.replicas_per_worker) for part in rounds]
            if any(part.count for part in steps):
                if number == step:
                    return steps
                number += 1
        return None

    def num_steps(self, epoch: int) -> int | None:
        """Steps of an epoch; None where they are unknown before the data is read."""
        known = self._steps.known(self.first(epoch))
        return None if known is None else known.num_steps

    def spec(self) -> None:
        """Unknown before it is read."""

    def _started(
        self, tally: Tally, position: Position, known: KnownSteps | None
    ) -> Iterator[LocalStep]:
        """The steps; what starting them raises comes as their first, since the others wait."""
        try:
            return tally.sift(self._steps.start(position, known))
        except Exception as error:
            if self._splitter.topology.num_workers == 1:
                raise
            return _raising(error)


def _known_position(before: Position, known: KnownSteps, rounds: int) -> Position:
    """Where an epoch of known lengths stands: nobody needs to be asked."""
    return replace(before, rounds=rounds, rows=known.delivered(rounds), reaches=())


def _voted_position(before: Position, standing: Standing, *, shared: bool) -> Position:
    return standing.position(before, shared=shared)


def _raising(error: Exception) -> Iterator[LocalStep]:
    raise error
    yield


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
