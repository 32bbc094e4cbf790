"""Batches that are there already: global ones that are cut, replica batches that are played."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from torch.utils.data import IterableDataset, get_worker_info

from torch_distinput.data import rows
from torch_distinput.data.fingerprint import fingerprint
from torch_distinput.data.local_step import LocalStep, Part, cut_step
from torch_distinput.data.stream import Chunk, ReadyStream, Shard
from torch_distinput.plan.batching import Splitter

NUM_MARKED = 4
"""Global batches at the start of a shared stream that the workers compare."""


class RebatchReadyDataset(IterableDataset[LocalStep]):
    """Cuts a stream of ready global batches, along dimension 0, into this worker's steps."""

    def __init__(self, stream: ReadyStream, shard: Shard, *, splitter: Splitter) -> None:
        """See the class."""
        self._stream = stream
        self._shard = shard
        self._splitter = splitter

    def __iter__(self) -> Iterator[LocalStep]:
        """Yield this worker's steps; a batch without rows is no step."""
        for number, chunk in enumerate(self._stream.chunks(self._shard)):
            mark = mark_of(chunk, number, self._splitter)
            for cut in self._splitter.cuts(chunk.num_rows):
                mine = chunk.slice(cut.start, cut.start + cut.num_rows)
                lent = outlives_the_source(self._splitter)
                data = rows.copied(mine.data) if lent else mine.data
                yield cut_step((data, mine.ids), cut.sizes, mark=mark)


class PlayedDataset(IterableDataset[LocalStep]):
    """Plays replica batches that are the user's own: as many elements a step as local replicas."""

    def __init__(self, streams: Sequence[ReadyStream], *, splitter: Splitter) -> None:
        """Take one stream for the worker, or one for each of its replicas."""
        self._streams = streams
        self._per_stream = splitter.topology.replicas_per_worker // len(streams)
        self._lent = self._per_stream > 1 or outlives_the_source(splitter)

    def __iter__(self) -> Iterator[LocalStep]:
        """Yield steps; a replica whose stream has ended gets no rows."""
        started = [stream.chunks(Shard()) for stream in self._streams]
        while True:
            parts = [part for stream in started for part in self._parts(stream)]
            if all(part is None for part in parts):
                return
            sizes = tuple(0 if part is None else len(part[1]) for part in parts)
            yield LocalStep(parts=tuple(parts), sizes=sizes)

    def _parts(self, stream: Iterator[Chunk]) -> list[Part | None]:
        """The next replica batches of a stream; None where it has ended."""
        taken: list[Part | None] = [
            (rows.copied(chunk.data) if self._lent else chunk.data, chunk.ids)
            for chunk in islice(stream, self._per_stream)
        ]
        return taken + [None] * (self._per_stream - len(taken))


def mark_of(chunk: Chunk, number: int, splitter: Splitter) -> int:
    """A fingerprint, for the first global batches of a stream that several workers share."""
    compared = splitter.shared and splitter.topology.num_workers > 1 and number < NUM_MARKED
    return fingerprint(chunk.data) if compared else 0


def outlives_the_source(splitter: Splitter) -> bool:
    """Whether a step is still kept when the source is asked for what follows.

    A worker among others reads ahead of the agreed step, and so does a loader process. Then a batch
    may be one that the source writes over, and a part of one would keep, or send, all of it.
    """
    return splitter.topology.num_workers > 1 or get_worker_info() is not None
