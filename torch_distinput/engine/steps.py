"""This worker's steps of sources that are read in order: what all kinds have in common.

ExampleSteps   examples: files, dealt-out shards, opaque streams
ReadySteps     ready global batches
PlayedSteps    replica batches that a ``dataset_fn`` made
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from torch_distinput.data.batch.fingerprint import fingerprint
from torch_distinput.data.steps.local_step import LocalStep
from torch_distinput.data.stream.bad_records import ReadCounter, ReadReport
from torch_distinput.data.stream.chunk import Chunk
from torch_distinput.data.user_sources.stream_settings import settings_of
from torch_distinput.options import AutoShardPolicy, Rebatch
from torch_distinput.plan.assignment.batching import Splitter
from torch_distinput.plan.assignment.sharding import check_enough_shards
from torch_distinput.plan.assignment.topology import Topology
from torch_distinput.plan.progress.checksum import IdSum, Reading, sum_range
from torch_distinput.plan.progress.place import Start
from torch_distinput.plan.progress.position import (
    ALL,
    Position,
    Segment,
    begin_epoch,
    make_layout,
)
from torch_distinput.plan.progress.route import ReadPlan, Route, Shard
from torch_distinput.plan.progress.schedule import Schedule
from torch_distinput.plan.progress.state import SETTINGS, Recipe
from torch_distinput.plan.progress.state_version_1 import Flat


class Steps(ABC):
    """This worker's steps of a source that is read in order."""

    def __init__(
        self, splitter: Splitter, policy: AutoShardPolicy, seed: int, *, audited: bool = False
    ) -> None:
        """Take the cuts, and who reads what; what all read is watched where it is audited."""
        self._splitter = splitter
        self._policy = policy
        self._seed = seed
        self._audited = audited

    @abstractmethod
    def recipe(self) -> Recipe:
        """What decides which examples come in which order; finds files, so it may raise."""

    @abstractmethod
    def read_version_1(self, flat: Flat) -> Start:
        """The place in a worker's stream that a state of version 1 holds."""

    @abstractmethod
    def facts(self, position: Position) -> dict[str, object]:
        """What must be equal on all workers; finds files, so it may raise."""

    @abstractmethod
    def start(
        self, position: Position, known: Schedule | None
    ) -> Iterator[LocalStep | ReadReport]:
        """Start an epoch, or go on in it. Called after :meth:`facts` and :meth:`accept`."""

    def share(self) -> object:
        """What this worker finds out for all."""
        return None

    def accept(self, shares: list[Any], read_counter: ReadCounter) -> None:
        """Take what all workers found out, and note what went wrong here."""
        del shares, read_counter

    def known(self, position: Position) -> Schedule | None:
        """The steps from a position on, where they are known before they are read."""
        del position
        return None

    def spec(self) -> Any:
        """The spec of a batch with ids, where that can be known without the other workers."""
        return None

    def first_example(self) -> int | None:
        """Of shards that are dealt out: of all of them; the same when it is read twice, or None.

        The first batches of a stream that the workers share are compared in any case.
        """
        return None

    @property
    def _deals_shards(self) -> bool:
        """Whether there are several workers, and each of them gets its own part."""
        several = self._splitter.topology.num_workers > 1
        return several and self._policy is AutoShardPolicy.FILE

    @staticmethod
    def _print_of(read_twice: Iterable[Chunk | None]) -> int | None:
        prints = {None if chunk is None else fingerprint(chunk.data) for chunk in read_twice}
        return prints.pop() if len(prints) == 1 else None

    def expected_ids(
        self, before: Position, after: Position, reading: Reading | None
    ) -> IdSum | None:
        """The sum of this worker's share of all ids in between; None where it is not known."""
        del before, after, reading
        return None

    def _running_numbers(self, start: int, stop: int) -> IdSum:
        """The sum of this worker's share of the ids of a stream that is read in one piece."""
        topology, count = self._splitter.topology, max(0, stop - start)
        worker, num_workers = topology.worker_index, topology.num_workers
        first, last = (start + part * count // num_workers for part in (worker, worker + 1))
        return sum_range(first, last)

    def first(self, epoch: int) -> Position:
        """The beginning of an epoch: one stream for all workers, or one for each."""
        num_streams = 1 if self._splitter.shared else self._splitter.topology.num_workers
        return begin_epoch(epoch, make_layout(self._splitter), num_streams)

    def resumed(self, position: Position) -> Position:
        """Go on from a position with this cluster and these cuts.

        Raises:
            ConfigurationError: if that is not possible with another number of workers.
        """
        if self._route.lacks_files_touched(position):
            position = replace(position, files_touched=self._files_touched(position))
        return self._route.resume(position)

    def _settings(self, source: Any) -> dict[str, object]:
        """What must be equal on all workers that share a source which each of them has made."""
        settings = "" if self._policy is AutoShardPolicy.OFF else settings_of(source)
        return {SETTINGS: settings} if settings else {}

    def _check_shards(self, position: Position, num_shards: int, what: str) -> None:
        """Refuse FILE with too few files or shards, unless an epoch goes on with other workers."""
        num_workers = self._splitter.topology.num_workers
        again = position.assignment or position.layout.num_workers != num_workers
        if self._policy is AutoShardPolicy.FILE and not again:
            check_enough_shards(num_shards, num_workers, what=what)

    def replayed(self, position: Position) -> list[Steps]:
        """The steps of each worker of the cluster that a position is from, to be played here.

        Raises:
            UsageError: if they are not to be had on one machine.
        """
        layout = position.layout
        num_workers, num_replicas = layout.num_workers, layout.replicas_per_worker
        if self._splitter.shared:  # one stream: one worker may as well have all the replicas
            num_workers, num_replicas = 1, num_workers * num_replicas
        return [
            self._played_by(
                Splitter(
                    topology=Topology(
                        num_workers=num_workers,
                        replicas_per_worker=num_replicas,
                        worker_index=worker,
                    ),
                    rebatch=Rebatch(layout.rebatch),
                    global_batch_size=layout.global_batch_size,
                    shared=self._splitter.shared,
                )
            )
            for worker in range(num_workers)
        ]

    def _played_by(self, splitter: Splitter) -> Steps:
        """The same steps for another worker."""
        steps = copy.copy(self)
        steps._splitter = splitter  # noqa: SLF001 - its own
        return steps

    @property
    def steps_per_batch(self) -> int:
        """Steps that one batch is played in."""
        return self._splitter.steps_per_batch

    def _files_touched(self, position: Position) -> tuple[int, ...]:
        """How many files of its own each worker has touched."""
        return (ALL,) * position.layout.num_workers

    @property
    def _has_parts(self) -> bool:
        """Whether what was assigned to a worker can be assigned again, file by file."""
        return False

    @property
    def _route(self) -> Route:
        return Route(
            splitter=self._splitter,
            policy=self._policy,
            seed=self._seed,
            audited=self._audited,
            has_parts=self._has_parts,
        )

    def _read_plan(self, position: Position) -> ReadPlan:
        """What this worker reads from a position on."""
        return self._route.plan_reads(position, self.steps_per_batch)

    def _shard(self, position: Position, segment: Segment) -> Shard:
        return self._route.make_shard(position, segment)
