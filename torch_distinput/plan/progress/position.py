"""Where an epoch stands, in global terms, and how it goes on with another cluster.

A position counts what was *delivered*. It is the same on all workers, and small: for sources with
an index and for a shared stream (DATA) a number of examples. Where every worker has a stream of its
own (FILE), it holds for each of them how many rows were delivered, and from where it can be read
again.

    layout      how batches are cut. ``steps_done`` steps of it are over, and ``rows`` of each
                stream delivered. With another one, batches begin anew where delivery stopped.
    streams     what each worker reads: segments, one after another
    lane        what was dealt out to one worker: files, or parts of files
    dealing     all files are dealt out at the start of an epoch: generation 0. On another number of
                workers, those that nobody has touched are dealt out again: generation 1, 2, ...
                Lanes that were begun are segments of whoever gets them, up to the last file touched
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torch_distinput.errors import ConfigurationError
from torch_distinput.plan.assignment.batching import Splitter

ALL = 1 << 31
"""More files than a lane can have: all of them."""

Start = tuple[Any, ...]
"""From where a stream can be read again, in words of its own: numbers and texts; () from the
beginning."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchLayout:
    """How batches are cut: what must be equal for the same steps to go on."""

    num_workers: int
    replicas_per_worker: int
    global_batch_size: int | None
    rebatch: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """What a lane holds from a place on.

    Attributes:
        generation: the dealing that the lane is from.
        index: the worker that it was dealt to.
        num_files: how many of the lane's files belong to the segment, or ``ALL``.
        skip: rows to pass over, from ``start`` on; they may reach into the segments that follow.
        start: where to start reading.
    """

    generation: int = 0
    index: int = 0
    num_files: int = ALL
    skip: int = 0
    start: Start = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamPosition:
    """What one worker reads, and where on the grid that begins.

    Attributes:
        batch: a global batch of the grid; it does not begin before ``row``.
        row: the row of the grid at which the segments begin; negative before the grid.
        segments: what to read, in order.
    """

    batch: int = 0
    row: int = 0
    segments: tuple[Segment, ...] = (Segment(),)

    def restarted(self, row: int) -> StreamPosition:
        """Make ``row`` the first one of a new grid."""
        if not self.segments:
            return self
        first, *others = self.segments
        first = replace(first, skip=first.skip + row - self.row)
        return StreamPosition(segments=(first, *others))


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumePoint:
    """A place from which a worker's stream can be read again, noted while it was read.

    Attributes:
        batch: the global batch of the grid that begins at or after it.
        row: the row of the grid; negative before the grid.
        segment: which of the worker's segments it lies in.
        start: where in it.
    """

    batch: int
    row: int
    segment: int
    start: Start

    def position(self, stream: StreamPosition) -> StreamPosition:
        """What is to be read of a stream from here on."""
        first, *others = stream.segments[self.segment :]
        first = replace(first, skip=0, start=self.start)
        return StreamPosition(batch=self.batch, row=self.row, segments=(first, *others))


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """Where an epoch stands.

    Attributes:
        epoch: which epoch.
        steps: steps delivered.
        examples: examples delivered, over all replicas in sync.
        layout: how the batches are cut.
        steps_done: steps of the grid that are over, also those that nobody had an example in.
        rows: rows delivered of each stream, since the grid began.
        files_touched: how many files of its own lane each worker has touched; empty for a shared
            stream, and where known lengths tell it from the rows.
        streams: what each worker reads, or all of them together; empty for sources with an index.
        reassignments: for each dealing before, how many files each worker had touched.
    """

    epoch: int
    layout: BatchLayout
    steps: int = 0
    examples: int = 0
    steps_done: int = 0
    rows: tuple[int, ...] = ()
    files_touched: tuple[int, ...] = ()
    streams: tuple[StreamPosition, ...] = ()
    reassignments: tuple[tuple[int, ...], ...] = field(default=())

    @property
    def generation(self) -> int:
        """The number of the dealing that holds."""
        return len(self.reassignments)

    def with_layout(self, layout: BatchLayout) -> Position:
        """Begin another grid where delivery stopped; everybody goes on with the same stream."""
        return self if layout == self.layout else self.restarted(layout)

    def restarted(self, layout: BatchLayout) -> Position:
        """Begin a grid where delivery stopped, also if it is the same."""
        streams = tuple(
            stream.restarted(row) for stream, row in zip(self.streams, self.rows, strict=True)
        )
        nothing = (0,) * len(self.rows)
        return replace(self, layout=layout, steps_done=0, rows=nothing, streams=streams)

    def reassigned(self, layout: BatchLayout, files_touched: tuple[int, ...]) -> Position:
        """Go on with another number of workers, each with a stream of its own.

        Args:
            layout: how the new workers cut.
            files_touched: how many files of its own lane each old worker has touched; ``ALL``
                where what was dealt out cannot be parted.
        """
        begun = [
            _begun(stream.segments, num_touched)
            for stream, num_touched in zip(
                self.restarted(layout).streams, files_touched, strict=True
            )
        ]
        chains = [chain for chain in begun if chain]
        num_workers, generation = layout.num_workers, self.generation + 1
        streams = tuple(
            StreamPosition(
                segments=(
                    *(segment for chain in chains[worker::num_workers] for segment in chain),
                    Segment(generation=generation, index=worker),
                )
            )
            for worker in range(num_workers)
        )
        return replace(
            self,
            layout=layout,
            steps_done=0,
            rows=(0,) * num_workers,
            files_touched=(0,) * num_workers,
            streams=streams,
            reassignments=(*self.reassignments, files_touched),
        )


