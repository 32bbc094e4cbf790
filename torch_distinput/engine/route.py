"""Who reads what from a position on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch_distinput.data.stream.chunk import Shard
from torch_distinput.data.stream.segments import ReadPlan, ReadSegment
from torch_distinput.options import AutoShardPolicy
from torch_distinput.plan.assignment.batching import Splitter
from torch_distinput.plan.progress.position import (
    Position,
    Segment,
    assigned_files,
    layout_of,
    not_elastic,
)


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
        """Whether it can: what cannot be parted was dealt out whole, and once."""
        return self.has_parts or not segment.generation

    def make_shard(self, position: Position, segment: Segment) -> Shard:
        """Return the part of the source that holds a segment."""
        if self.policy is not AutoShardPolicy.FILE:
            sparse = self.splitter.shared and self.splitter.topology.num_workers > 1
            watched = sparse and self.audited
            return Shard(seed=self.seed, epoch=position.epoch, sparse=sparse, watched=watched)
        reassignments, generation = position.reassignments, segment.generation
        dealt_out_again = generation < position.generation
        num_workers = (
            len(reassignments[generation]) if dealt_out_again else position.layout.num_workers
        )
        files = partial(
            assigned_files, reassignments=reassignments, segment=segment, num_workers=num_workers
        )
        return Shard(
            seed=self.seed,
            epoch=position.epoch,
            num_shards=num_workers,
            index=segment.index,
            dealt=files if position.generation else None,
        )

    def plan_reads(self, position: Position, steps_per_batch: int) -> ReadPlan:
        """Return what this worker reads from a position on."""
        worker = 0 if self.splitter.shared else self.splitter.topology.worker_index
        stream = position.streams[worker]
        batch, step = divmod(position.steps_done, steps_per_batch)
        legs = tuple(
            ReadSegment(
                shard=self.make_shard(position, segment),
                start=segment.start,
                skip=segment.skip,
                segment=number,
            )
            for number, segment in enumerate(stream.segments)
            if self.holds_rows(segment)
        )
        return ReadPlan(legs=legs, row=stream.row, num_batches=stream.batch, batch=batch, step=step)

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
        layout = layout_of(self.splitter)
        if self.splitter.shared or position.layout.num_workers == layout.num_workers:
            return position.with_layout(layout)
        if self.policy is AutoShardPolicy.FILE:
            return position.reassigned(layout, position.files_touched)
        raise not_elastic(position, layout, f"AutoShardPolicy.{self.policy.name}")
