"""The inputs of the street: from a source to this worker's feed.

An :class:`IndexedInput` plans its steps; a :class:`StreamedInput` reads them, from one of three
kinds of :class:`Steps`.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from torch_distinput.cluster.meeting import Meeting
from torch_distinput.cluster.watch import Watch
from torch_distinput.communicator import ChannelBrokenError
from torch_distinput.data.element_spec import spec_of
from torch_distinput.data.loader import TaskLoader, run_stream
from torch_distinput.data.local_step import LocalStep
from torch_distinput.data.planned import fetch_steps, num_steps, plan_steps
from torch_distinput.data.rebatch import PlayedDataset, RebatchDataset, RebatchReadyDataset
from torch_distinput.data.sampling import sampled_batches
from torch_distinput.data.source import IndexedSource, Prepared, ReadySource, StreamSource
from torch_distinput.data.stream import ReadyStream, Shard
from torch_distinput.distribute.feed import Feed, OwnFeed, PlannedFeed, VotedFeed, introduction
from torch_distinput.options import AutoShardPolicy
from torch_distinput.plan.batching import Splitter
from torch_distinput.plan.order import EpochOrder, GlobalBatches, UniformBatches
from torch_distinput.plan.sharding import check_enough_shards

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Opening:
    """What a feed needs beside its input: the epoch, and the ways to the other workers."""

    epoch: int
    watch: Watch
    meeting: Meeting
    timeout: float


class Input(Protocol):
    """Data that can be opened once per epoch."""

    def facts(self, epoch: int) -> dict[str, object]:
        """What must be equal on all workers; finds files, so it may raise."""

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
        self._loader = TaskLoader(source.fetch, source.loader)
        self._sampled: tuple[int, GlobalBatches] | None = None
        self._said_dropped = False

    def facts(self, epoch: int) -> dict[str, object]:
        """The number of examples, and the order where a sampler of the user gives it."""
        facts: dict[str, object] = {"number of examples": self._source.num_examples}
        if self._source.sampler is not None:
            name = type(self._source.sampler).__name__
            facts |= _facts_of_order(self._batches(epoch), name)
        return facts

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
        if not self._source.num_examples:
            return None
        first = np.zeros(1, dtype=np.int64)
        return spec_of((self._source.fetch(first), first))

    def _batches(self, epoch: int) -> GlobalBatches:
        request = self._source.request
        if self._source.sampler is not None:
            return self._from_sampler(epoch)
        assert request.global_batch_size is not None, "only a batch sampler has no batch size"
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


class Steps(Protocol):
    """This worker's steps of a source whose length is not known."""

    def facts(self) -> dict[str, object]:
        """What must be equal on all workers; finds files, so it may raise."""

    def start(self, epoch: int) -> Iterator[LocalStep]:
        """Start an epoch. Called after :meth:`facts`."""


class StreamedInput:
    """Steps of unknown number: several workers agree on them ahead of use; one worker need not."""

    def __init__(self, steps: Steps, splitter: Splitter) -> None:
        """Take this worker's steps."""
        self._steps = steps
        self._splitter = splitter

    def facts(self, epoch: int) -> dict[str, object]:  # noqa: ARG002
        """The files or shards that were found."""
        return self._steps.facts()

    def open(self, opening: Opening) -> Feed:
        """Start reading, and voting."""
        topology = self._splitter.topology
        if topology.num_workers == 1:
            return OwnFeed(self._steps.start(opening.epoch))
        try:
            agreement = opening.meeting.start(
                self._started(opening.epoch),
                shared=self._splitter.shared,
                introduce=introduction,
                timeout=opening.timeout,
            )
        except ChannelBrokenError as error:
            opening.watch.call_roll(error)
        return VotedFeed(
            agreement, opening.watch, worker=topology.worker_index, timeout=opening.timeout
        )

    def num_steps(self, epoch: int) -> None:
        """Unknown before it is read."""

    def spec(self) -> None:
        """Unknown before it is read."""

    def _started(self, epoch: int) -> Iterator[LocalStep]:
        """The steps; what starting them raises comes as their first, since the others wait."""
        try:
            return self._steps.start(epoch)
        except Exception as error:  # noqa: BLE001 - raised again where the first step is pulled
            return _raising(error)


class ExampleSteps:
    """Examples in order: files, dealt-out shards, opaque streams."""

    def __init__(
        self, source: StreamSource, splitter: Splitter, *, policy: AutoShardPolicy, seed: int
    ) -> None:
        """Take a stream; FILE deals out its files or shards."""
        self._source = source
        self._splitter = splitter
        self._policy = policy
        self._seed = seed
        self._prepared: Prepared | None = None

    def facts(self) -> dict[str, object]:
        """The files or shards that were found."""
        prepared = self._source.prepare()
        if self._policy is AutoShardPolicy.FILE:
            num_workers = self._splitter.topology.num_workers
            check_enough_shards(prepared.num_shards, num_workers, what=self._source.name)
        self._prepared = prepared
        digest = hashlib.blake2b(prepared.contents.encode(), digest_size=8).hexdigest()
        return {"files": f"{prepared.num_shards} (names and sizes: {digest})"}

    def start(self, epoch: int) -> Iterator[LocalStep]:
        """Cut this worker's part of the stream."""
        assert self._prepared is not None, "facts() comes first"
        dataset = RebatchDataset(
            self._prepared.stream,
            _shard(self._policy, self._splitter, self._seed, epoch),
            splitter=self._splitter,
            drop_last=self._source.request.drop_last,
        )
        return run_stream(dataset, self._source.loader)


class ReadySteps:
    """Ready global batches in order."""

    def __init__(
        self, source: ReadySource, splitter: Splitter, *, policy: AutoShardPolicy, seed: int
    ) -> None:
        """Take a stream of batches; FILE deals out its shards."""
        self._source = source
        self._splitter = splitter
        self._policy = policy
        self._seed = seed

    def facts(self) -> dict[str, object]:
        """The shards."""
        shards = self._source.num_shards
        if self._policy is AutoShardPolicy.FILE:
            num_workers = self._splitter.topology.num_workers
            check_enough_shards(shards or 0, num_workers, what=self._source.name)
        return {"shards": shards}

    def start(self, epoch: int) -> Iterator[LocalStep]:
        """Cut this worker's part of the stream."""
        shard = _shard(self._policy, self._splitter, self._seed, epoch)
        dataset = RebatchReadyDataset(self._source.stream, shard, splitter=self._splitter)
        return run_stream(dataset, self._source.loader)


class PlayedSteps:
    """Replica batches that a ``dataset_fn`` made: nothing is sharded or cut."""

    def __init__(self, datasets: Sequence[Any], *, num_replicas: int) -> None:
        """Take one dataset for the worker, or one for each of its replicas."""
        self._streams = [ReadyStream(dataset) for dataset in datasets]
        self._num_replicas = num_replicas

    def facts(self) -> dict[str, object]:
        """The number of datasets; what is in them is each worker's own affair."""
        return {"datasets per worker": len(self._streams)}

    def start(self, epoch: int) -> Iterator[LocalStep]:  # noqa: ARG002
        """Start the datasets; a loader process, if any, is their own affair."""
        return iter(PlayedDataset(self._streams, num_replicas=self._num_replicas))


def _shard(policy: AutoShardPolicy, splitter: Splitter, seed: int, epoch: int) -> Shard:
    if policy is not AutoShardPolicy.FILE:
        return Shard(seed=seed, epoch=epoch)
    topology = splitter.topology
    return Shard(
        seed=seed, epoch=epoch, num_shards=topology.num_workers, index=topology.worker_index
    )


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
