"""Where an epoch stands, in global terms, and how it goes on with another cluster.

A position counts what was *delivered*. It is the same on all workers, and small: for sources with
an index and for a shared stream (DATA) a number of examples. Where every worker has a stream of its
own (FILE), it holds for each of them how many rows were delivered, and from where it can be read
again. README.md, beside this file, draws an epoch through 2, 3 and 1 workers:

    layout          how batches are cut. ``steps_done`` steps of it are over, and ``rows`` of each
                    stream delivered. With another layout, batches begin anew where delivery stopped
    stream          what one worker reads, or all of them together: segments, one after another
    assignment      all files are assigned to the workers at the start of an epoch: assignment 0
    reassignment    with another number of workers, the files that nobody has touched are assigned
                    anew: assignment 1, 2, ... What was begun stays whole, up to the last file
                    touched: it comes as segments before the new ones of whoever gets it
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from torch_distinput.errors import ConfigurationError
from torch_distinput.options import Rebatch
from torch_distinput.plan.assignment.batching import Splitter
from torch_distinput.plan.assignment.bounds import Size
from torch_distinput.plan.assignment.topology import Topology
from torch_distinput.plan.progress.place import Start, count_needed_files

ALL = 1 << 31
"""More files than a worker can have: all of its files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchLayout:
    """How batches are cut: what must be equal for the same steps to go on."""

    num_workers: int
    replicas_per_worker: int
    global_batch_size: Size | None
    rebatch: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """Some of the files that one assignment gave to one worker, in order, from a place on.

    Attributes:
        assignment: which assignment; 0 is the first of the epoch.
        worker: the worker that got them then.
        num_files: how many of its files belong to the segment, or ``ALL``.
        skip: rows to pass over, from ``start`` on; they may reach into the segments that follow.
        start: where to start reading.
    """

    assignment: int = 0
    worker: int = 0
    num_files: int = ALL
    skip: int = 0
    start: Start = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamPosition:
    """What is read of a stream, and which of its rows that begins with.

    Attributes:
        batch: a global batch of the layout; it does not begin before ``row``.
        row: the row at which the segments begin, counted like ``Position.rows``; negative before
            the layout began.
        segments: what to read, in order. The last one is of the assignment that holds.
    """

    batch: int = 0
    row: int = 0
    segments: tuple[Segment, ...] = (Segment(),)

    def restart(self, row: int) -> StreamPosition:
        """Return the same stream with ``row`` as the first row of a layout."""
        if not self.segments:
            return self
        first, *others = self.segments
        first = replace(first, skip=first.skip + row - self.row)
        return StreamPosition(segments=(first, *others))


