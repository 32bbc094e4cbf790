"""Everybody's bytes to everybody, in rounds that double what each one has.

    5 workers      0         1         2         3         4
    own            0         1         2         3         4
    round 1        0 1       1 2       2 3       3 4       4 0        from the next worker
    round 2        0 1 2 3   1 2 3 4   2 3 4 0   3 4 0 1   4 0 1 2    from the next but one
    round 3        0 1 2 3 4                    ...                   one more, from the fourth

So W workers need as many rounds as W - 1 has binary digits, and each talks to twice as many others
at most.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple, Protocol


class Transport(Protocol):
    """The way to single workers. What one sends another arrives in the order it was sent."""

    def send(self, message: bytes, to: int) -> None:
        """Send a message, without waiting for who receives it."""

    def receive(self, source: int) -> bytes:
        """Wait for the next message of a worker."""


class Round(NamedTuple):
    """What one worker does in a round.

    Attributes:
        source: from whom it receives.
        to: to whom it sends.
        start: how many workers' bytes it has.
        added: of how many it receives them now, and sends its first ones.
    """

    source: int
    to: int
    start: int
    added: int


def plan_rounds(rank: int, size: int) -> Iterator[Round]:
    """The rounds of one worker."""
    start = 1
    while start < size:
        count = min(start, size - start)
        yield Round((rank + start) % size, (rank - start) % size, start, count)
        start += count


def find_neighbours(rank: int, size: int) -> list[int]:
    """With whom a worker talks."""
    return sorted({worker for one in plan_rounds(rank, size) for worker in (one.source, one.to)})


def gather(transport: Transport, rank: int, size: int, mine: bytes) -> list[bytes]:
    """Return the bytes of all workers, in worker order; each may have another number of them.

    Raises what the transport does.

    Args:
        transport: the way to the others.
        rank: this worker.
        size: how many there are.
        mine: its bytes.
    """
    parts = [mine]  # the own come first, then those of the next worker
    for one in plan_rounds(rank, size):
        transport.send(_join(parts[: one.added]), one.to)
        parts += _split(transport.receive(one.source), one.added)
    first = size - rank  # worker 0
    return parts[first:] + parts[:first]


def _join(parts: Sequence[bytes]) -> bytes:
    """The lengths of some parts, and the parts."""
    return b"".join((struct.pack(f"!{len(parts)}Q", *map(len, parts)), *parts))


def _split(message: bytes, num_parts: int) -> list[bytes]:
    lengths = struct.Struct(f"!{num_parts}Q")
    ends = accumulate(lengths.unpack_from(message), initial=lengths.size)
    content = memoryview(message)
    return [bytes(content[start:end]) for start, end in pairwise(ends)]
