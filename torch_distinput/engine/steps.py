"""This worker's steps of a source that is read in order: what each kind can do.

ExampleSteps   examples: files, shards that are dealt out, streams without shards
ReadySteps     ready global batches
PlayedSteps    replica batches that a ``dataset_fn`` made

Steps are values: of a source that was found, for one worker. Another worker's are made by
``replace``, and nothing has to be called before something else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from torch_distinput.data.batch.fingerprint import fingerprint
from torch_distinput.data.sources.source import ReadySource, StreamSource
from torch_distinput.data.steps.local_step import LocalStep
from torch_distinput.data.steps.step_tally import StepTally
from torch_distinput.data.stream.bad_records import ReadReport
from torch_distinput.data.stream.chunk import Chunk
from torch_distinput.data.user_sources.loader_start import count_readers
from torch_distinput.data.user_sources.stream_settings import settings_of
from torch_distinput.meter import WorkClock
from torch_distinput.options import AutoShardPolicy, Rebatch
from torch_distinput.plan.assignment.sharding import check_enough_shards
from torch_distinput.plan.assignment.topology import Topology
from torch_distinput.plan.progress.checksum import IdSum, Reading, sum_range
from torch_distinput.plan.progress.position import Position
from torch_distinput.plan.progress.route import Route
from torch_distinput.plan.progress.schedule import Schedule
from torch_distinput.plan.progress.state import READERS, SETTINGS

_COMPARED = 64
"""Workers that read the beginning of one file: of thousands its storage might take notice."""


class Steps(ABC):
    """One worker's steps of a source that was found."""

    __slots__ = ()

    is_dealt = True
    """Whether the workers get parts of one source; else each has made its own."""

    @property
    @abstractmethod
    def steps_per_batch(self) -> int:
        """Steps that one batch is played in."""

    @property
    @abstractmethod
    def num_parts(self) -> int | None:
        """Parts of files that are dealt out instead of files; None where there are none."""

    @property
    @abstractmethod
    def tally(self) -> StepTally:
        """Which numbers of a step the workers join where they vote, and whether they must."""

    @abstractmethod
    def facts(self) -> dict[str, object]:
        """What decides which examples come in which order; it must be equal on all workers."""

    @abstractmethod
    def check(self, position: Position) -> None:
        """Refuse a source that cannot be dealt out to the workers."""

    @abstractmethod
    def share(self) -> tuple[Any, ReadReport | None] | None:
        """What this worker finds out for all, and what it has noted meanwhile."""

    @abstractmethod
    def with_shares(self, shares: list[Any]) -> Steps:
        """The steps once all know what each has found out; ``shares`` are not None."""

    @abstractmethod
    def resume(self, position: Position) -> Position:
        """Go on from a position with this cluster and these cuts.

        Raises:
            ConfigurationError: if that is not possible with another number of workers.
        """

    @abstractmethod
    def schedule(self, position: Position) -> Schedule | None:
        """The steps from a position on, where they are known before they are read."""

    @abstractmethod
    def start(
        self, position: Position, known: Schedule | None, clock: WorkClock | None = None
    ) -> Iterator[LocalStep | ReadReport]:
        """Start an epoch, or go on in it.

        ``clock``: counts what decoding and collating take, where these can be told apart.
        """

    @abstractmethod
    def spec(self) -> Any:
        """The spec of a batch with ids, where that can be known without the other workers."""

    @abstractmethod
    def first_example(self, *, audited: bool) -> int | None:
        """A fingerprint of the first example of all shards; None where they differ when read twice.

        Only of files and of shards that are dealt out: the first batches of a stream that the
        workers share are compared in any case.
        """

    @abstractmethod
    def expected_ids(
        self, before: Position, after: Position, reading: Reading | None
    ) -> IdSum | None:
        """The sum of this worker's share of all ids in between; None where it is not known."""

    @abstractmethod
    def make_all_workers(self, position: Position) -> list[Steps]:
        """The steps of each worker of the cluster that a position is from, to be played here.

        Raises:
            UsageError: if they are not to be had on one machine.
        """


def make_routes(route: Route, position: Position) -> list[Route]:
    """How each worker of the cluster that a position is from reads the source."""
    layout, shared = position.layout, route.splitter.shared
    num_workers, num_replicas = layout.num_workers, layout.replicas_per_worker
    if shared:  # one stream: one worker may as well have all the replicas
        num_workers, num_replicas = 1, num_workers * num_replicas
    splitter = replace(
        route.splitter,
        rebatch=Rebatch(layout.rebatch),
        global_batch_size=layout.global_batch_size,
    )
    topologies = (
        Topology(num_workers=num_workers, replicas_per_worker=num_replicas, worker_index=worker)
        for worker in range(num_workers)
    )
    return [replace(route, splitter=replace(splitter, topology=each)) for each in topologies]


def describe_settings(source: Any, route: Route) -> dict[str, object]:
    """What must be equal on all workers that share a source which each of them has made."""
    settings = "" if route.policy is AutoShardPolicy.OFF else settings_of(source)
    readers = count_readers(source)
    facts: dict[str, object] = {SETTINGS: settings} if settings else {}
    return {**facts, READERS: readers} if readers else facts


def check_shards(
    route: Route, position: Position, num_shards: int, source: StreamSource | ReadySource
) -> None:
    """Refuse FILE with too few files or shards, unless an epoch goes on with other workers."""
    num_workers = route.splitter.topology.num_workers
    again = position.assignment or position.layout.num_workers != num_workers
    if route.policy is AutoShardPolicy.FILE and not again:
        cure = source.more_shards.format(num_workers)
        check_enough_shards(num_shards, num_workers, what=source.name, cure=cure)


def assigns_shards(route: Route) -> bool:
    """Whether there are several workers, and each of them gets its own part."""
    return route.splitter.topology.num_workers > 1 and route.policy is AutoShardPolicy.FILE


def compares_files(route: Route) -> bool:
    """Whether this worker shows the first record of all files.

    Each worker may have files of its own, which have the same names and sizes; a few will tell.
    """
    topology = route.splitter.topology
    is_asked = topology.num_workers > 1 and topology.worker_index < _COMPARED
    return is_asked and route.policy is not AutoShardPolicy.OFF


def sum_running_numbers(route: Route, start: int, stop: int) -> IdSum:
    """The sum of this worker's share of the ids of a stream that is read in one piece."""
    topology, count = route.splitter.topology, max(0, stop - start)
    worker, num_workers = topology.worker_index, topology.num_workers
    first, last = (start + part * count // num_workers for part in (worker, worker + 1))
    return sum_range(first, last)


def compare_fingerprints(read_twice: Iterable[Chunk | None]) -> int | None:
    """The fingerprint of what was read; None where it is another one each time."""
    fingerprints = {None if chunk is None else fingerprint(chunk.data) for chunk in read_twice}
    return fingerprints.pop() if len(fingerprints) == 1 else None
