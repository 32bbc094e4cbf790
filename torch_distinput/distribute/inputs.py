"""The inputs of the street: from a source to this worker's feed.

An :class:`IndexedInput` plans its steps; a :class:`StreamedInput` reads them, from one of the kinds
of :class:`Steps`.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from torch_distinput.cluster.meeting import Meeting
from torch_distinput.cluster.watch import Watch
from torch_distinput.communicator import ChannelBrokenError
from torch_distinput.data.element_spec import spec_of
from torch_distinput.data.loader import TaskLoader
from torch_distinput.data.local_step import LocalStep
from torch_distinput.data.planned import StepFetch, fetch_steps, num_steps, plan_steps
from torch_distinput.data.read_log import Tally
from torch_distinput.data.sampling import sampled_batches
from torch_distinput.data.source import IndexedSource
from torch_distinput.distribute.feed import Feed, OwnFeed, PlannedFeed, VotedFeed, introduction
from torch_distinput.distribute.steps import Steps
from torch_distinput.plan.batching import Splitter
from torch_distinput.plan.order import EpochOrder, GlobalBatches, UniformBatches

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Opening:
    """What a feed needs beside its input.

    Attributes:
        epoch: which epoch to play.
        shares: what each worker has found out for all: the results of :meth:`Input.share`.
        tally: takes notes on what is read.
        watch: tells and hears of failures.
        meeting: where workers agree.
        timeout: seconds that a worker waits for another.
    """

    epoch: int
    shares: list[Any]
    tally: Tally
    watch: Watch
    meeting: Meeting
    timeout: float


class Input(Protocol):
    """Data that can be opened once per epoch."""

    def facts(self, epoch: int) -> dict[str, object]:
        """What must be equal on all workers; finds files, so it may raise."""

    def share(self) -> object:
        """What this worker finds out for all, as plain values. Called after :meth:`facts`."""

    def open(self, opening: Opening) -> Feed:
        """Start an epoch. Called after :meth:`facts` of the same epoch."""

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

    def facts(self, epoch: int) -> dict[str, object]:
        """The number of examples, and the order where a sampler of the user gives it."""
        facts: dict[str, object] = {"number of examples": self._source.num_examples}
        if self._source.sampler is not None:
            name = type(self._source.sampler).__name__
            facts |= _facts_of_order(self._batches(epoch), name)
        return facts

    def share(self) -> None:
        """All know all."""

    def open(self, opening: Opening) -> Feed:
        """Plan the epoch and start fetching."""
        batches = self._batches(opening.epoch)
        if batches.num_dropped and not self._said_dropped:
            self._said_dropped = True
            _log.info("drop_last leaves out %d examples at the end", batches.num_dropped)
        steps = fetch_steps(plan_steps(batches, self._splitter), self._loader)
        worker = self._splitter.topology.worker_index
        return PlannedFeed(steps, opening.watch, worker=worker, spec=self.spec)

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

    def _batches(self, epoch: int) -> GlobalBatches:
        request = self._source.request
        if self._source.sampler is not None:
            return self._from_sampler(epoch)
        assert request.global_batch_size is not None, "only a batch sampler has no batch size"
        assert self._source.num_examples is not None, "only a sampler does without"
        order = EpochOrder(
            num_examples=self._source.num_examples,
            shuffle=request.shuffle,
            seed=self._seed,
            epoch=epoch,
        )
        return UniformBatches(
            order=order, global_batch_size=request.global_batch_size, drop_last=request.drop_last
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

    def facts(self, epoch: int) -> dict[str, object]:  # noqa: ARG002
        """The files or shards that were found."""
        return self._steps.facts()

    def share(self) -> object:
        """What this worker found in its share of the files."""
        return self._steps.share()

    def open(self, opening: Opening) -> Feed:
        """Start reading, and voting where it must be."""
        self._steps.accept(opening.shares, opening.tally)
        topology = self._splitter.topology
        known = self._steps.known(opening.epoch)
        if known is not None:
            totals = (piece.num_examples for piece in known.pieces())
            return PlannedFeed(
                zip(self._started(opening), totals, strict=True),
                opening.watch,
                worker=topology.worker_index,
                spec=self._steps.spec,
            )
        if topology.num_workers == 1:
            return OwnFeed(opening.tally.sift(self._steps.start(opening.epoch)))
        try:
            agreement = opening.meeting.start(
                self._started(opening),
                shared=self._splitter.shared,
                introduce=introduction,
                timeout=opening.timeout,
            )
        except ChannelBrokenError as error:
            opening.watch.call_roll(error)
        return VotedFeed(
            agreement, opening.watch, worker=topology.worker_index, timeout=opening.timeout
        )

    def num_steps(self, epoch: int) -> int | None:
        """Steps of an epoch; None where they are unknown before the data is read."""
        known = self._steps.known(epoch)
        return None if known is None else known.num_steps

    def spec(self) -> None:
        """Unknown before it is read."""

    def _started(self, opening: Opening) -> Iterator[LocalStep]:
        """The steps; what starting them raises comes as their first, since the others wait."""
        try:
            return opening.tally.sift(self._steps.start(opening.epoch))
        except Exception as error:  # noqa: BLE001 - raised again where the first step is pulled
            return _raising(error)


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
