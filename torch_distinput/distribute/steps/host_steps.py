"""Deliveries of a feed as whole steps in host memory, numbered; the devices are still to come."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch_distinput import meter
from torch_distinput.data.steps.local_step import empty_step
from torch_distinput.device.prefetch import ReplicaLeaves
from torch_distinput.meter import WorkClock
from torch_distinput.values import PerReplica, StepInfo

if TYPE_CHECKING:
    from torch_distinput.engine.feeds import Feed
    from torch_distinput.engine.zero_rows import Shapes


def make_host_steps(
    feed: Feed,
    shapes: Shapes,
    num_replicas: int,
    *,
    first_step: int,
    cp_dim: str | None,
    clock: WorkClock | None,
    is_reader: bool,
) -> Iterator[ReplicaLeaves]:
    """Complete each delivery: every replica gets a batch. Steps are numbered here, for all.

    With a step travels what is told of it when it is handed over, which may be later: its facts,
    its structures, where the epoch stands after it, its trace, and how it came.
    """
    asked, pull = 0.0, None  # where nothing is measured
    for index in itertools.count(first_step):
        if clock is not None:
            asked = meter.now()
        delivery = feed.next(index)
        if delivery is None:
            return
        step = empty_step(num_replicas) if delivery.step is None else delivery.step
        if clock is not None:
            had, work = meter.now(), step.facts.work
            is_own = is_reader and delivery.step is not None
            pull = (asked, had, work, is_own, clock.decode, clock.collate)
        parts, padded_rows = shapes.fill(shapes.complete(step, feed.spec, index))
        leaves, structures, ids = zip(*parts, strict=True)
        source_counts = step.facts.source_counts
        info = StepInfo(
            index=index,
            num_examples=delivery.num_examples,
            local_counts=step.sizes,
            ids=ids[0] if num_replicas == 1 else PerReplica(ids),
            padded_rows=padded_rows,
            sources=None if source_counts is None else source_counts.examples,
            num_tokens=step.facts.num_tokens,
            cp_dim=cp_dim,
        )
        note = (info, structures, delivery.progress, step.facts, pull)
        yield ReplicaLeaves(leaves, note, step.owned)
