"""Marks of batches whose rows each worker finds by what it measures: all must find the same ones.

The first batches of a stream are compared by their content. Here any batch may be another: who
measures other lengths, in any window or for any turn of a mixture, would deliver other rows.
"""

from __future__ import annotations

from hashlib import blake2b

from torch_distinput.data.sources.mixing.mixed_stream import MixedStream
from torch_distinput.data.sources.sequences.windowed_stream import WindowedStream
from torch_distinput.data.stream.chunk import Chunk
from torch_distinput.data.stream.protocols import Stream
from torch_distinput.plan.assignment.batching import Splitter


def mark_order(chunk: Chunk, stream: Stream, splitter: Splitter) -> int:
    """A number that is the same on all workers, if each finds the same rows; 0 where it must."""
    is_compared = splitter.shared and splitter.topology.num_workers > 1
    if not is_compared or not is_order_measured(stream):
        return 0
    digest = blake2b(chunk.ids.tobytes(), digest_size=7).digest()  # fits into an int64
    return int.from_bytes(digest, "little")


def is_order_measured(stream: Stream) -> bool:
    """Whether the order of a stream follows from the lengths of what is read."""
    if isinstance(stream, MixedStream):
        return stream.length is not None or any(map(is_order_measured, stream.streams))
    return isinstance(stream, WindowedStream)
