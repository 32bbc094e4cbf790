"""Everybody's bytes to everybody, in rounds that double what each one has.

    5 workers      0         1         2         3         4
    own            0         1         2         3         4
    round 1        0 1       1 2       2 3       3 4       4 0        from the next worker
    round 2        0 1 2 3   1 2 3 4   2 3 4 0   3 4 0 1   4 0 1 2    from the next but one
    round 3        0 1 2 3 4                    ...                   one more, from the fourth

So W workers need as many rounds as W - 1 has binary digits, and each talks to twice as many others
at most. All receives are posted before the first send: what is sent finds its place prepared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class Transfer(Protocol):
    """Bytes on their way."""

    def wait(self) -> object:
        """Return when they have arrived, or raise."""


class Transport(Protocol):
    """The way to single workers; bytes between two of them arrive in the order they were sent."""

    def send(self, content: Bytes, to: int) -> Transfer:
        """Send bytes, which stay as they are until they have arrived."""

    def receive(self, content: Bytes, source: int) -> Transfer:
        """Receive so many bytes into their place."""


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


def gather(transport: Transport, rank: int, mine: Bytes, sizes: Sequence[int]) -> Bytes:
    """Return the bytes of all workers, in worker order.

    Raises what the transport does.

    Args:
        transport: the way to the others.
        rank: this worker.
        mine: its bytes.
        sizes: how many each worker has.
    """
    size = len(sizes)
    # The own bytes come first, then those of the next worker: where each of them ends.
    ends = [0, *accumulate((*sizes[rank:], *sizes[:rank]))]
    buffer = np.empty(ends[-1], dtype=np.uint8)
    buffer[: ends[1]] = mine
    rounds = [
        (one, transport.receive(buffer[ends[one.start] : ends[one.start + one.added]], one.source))
        for one in plan_rounds(rank, size)
    ]
    sent = []
    for one, received in rounds:
        sent.append(transport.send(buffer[: ends[one.added]], one.to))
        received.wait()
    for transfer in sent:
        transfer.wait()
    first = ends[size - rank]  # of worker 0
    return np.concatenate([buffer[first:], buffer[:first]])
