"""Ranks that only count: one process plays one of many thousands, and the others are its echo.

Everything but the wire is the product's own code. What a rank sends is counted in messages
(requests to the store, or pieces of a collective), and in bytes of keys, texts and numbers, without
what TCP, the store and gloo put around them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, final

import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from torch_distinput.cluster.membership import Membership
from torch_distinput.cluster.store_join import StoreJoin
from torch_distinput.cluster.store_meeting import _KEPT_JOINS
from torch_distinput.communicator import Board, Channel, Gone, Merge, nobody
from torch_distinput.distribute.strategy import Strategy
from torch_distinput.plan.assignment.topology import Topology

_NUMBER_BYTES = 8


@dataclass
class Tally:
    """What one rank has sent and received, and how long its processor worked for others.

    Attributes:
        messages: requests, or pieces of collectives.
        num_bytes: of keys, texts and numbers, both ways.
        polls: questions that were answered with "not yet", which are not in the above.
        others_seconds: processor time in which this process played the others.
    """

    messages: int = 0
    num_bytes: int = 0
    polls: int = 0
    others_seconds: float = 0.0

    def count(self, *parts: str | bytes, numbers: int = 0) -> None:
        """Count one message, and its answer."""
        self.messages += 1
        self.num_bytes += sum(map(len, parts)) + _NUMBER_BYTES * numbers


@final
class CountingStore:
    """A store that counts what it is asked; for what asks a store from Python."""

    def __init__(self, store: Any, tally: Tally) -> None:
        """Ask another store."""
        self._store = store
        self._tally = tally

    def set(self, key: str, value: str) -> None:
        """Set."""
        self._tally.count(key, value)
        self._store.set(key, value)

    def add(self, key: str, amount: int) -> int:
        """Add."""
        self._tally.count(key, numbers=2)
        return int(self._store.add(key, amount))

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        """Set what is not there."""
        found = bytes(self._store.compare_set(key, expected, value))
        self._tally.count(key, expected, value, found)
        return found

    def check(self, keys: list[str]) -> bool:
        """Whether all are there."""
        is_there = bool(self._store.check(keys))
        if is_there:
            self._tally.count(*keys, numbers=1)
        else:
            self._tally.polls += 1
        return is_there

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Get several."""
        found = [bytes(self._store.get(key)) for key in keys]
        self._tally.count(*keys, *found)
        return found

    def delete_key(self, key: str) -> bool:
        """Delete."""
        self._tally.count(key, numbers=1)
        return bool(self._store.delete_key(key))

    def has_extended_api(self) -> bool:
        """Whether it can get several at once."""
        return True


@final
class CountingCommunicator:
    """One of many workers; all others show, vote and hold what it does.

    Args:
        rank: its number.
        size: how many there are.
        is_last: it is the last one to come, who joins the texts of all.
    """

    def __init__(self, rank: int, size: int, *, is_last: bool) -> None:
        """See the class."""
        self.rank = rank
        self.size = size
        self.tally = Tally()
        self._is_last = is_last
        self._written: list[list[str]] = []

    def join(
        self, topic: str, text: str, merge: Merge, *, timeout: float, gone: Gone = nobody  # noqa: ARG002
    ) -> str:
        """Come last or first, and delete what was written some topics before."""
        store = HashStore()
        join = StoreJoin(
            CountingStore(store, self.tally),  # type: ignore[arg-type]
            topic, rank=self.rank, size=self.size, merge=merge,
        )  # fmt: skip
        if self._is_last:
            self._play_others(lambda: self._come(store, topic, text))
        join.show(text)
        if not self._is_last:
            joined = self._play_others(lambda: merge([text] * self.size))
            store.set(f"{topic}/joined", joined)
        assert join.is_joined()
        joined = join.result()
        self._written.append(join.written)
        for key in self._written.pop(0) if len(self._written) > _KEPT_JOINS else ():
            CountingStore(store, self.tally).delete_key(key)
        return joined

    def _come(self, store: Any, topic: str, text: str) -> None:
        for worker in range(self.size):
            if worker != self.rank:
                store.set(f"{topic}/{worker}", text)
        store.add(f"{topic}/come", self.size - 1)

    def _play_others(self, play: Callable[[], Any]) -> Any:
        started = time.thread_time()
        played = play()
        self.tally.others_seconds += time.thread_time() - started
        return played

    def show_first(self, topic: str, text: str, *, timeout: float) -> str:  # noqa: ARG002
        """Be the first one."""
        join = StoreJoin(
            CountingStore(HashStore(), self.tally),  # type: ignore[arg-type]
            topic, rank=self.rank, size=self.size, merge="".join,
        )  # fmt: skip
        join.show_first(text)
        return join.result()

    def open_channel(self, *, timeout: float, gone: Gone = nobody) -> Channel:
        """Meet, then count what goes around the ring."""
        self.join("channel 1", "", "".join, timeout=timeout, gone=gone)
        return EchoChannel(self.size)

    def open_board(self) -> Board:
        """A board on which nobody leaves anything: the thread that reads it is not measured."""
        return EmptyBoard(self.size)

    def all_reduce(self, tensor: torch.Tensor) -> NoReturn:
        """Nobody asks."""
        raise NotImplementedError

    def all_gather(self, tensor: torch.Tensor) -> NoReturn:
        """Nobody asks."""
        raise NotImplementedError

    def gather_objects(self, value: Any) -> NoReturn:
        """Nobody asks."""
        raise NotImplementedError

    def deal_objects(self, values: Sequence[Any]) -> NoReturn:
        """Nobody asks."""
        raise NotImplementedError


@final
class EchoChannel:
    """Collectives in which all say the same."""

    def __init__(self, size: int) -> None:
        """Count nothing yet."""
        self._size = size

    def gather_objects(self, value: Any) -> list[Any]:
        """One for each worker."""
        return [value] * self._size

    def abandon(self) -> None:
        """Nobody waits."""


@final
class EchoTransport:
    """The way to single workers, each of whom has the same bytes."""

    def __init__(self, tally: Tally) -> None:
        """Count nothing yet."""
        self._tally = tally
        self._message = b""

    def send(self, message: bytes, to: int) -> None:  # noqa: ARG002
        """Count what is sent, and what is received in its place in the same round."""
        self._tally.messages += 2
        self._tally.num_bytes += 2 * len(message)
        self._message = message

    def receive(self, source: int) -> bytes:  # noqa: ARG002
        """The same from another worker."""
        return self._message


@final
class EmptyBoard:
    """No notes."""

    def __init__(self, size: int) -> None:
        """Of so many workers."""
        self.names = range(size)

    def post(self, text: str) -> None:
        """Leave none."""

    def read(self) -> dict[int, str]:
        """Read none."""
        return {}

    def post_summary(self, text: str) -> None:
        """Leave none."""

    def read_summary(self) -> str:
        """Read none."""
        return ""

    def claim(self, term: int) -> bool:  # noqa: ARG002
        """Nobody else would."""
        return True


@final
class CountingStrategy(Strategy):
    """One worker of many, on a processor."""

    def __init__(self, communicator: CountingCommunicator) -> None:
        """Join the others."""
        topology = Topology(
            num_workers=communicator.size, replicas_per_worker=1, worker_index=communicator.rank
        )
        super().__init__(topology, [torch.device("cpu")], Membership(communicator=communicator))
