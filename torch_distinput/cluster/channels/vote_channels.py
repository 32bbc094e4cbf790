"""The channels of all datasets of some workers, over one connection to each neighbour.

A message bears the number of its dataset's channel, so votes of several datasets may pass each
other, in whatever order their threads come to them.

    thread           does                                       guarded by
    main             connects, makes channels                   comes before the threads of others
    voters           send and receive, each on its own channel  gloo, which is safe for threads
    main, at exit    ``abandon``, once voters had their time    the same
"""

from __future__ import annotations

import pickle
from contextlib import suppress
from datetime import timedelta
from typing import Any, final

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.distributed_c10d import Store

from torch_distinput.cluster.channels.gather import Bytes, find_neighbours, gather
from torch_distinput.cluster.channels.gloo_backend import FOREVER, GlooBackend
from torch_distinput.communicator import ChannelBrokenError

_HELLO, _NEVER = 0, 1
"""Tags: of the first message over a connection, and of one that never comes."""
_FIRST_CHANNEL = 2
_AT_ONCE = timedelta(milliseconds=1)


@final
class VoteConnections:
    """One rank's connections to those with whom it votes; made once, for all datasets."""

    def __init__(self, store: Store, rank: int, size: int, *, timeout: float) -> None:
        """Connect, on all ranks; to each neighbour within ``timeout`` seconds."""
        self.rank = rank
        self.size = size
        self._backend = GlooBackend(store, rank, size, timeout=timeout)
        self._neighbours = find_neighbours(rank, size)
        self._say_hello(timedelta(seconds=timeout))

    def open_channel(self, number: int) -> VoteChannel:
        """The channel of a dataset, numbered alike on all ranks."""
        return VoteChannel(self, _FIRST_CHANNEL + number)

    def send(self, content: Bytes, to: int, tag: int) -> VoteTransfer:
        """Send bytes."""
        return self._start(self._backend.calls.send, content, to, tag)

    def receive(self, content: Bytes, source: int, tag: int) -> VoteTransfer:
        """Receive bytes."""
        return self._start(self._backend.calls.recv, content, source, tag)

    def abandon(self) -> None:
        """Free all threads that wait for other ranks; nobody talks over these connections again.

        gloo breaks them all when one wait is out of time, and knows no other way.
        """
        with suppress(ChannelBrokenError):
            nothing = np.empty(1, dtype=np.uint8)
            self.receive(nothing, self._neighbours[0], _NEVER).wait(_AT_ONCE)

    def _say_hello(self, limit: timedelta) -> None:
        """Connect now: gloo does it with the first message, and some ranks wait inside that call.

        A round later, the one that such a rank waits for could be waiting for somebody else.
        """
        hello = np.zeros(1, dtype=np.uint8)
        transfers = [
            call(hello.copy(), neighbour, _HELLO)
            for neighbour in self._neighbours
            for call in (self.receive, self.send)
        ]
        for transfer in transfers:
            transfer.wait(limit)

    def _start(self, call: Any, content: Bytes, other: int, tag: int) -> VoteTransfer:
        try:
            work = call([torch.from_numpy(content)], other, tag)
        except (RuntimeError, ValueError) as error:  # gloo raises these when a peer is gone
            raise ChannelBrokenError(str(error)) from error
        return VoteTransfer(self._backend.note(work))


@final
class VoteTransfer:
    """Bytes on their way; torch keeps where they lie until they have arrived."""

    def __init__(self, work: dist.Work) -> None:
        """Take what torch gives for it."""
        self._work = work

    def wait(self, limit: timedelta = FOREVER) -> None:
        """Return when they have arrived. A limit that passes breaks all connections.

        Raises:
            ChannelBrokenError: a peer is gone, or the wait was given up.
        """
        try:
            self._work.wait(limit)
        except (RuntimeError, ValueError) as error:  # gloo raises these when a peer is gone
            raise ChannelBrokenError(str(error)) from error


@final
class VoteChannel:
    """The votes of one dataset, used by one thread at a time."""

    def __init__(self, connections: VoteConnections, tag: int) -> None:
        """Share connections with other datasets, under a tag of its own."""
        self._connections = connections
        self._tag = tag

    def gather_ints(self, vector: NDArray[np.int64]) -> NDArray[np.int64]:
        """Gather an int64 vector from each worker."""
        content = np.ascontiguousarray(vector).view(np.uint8)
        size = self._connections.size
        return self._gather(content, [content.nbytes] * size).view(np.int64).reshape(size, -1)

    def gather_objects(self, value: Any) -> list[Any]:
        """Gather one picklable value from each worker."""
        content = np.frombuffer(pickle.dumps(value), dtype=np.uint8)
        lengths = self.gather_ints(np.array([len(content)])).flatten().tolist()
        gathered, values, end = self._gather(content, lengths).tobytes(), [], 0
        for length in lengths:
            values.append(pickle.loads(gathered[end : end + length]))  # noqa: S301 - our workers'
            end += length
        return values

    def abandon(self) -> None:
        """Free a thread that waits for the others, and those of the other datasets."""
        self._connections.abandon()

    def send(self, content: Bytes, to: int) -> VoteTransfer:
        """Send bytes to one worker."""
        return self._connections.send(content, to, self._tag)

    def receive(self, content: Bytes, source: int) -> VoteTransfer:
        """Receive bytes from one worker."""
        return self._connections.receive(content, source, self._tag)

    def _gather(self, mine: Bytes, sizes: list[int]) -> Bytes:
        return gather(self, self._connections.rank, mine, sizes)