class ResumePoint(NamedTuple):
    """A place from which a worker's stream can be read again, noted while it was read.

    Attributes:
        batch: the global batch of the layout that begins at or after it.
        row: its row, counted like ``StreamPosition.row``.
        segment: which of the worker's segments it lies in.
        start: where in it.
        skip: rows to pass over from there to ``row``.
    """

    batch: int
    row: int
    segment: int
    start: Start
    skip: int = 0

    def resume(self, stream: StreamPosition) -> StreamPosition:
        """Return what is to be read of a stream from here on."""
        first, *others = stream.segments[self.segment :]
        first = replace(first, skip=self.skip, start=self.start)
        return StreamPosition(batch=self.batch, row=self.row, segments=(first, *others))


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """Where an epoch stands.

    Attributes:
        epoch: which epoch.
        steps: steps delivered.
        examples: examples delivered, over all replicas in sync.
        layout: how the batches are cut.
        steps_done: steps of the layout that are over, also those that nobody had an example in.
        rows: rows delivered of each stream, since the layout began.
        files_touched: how many files of its own segment, the last one, each worker has touched;
            empty for a shared stream, and where known lengths tell it from the rows.
        streams: what each worker reads, or all of them together; empty for sources with an index.
        reassignments: for each reassignment, how many files of its own each worker had touched.
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
    def assignment(self) -> int:
        """The number of the assignment that holds."""
        return len(self.reassignments)

    def with_layout(self, layout: BatchLayout) -> Position:
        """Begin another layout where delivery stopped; everybody goes on with the same stream."""
        return self if layout == self.layout else self.restart(layout)

    def restart(self, layout: BatchLayout) -> Position:
        """Begin a layout where delivery stopped, also if it is the same."""
        streams = tuple(
            stream.restart(row) for stream, row in zip(self.streams, self.rows, strict=True)
        )
        nothing = (0,) * len(self.rows)
        return replace(self, layout=layout, steps_done=0, rows=nothing, streams=streams)

    def reassign(self, layout: BatchLayout, files_touched: tuple[int, ...]) -> Position:
        """Go on with another number of workers, each with a stream of its own.

        Args:
            layout: how the new workers cut.
            files_touched: how many files of its own each old worker has touched; ``ALL`` where
                what was assigned cannot be parted.
        """
        streams = self.restart(layout).streams
        # A place may be ahead of what was delivered: behind rows that a filter has left out, say.
        files_touched = tuple(
            max(num_touched, count_needed_files(stream.segments[-1].start))
            for stream, num_touched in zip(streams, files_touched, strict=True)
        )
        begun = [
            _keep_begun(stream.segments, num_touched)
            for stream, num_touched in zip(streams, files_touched, strict=True)
        ]
        chains = [chain for chain in begun if chain]
        num_workers, assignment = layout.num_workers, self.assignment + 1
        streams = tuple(
            StreamPosition(
                segments=(
                    *(segment for chain in chains[worker::num_workers] for segment in chain),
                    Segment(assignment=assignment, worker=worker),
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


def make_layout(splitter: Splitter) -> BatchLayout:
    """Return the layout that a splitter cuts."""
    topology = splitter.topology
    return BatchLayout(
        num_workers=topology.num_workers,
        replicas_per_worker=topology.replicas_per_worker,
        global_batch_size=splitter.global_batch_size,
        rebatch=splitter.rebatch.value,
    )


def gather_layout(splitter: Splitter, layout: BatchLayout) -> Splitter:
    """Return the splitter of one worker that has all the replicas of a layout."""
    num_replicas = layout.num_workers * layout.replicas_per_worker
    return replace(
        splitter,
        topology=Topology(replicas_per_worker=num_replicas),
        rebatch=Rebatch(layout.rebatch),
        global_batch_size=layout.global_batch_size,
    )


def begin_epoch(epoch: int, layout: BatchLayout, num_streams: int) -> Position:
    """Return the beginning of an epoch.

    ``num_streams``: 0 for sources with an index, 1 for all workers together, or one for each.
    """
    streams = tuple(
        StreamPosition(segments=(Segment(worker=worker),)) for worker in range(num_streams)
    )
    nothing = (0,) * num_streams
    return Position(
        epoch=epoch, layout=layout, rows=nothing, files_touched=nothing, streams=streams
    )


def _keep_begun(segments: tuple[Segment, ...], num_touched: int) -> tuple[Segment, ...]:
    """What a worker has begun: of its own segment, the last one, the files that it touched."""
    *before, own = segments
    return (*before, replace(own, num_files=num_touched)) if num_touched else tuple(before)


def make_cluster_error(position: Position, layout: BatchLayout, what: str) -> ConfigurationError:
    """Return the error for a state that only the cluster it is from can continue."""
    before = position.layout
    if (before.num_workers, before.replicas_per_worker) == (
        layout.num_workers,
        layout.replicas_per_worker,
    ):
        msg = (
            f"Expected global_batch_size={before.global_batch_size} and rebatch={before.rebatch!r} "
            f"as in the state, because with {what} each worker counts its own batches; got "
            f"{layout.global_batch_size} and {layout.rebatch!r}. Go on with those of the state, or "
            "start a new epoch without it."
        )
        return ConfigurationError(msg)
    msg = (
        f"Expected the workers and replicas that the state is from ({before.num_workers} x "
        f"{before.replicas_per_worker}), because with {what} each worker has its own stream, "
        f"which no other can continue; got {layout.num_workers} x {layout.replicas_per_worker}. "
        "Start as many workers, or start a new epoch without the state."
    )
    return ConfigurationError(msg)