def layout_of(splitter: Splitter) -> BatchLayout:
    """The grid that a splitter cuts."""
    topology = splitter.topology
    return BatchLayout(
        num_workers=topology.num_workers,
        replicas_per_worker=topology.replicas_per_worker,
        global_batch_size=splitter.global_batch_size,
        rebatch=splitter.rebatch.value,
    )


def first_position(epoch: int, layout: BatchLayout, num_streams: int) -> Position:
    """The beginning of an epoch with as many streams: none, one for all, or one for each worker."""
    streams = tuple(
        StreamPosition(segments=(Segment(index=worker),)) for worker in range(num_streams)
    )
    nothing = (0,) * num_streams
    return Position(
        epoch=epoch, layout=layout, rows=nothing, files_touched=nothing, streams=streams
    )


def _begun(segments: tuple[Segment, ...], num_touched: int) -> tuple[Segment, ...]:
    """What a worker had begun: of its own lane, the last segment, the files that it touched."""
    *before, own = segments
    return (*before, replace(own, num_files=num_touched)) if num_touched else tuple(before)


def assigned_files(
    num_files: int,
    *,
    reassignments: tuple[tuple[int, ...], ...],
    segment: Segment,
    num_workers: int,
) -> NDArray[np.int64]:
    """The places, in the order of the epoch, of the files of a segment.

    ``num_workers``: of the generation that the segment is from.
    """
    rest = np.arange(num_files)
    for files_touched in reassignments[: segment.generation]:
        turn, worker = np.divmod(np.arange(len(rest)), len(files_touched))
        rest = rest[turn >= np.array(files_touched)[worker]]
    return rest[segment.index :: num_workers][: segment.num_files]


def not_elastic(position: Position, layout: BatchLayout, what: str) -> ConfigurationError:
    """The error for a state that only the cluster it is from can continue."""
    before = position.layout
    msg = (
        f"Expected the workers and replicas that the state is from ({before.num_workers} x "
        f"{before.replicas_per_worker}), because with {what} each worker has a stream of its own "
        f"that no other can continue; got {layout.num_workers} x {layout.replicas_per_worker}. "
        "Start as many, or start a new epoch without the state."
    )
    return ConfigurationError(msg)
