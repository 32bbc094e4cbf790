"""The channels of all datasets of some workers, over one connection to each neighbour.

A message bears the number of its dataset's channel, so votes of several datasets may pass each
other, in whatever order their threads come to them.

Plain sockets: a message of gloo's costs several wake-ups of its own threads, 15 times as much.

    thread           does                                       guarded by
    main             connects, makes channels                   comes before the threads of others
    voters           send and receive, each on its own channel  the connections, which are safe
    main, at exit    ``abandon``, once voters had their time    the same
"""

from __future__ import annotations

import pickle
import weakref
from typing import Any, final

from torch.distributed.distributed_c10d import Store

from torch_distinput.cluster.channels.connect_peers import connect_peers
from torch_distinput.cluster.channels.gather import find_neighbours, gather


@final
class VoteConnections:
    """One rank's connections to those with whom it votes; made once, for all datasets."""

    def __init__(self, store: Store, rank: int, size: int, *, timeout: float) -> None:
        """Connect, on all ranks; to each neighbour within ``timeout`` seconds."""
        self.rank = rank
        self.size = size
        self._peers = connect_peers(store, rank, find_neighbours(rank, size), timeout=timeout)
        _all_connections.add(self)

    def open_channel(self, number: int) -> VoteChannel:
        """The channel of a dataset, numbered alike on all ranks."""
        return VoteChannel(self, number)

    def send(self, message: bytes, to: int, tag: int) -> None:
        """Send a message, without waiting for who receives it."""
        self._peers[to].send(tag, message)

    def receive(self, source: int, tag: int) -> bytes:
        """Wait for the next message of a worker."""
        return self._peers[source].receive(tag)

    def abandon(self) -> None:
        """Free all threads that wait for other ranks; nobody talks over these connections again."""
        for peer in self._peers.values():
            peer.shut()

    def close(self) -> None:
        """Give the sockets back."""
        for peer in self._peers.values():
            peer.close()


_all_connections: weakref.WeakSet[VoteConnections] = weakref.WeakSet()


def close_connections() -> None:
    """Close those of all meetings."""
    for connections in list(_all_connections):
        connections.close()


@final
class VoteChannel:
    """The votes of one dataset, used by one thread at a time."""

    def __init__(self, connections: VoteConnections, tag: int) -> None:
        """Share connections with other datasets, under a tag of its own."""
        self._connections = connections
        self._tag = tag

    def gather_objects(self, value: Any) -> list[Any]:
        """Gather one picklable value from each worker."""
        connections = self._connections
        parts = gather(self, connections.rank, connections.size, pickle.dumps(value))
        return [pickle.loads(part) for part in parts]  # noqa: S301 - our own workers'

    def abandon(self) -> None:
        """Free a thread that waits for the others, and those of the other datasets."""
        self._connections.abandon()

    def send(self, message: bytes, to: int) -> None:
        """Send a message to one worker."""
        self._connections.send(message, to, self._tag)

    def receive(self, source: int) -> bytes:
        """Receive the next message of one worker."""
        return self._connections.receive(source, self._tag)
