"""Who reads what from a position on: from segments to shards, and on to what one worker reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from torch_distinput.options import AutoShardPolicy
from torch_distinput.plan.assignment.batching import Splitter
from torch_distinput.plan.assignment.bounds import FixedBounds
from torch_distinput.plan.progress.place import Start
from torch_distinput.plan.progress.position import (
    ALL,
    Position,
    Segment,
    make_cluster_error,
    make_layout,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """Which part of a source to open, in which epoch.

    Attributes:
        seed: the caller's.
        epoch: which epoch.
        num_shards: how many shards there are.
        index: which of them.
        sparse: most of its rows will be skipped, because they are other workers'.
        watched: the workers will compare what each has read of it.
        reassignments: what was touched before the files were assigned; these stay where they were.
        num_files: how many of its files it holds, from the first on.
        marked: its places hold a mark of what it began with. Only those of worker 0 do: a source
            that begins otherwise does so on all, and a state stays small.
    """

    seed: int = 0
    epoch: int = 0
    num_shards: int = 1
    index: int = 0
    sparse: bool = False
    watched: bool = False
    reassignments: tuple[tuple[int, ...], ...] = ()
    num_files: int = ALL
    marked: bool = False

    def select(self, order: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return what it holds of all files or shards, which come in the order of the epoch."""
        left = order
        for files_touched in self.reassignments:
            turn, worker = np.divmod(np.arange(len(left)), len(files_touched))
            left = left[turn >= np.array(files_touched)[worker]]
        return left[self.index :: self.num_shards][: self.num_files]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadSegment:
    """A shard from a place on.

    Attributes:
        shard: the shard.
        start: where to start reading.
        skip: rows to pass over then; where it has fewer, also rows of the segments that follow.
        number: its number among the worker's segments, by which resume points name it; some
            segments hold nothing and are not read.
    """

    shard: Shard
    start: Start = None
    skip: int = 0
    number: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadPlan:
    """All that a worker reads in an epoch, and which rows of the layout that is.

    Attributes:
        segments: what to read.
        row: the row of the layout with which they begin.
        num_batches: global batches of the layout that lie before ``row``, or begin there.
        batch: the global batch to go on with.
        step: the first of its steps that is still to be delivered.
    """

    segments: tuple[ReadSegment, ...]
    row: int = 0
    num_batches: int = 0
    batch: int = 0
    step: int = 0

    def skip_to_batch(self, bounds: FixedBounds, lengths: Sequence[int]) -> ReadPlan:
        """Begin with the first row of the batch to go on with, where lengths are known.

        Args:
            bounds: where batches begin.
            lengths: rows of each segment from its beginning, which is where it starts.

        Returns:
            A plan in which no segment is passed over as a whole, so each skips rows of its own.
        """
        row, segments = bounds.begin(self.batch), []
        owed = row - self.row
        for segment, length in zip(self.segments, lengths, strict=True):
            owed += segment.skip
            if owed < length:
                segments.append(replace(segment, skip=owed))
            owed = max(0, owed - length)
        return replace(self, segments=tuple(segments), row=row)


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """How this worker reads a source.

    Attributes:
        splitter: the cluster, and whether all of it reads one stream.
        policy: what is assigned to whom; never AUTO.
        seed: the caller's.
        audited: what several workers read alike is watched.
        has_parts: what was assigned to a worker can be assigned again, file by file.
    """

    splitter: Splitter
    policy: AutoShardPolicy
    seed: int = 0
    audited: bool = False
    has_parts: bool = False

    def holds_rows(self, segment: Segment) -> bool:
        """Whether it can: what cannot be parted was assigned as a whole, and once."""
        return self.has_parts or not segment.assignment

    def make_shard(self, position: Position, segment: Segment) -> Shard:
        """Return the part of the source that holds a segment."""
        if self.policy is not AutoShardPolicy.FILE:
            sparse = self.splitter.shared and self.splitter.topology.num_workers > 1
            watched = sparse and self.audited
            return Shard(
                seed=self.seed,
                epoch=position.epoch,
                sparse=sparse,
                watched=watched,
                marked=not segment.worker,
            )
        before = position.reassignments[: segment.assignment]
        after = position.reassignments[segment.assignment :]
        return Shard(
            seed=self.seed,
            epoch=position.epoch,
            num_shards=len(after[0]) if after else position.layout.num_workers,
            index=segment.worker,
            reassignments=before,
            num_files=segment.num_files,
            marked=not segment.worker,
        )

    def plan_reads(self, position: Position, steps_per_batch: int) -> ReadPlan:
        """Return what this worker reads from a position on."""
        worker = 0 if self.splitter.shared else self.splitter.topology.worker_index
        stream = position.streams[worker]
        batch, step = divmod(position.steps_done, steps_per_batch)
        segments = tuple(
            ReadSegment(
                shard=self.make_shard(position, segment),
                start=segment.start,
                skip=segment.skip,
                number=number,
            )
            for number, segment in enumerate(stream.segments)
            if self.holds_rows(segment)
        )
        return ReadPlan(
            segments=segments, row=stream.row, num_batches=stream.batch, batch=batch, step=step
        )

    def lacks_files_touched(self, position: Position) -> bool:
        """Whether :meth:`resume` must be told how many files each worker had touched."""
        if self.splitter.shared:
            return False
        if position.layout.num_workers != self.splitter.topology.num_workers:
            return self.policy is AutoShardPolicy.FILE
        return not position.files_touched  # lengths were known, and perhaps are no more

    def resume(self, position: Position) -> Position:
        """Go on from a position with this cluster and these cuts.

        Raises:
            ConfigurationError: if that is not possible with another number of workers.
        """
        layout = make_layout(self.splitter)
        if self.splitter.shared or position.layout.num_workers == layout.num_workers:
            return position.with_layout(layout)
        if self.policy is AutoShardPolicy.FILE:
            return position.reassign(layout, position.files_touched)
        raise make_cluster_error(position, layout, f"AutoShardPolicy.{self.policy.name}")
