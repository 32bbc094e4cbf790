"""Steps of batches that are there already: global ones, and those of a ``dataset_fn``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from torch_distinput.data.loader.options import LoaderOptions
from torch_distinput.data.loader.processes import run_stream
from torch_distinput.data.sources.ready_batches import ReadyStream
from torch_distinput.data.sources.source import ReadySource
from torch_distinput.data.steps.local_step import LocalStep
from torch_distinput.data.steps.ready_batches import PlayedDataset, RebatchReadyDataset
from torch_distinput.data.steps.step_tally import NOTHING_COUNTED, StepTally
from torch_distinput.data.stream.bad_records import ReadReport
from torch_distinput.engine.steps import (
    Steps,
    assigns_shards,
    check_shards,
    compare_fingerprints,
    describe_settings,
    make_routes,
    sum_running_numbers,
)
from torch_distinput.errors import UsageError
from torch_distinput.meter import WorkClock
from torch_distinput.options import AutoShardPolicy
from torch_distinput.plan.assignment.batching import Splitter
from torch_distinput.plan.progress.checksum import IdSum, Reading
from torch_distinput.plan.progress.position import ALL, Position, make_cluster_error, make_layout
from torch_distinput.plan.progress.route import Route, Shard
from torch_distinput.plan.progress.schedule import Schedule


class _BatchSteps(Steps):
    """What is known of batches that were made elsewhere, whoever made them."""

    __slots__ = ()

    @property
    def num_parts(self) -> None:
        """No files are split."""

    @property
    def tally(self) -> StepTally:
        """Nothing is counted."""
        return NOTHING_COUNTED

    def share(self) -> None:
        """Nothing is found out beforehand."""

    def with_shares(self, shares: list[Any]) -> _BatchSteps:  # noqa: ARG002
        """As :meth:`share` says."""
        return self

    def schedule(self, position: Position) -> None:
        """Unknown: each batch has a size of its own."""

    def spec(self) -> None:
        """Unknown before a batch is read."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class ReadySteps(_BatchSteps):
    """Ready global batches in order; FILE deals out their shards.

    Attributes:
        source: the batches.
        route: what this worker reads of them.
    """

    source: ReadySource
    route: Route

    @property
    def steps_per_batch(self) -> int:
        """As many as the splitter says."""
        return self.route.splitter.steps_per_batch

    def facts(self) -> dict[str, object]:
        """The shards."""
        settings = describe_settings(self.source.stream.source, self.route)
        return {"shards": self.source.num_shards, **settings}

    def check(self, position: Position) -> None:
        """Refuse too few shards."""
        check_shards(self.route, position, self.source.num_shards or 0, self.source)

    def resume(self, position: Position) -> Position:
        """Go on; in a shared stream after so many rows, since batches may have another size now."""
        if self.route.splitter.shared:
            return position.restart(make_layout(self.route.splitter))
        if self.route.lacks_files_touched(position):
            position = replace(position, files_touched=(ALL,) * position.layout.num_workers)
        return self.route.resume(position)

    def start(
        self,
        position: Position,
        known: Schedule | None,  # noqa: ARG002
        clock: WorkClock | None = None,  # noqa: ARG002
    ) -> Iterator[LocalStep | ReadReport]:
        """Cut this worker's part of the stream."""
        read_plan = self.route.plan_reads(position, self.steps_per_batch)
        splitter = self.route.splitter
        dataset = RebatchReadyDataset(self.source.stream, read_plan, splitter=splitter)
        return run_stream(dataset, self.source.loader)

    def first_example(self, *, audited: bool) -> int | None:
        """The first batch of a source that deals out shards."""
        if not audited or not assigns_shards(self.route):
            return None
        whole = Shard(seed=self.route.seed)
        return compare_fingerprints(next(self.source.stream.chunks(whole), None) for _ in range(2))

    def expected_ids(
        self, before: Position, after: Position, reading: Reading | None
    ) -> IdSum | None:
        """Running numbers of the rows of a shared stream."""
        if not self.route.splitter.shared:
            return None
        stop = after.examples if reading is None else reading.stop
        return sum_running_numbers(self.route, before.examples, stop)

    def make_all_workers(self, position: Position) -> list[Steps]:
        """Without loader processes."""
        alone = replace(self, source=replace(self.source, loader=LoaderOptions()))
        return [replace(alone, route=route) for route in make_routes(self.route, position)]


def play_datasets(datasets: Sequence[Any], splitter: Splitter) -> PlayedSteps:
    """Take one dataset for the worker, or one for each of its replicas."""
    streams = tuple(
        ReadyStream(
            dataset,
            expected="a replica batch, because that is what dataset_fn's datasets yield",
            cure="Batch the examples in dataset_fn, get_per_replica_batch_size(...) at a time.",
        )
        for dataset in datasets
    )
    return PlayedSteps(streams=streams, route=Route(splitter=splitter, policy=AutoShardPolicy.OFF))


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class PlayedSteps(_BatchSteps):
    """Replica batches that a ``dataset_fn`` made: nothing is sharded or cut.

    Attributes:
        streams: one for the worker, or one for each of its replicas.
        route: what this worker reads of them: all.
    """

    streams: tuple[ReadyStream, ...]
    route: Route
    is_dealt = False

    @property
    def steps_per_batch(self) -> int:
        """Every step takes new batches."""
        return 1

    def facts(self) -> dict[str, object]:
        """The number of datasets; what is in them is each worker's own affair."""
        return {"datasets per worker": len(self.streams)}

    def check(self, position: Position) -> None:
        """Nothing is dealt out."""

    def resume(self, position: Position) -> Position:
        """Go on with the same workers and replicas."""
        layout = make_layout(self.route.splitter)
        if position.layout != layout:
            raise make_cluster_error(position, layout, "distribute_datasets_from_function")
        return position

    def start(
        self,
        position: Position,
        known: Schedule | None,  # noqa: ARG002
        clock: WorkClock | None = None,  # noqa: ARG002
    ) -> Iterator[LocalStep]:
        """Start the datasets; a loader process, if any, is their own affair."""
        read_plan = self.route.plan_reads(position, self.steps_per_batch)
        splitter = self.route.splitter
        return iter(PlayedDataset(self.streams, splitter=splitter, read_plan=read_plan))

    def first_example(self, *, audited: bool) -> None:
        """Each worker has its own."""

    def expected_ids(self, before: Position, after: Position, reading: Reading | None) -> None:
        """Each worker numbers its own."""

    def make_all_workers(self, position: Position) -> list[Steps]:  # noqa: ARG002
        """What the other workers' functions make is not known here."""
        msg = (
            "replay needs a source that distribute_dataset cut, got the batches that dataset_fn "
            "made on each worker. Call dataset_fn with the InputContext of that worker instead."
        )
        raise UsageError(msg)
