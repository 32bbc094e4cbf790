"""Steps of batches that are there already: global ones, and those of a ``dataset_fn``."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch_distinput.data.loader.processes import LoaderOptions, run_stream
from torch_distinput.data.sources.prebatched import ReadyStream
from torch_distinput.data.sources.source import ReadySource
from torch_distinput.data.steps.local_step import LocalStep
from torch_distinput.data.steps.prebatched import PlayedDataset, RebatchReadyDataset
from torch_distinput.data.stream.bad_records import ReadReport
from torch_distinput.data.user_sources import state_version_1
from torch_distinput.engine.steps import Steps
from torch_distinput.errors import UsageError
from torch_distinput.options import AutoShardPolicy
from torch_distinput.plan.assignment.batching import Splitter
from torch_distinput.plan.progress.checksum import IdSum, Reading
from torch_distinput.plan.progress.place import Start
from torch_distinput.plan.progress.position import (
    Position,
    make_cluster_error,
    make_layout,
)
from torch_distinput.plan.progress.route import Shard
from torch_distinput.plan.progress.schedule import Schedule
from torch_distinput.plan.progress.state import Recipe
from torch_distinput.plan.progress.state_version_1 import Flat


class ReadySteps(Steps):
    """Ready global batches in order."""

    def __init__(
        self,
        source: ReadySource,
        splitter: Splitter,
        *,
        policy: AutoShardPolicy,
        seed: int,
        audited: bool = False,
    ) -> None:
        """Take a stream of batches; FILE deals out its shards."""
        super().__init__(splitter, policy, seed, audited=audited)
        self._source = source

    def recipe(self) -> Recipe:
        """The shards."""
        return {"shards": self._source.num_shards, **self._settings(self._source.stream.source)}

    def read_version_1(self, flat: Flat) -> Start:
        """In a source of the user's."""
        return state_version_1.read_flat(state_version_1.BATCHES, flat)

    def facts(self, position: Position) -> dict[str, object]:
        """The shards."""
        shards = self._source.num_shards
        self._check_shards(position, shards or 0, self._source.name)
        return dict(self.recipe())

    def resumed(self, position: Position) -> Position:
        """Go on; in a shared stream after so many rows, since batches may have another size now."""
        if self._splitter.shared:
            return position.restart(make_layout(self._splitter))
        return super().resumed(position)

    def first_example(self) -> int | None:
        """The first batch of a source that deals out shards."""
        if not self._deals_shards:
            return None
        whole = Shard(seed=self._seed)
        return self._print_of(next(self._source.stream.chunks(whole), None) for _ in range(2))

    def expected_ids(
        self, before: Position, after: Position, reading: Reading | None
    ) -> IdSum | None:
        """Running numbers of the rows of a shared stream."""
        if not self._splitter.shared:
            return None
        stop = after.examples if reading is None else reading.stop
        return self._running_numbers(before.examples, stop)

    def replayed(self, position: Position) -> list[Steps]:
        """The steps of each worker."""
        alone = copy.copy(self)
        alone._source = replace(self._source, loader=LoaderOptions())  # noqa: SLF001 - its own
        return super(ReadySteps, alone).replayed(position)

    def start(
        self,
        position: Position,
        known: Schedule | None,  # noqa: ARG002
    ) -> Iterator[LocalStep | ReadReport]:
        """Cut this worker's part of the stream."""
        read_plan = self._read_plan(position)
        dataset = RebatchReadyDataset(self._source.stream, read_plan, splitter=self._splitter)
        return run_stream(dataset, self._source.loader)


class PlayedSteps(Steps):
    """Replica batches that a ``dataset_fn`` made: nothing is sharded or cut."""

    def __init__(self, datasets: Sequence[Any], splitter: Splitter) -> None:
        """Take one dataset for the worker, or one for each of its replicas."""
        super().__init__(splitter, AutoShardPolicy.OFF, 0)
        self._streams = [
            ReadyStream(
                dataset,
                expected="a replica batch, because that is what dataset_fn's datasets yield",
                cure="Batch the examples in dataset_fn, get_per_replica_batch_size(...) at a time.",
            )
            for dataset in datasets
        ]

    def recipe(self) -> Recipe:
        """The number of datasets."""
        return {"datasets per worker": len(self._streams)}

    def read_version_1(self, flat: Flat) -> Start:
        """In each of its datasets."""
        return state_version_1.read_streams(flat)

    def facts(self, position: Position) -> dict[str, object]:  # noqa: ARG002
        """The number of datasets; what is in them is each worker's own affair."""
        return {"datasets per worker": len(self._streams)}

    def resumed(self, position: Position) -> Position:
        """Go on with the same workers and replicas."""
        layout = make_layout(self._splitter)
        if position.layout != layout:
            raise make_cluster_error(position, layout, "distribute_datasets_from_function")
        return position

    def replayed(self, position: Position) -> list[Steps]:  # noqa: ARG002
        """What the other workers' functions make is not known here."""
        msg = (
            "replay needs a source that distribute_dataset cut, got the batches that dataset_fn "
            "made on each worker. Call dataset_fn with the InputContext of that worker instead."
        )
        raise UsageError(msg)

    @property
    def steps_per_batch(self) -> int:
        """Every step takes new batches."""
        return 1

    def start(self, position: Position, known: Schedule | None) -> Iterator[LocalStep]:  # noqa: ARG002
        """Start the datasets; a loader process, if any, is their own affair."""
        read_plan = self._read_plan(position)
        return iter(PlayedDataset(self._streams, splitter=self._splitter, read_plan=read_plan))
