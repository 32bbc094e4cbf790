"""What the rank that reads tells its partners, message after message.

    thread      writes                              reads     guarded by
    puller      _outgoing or _incoming, _head,      all       _lock, for one message or one look;
                _body: whoever pulls steps, the               a puller of an iteration that is over
                main thread or one that reads ahead           finds another _iteration and leaves
    main        _channel, _iteration; it posts and  all       _lock
                receives, too, when it closes

A message is a broadcast of its head, and another one of its content if that does not fit behind the
numbers in the head. A broadcast that was started cannot
be taken back, so who stops waiting for one leaves it here, and the next to come goes on with it.
Messages of an iteration that was left are passed over in the next one.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum, unique
from functools import partial
from typing import NamedTuple, final

import torch

from torch_distinput.cluster.channels.broadcast_channel import Broadcast, BroadcastChannel
from torch_distinput.cluster.liveness.heartbeat import Heartbeat
from torch_distinput.cluster.partners import Partners
from torch_distinput.communicator import ChannelBrokenError
from torch_distinput.threads import new_rlock

_HEAD_BYTES = 4096
_START = 64
"""Where the content begins in a head: behind three numbers, and where any dtype may begin."""
_ROOM = _HEAD_BYTES - _START


@unique
class Kind(IntEnum):
    """What a message says."""

    STEP = 0
    SPEC = 1
    """What a batch looks like, which was asked for before the first step."""
    END = 2
    FAILED = 3
    CLOSED = 4
    """The iterator was closed before its end."""


class Message(NamedTuple):
    """What was received: ``content`` is a vector of bytes."""

    kind: Kind
    content: torch.Tensor


@final
class StepBroadcast:
    """The way from the reader to its partners for one dataset, kept from epoch to epoch."""

    def __init__(self, partners: Partners, heartbeat: Heartbeat) -> None:
        """Open nothing yet."""
        self._partners = partners
        self._heartbeat = heartbeat
        self._lock = new_rlock()
        self._is_used = False
        self._channel: BroadcastChannel | None = None
        self._iteration = -1
        self._outgoing: list[tuple[Broadcast, torch.Tensor]] = []
        self._incoming: Broadcast | None = None
        self._head = _make_head()
        self._body: torch.Tensor | None = None

    @property
    def is_reader(self) -> bool:
        """Whether this rank sends."""
        return self._partners.is_reader

    def begin(self, iteration: int, *, timeout: float) -> None:
        """Begin an iteration, on all partners; the first time they connect.

        Raises what an exchange does, and ChannelBrokenError if they cannot connect.
        """
        if self._channel is None:
            peers = self._heartbeat.peers
            gone = partial(peers.gone, timeout, among=self._partners.numbers)
            self._channel = self._partners.meeting.open_broadcast(timeout=timeout, gone=gone)
            # Dropped without this, a channel with a broadcast under way would wait for its end.
            weakref.finalize(self, self._channel.close).atexit = False
        with self._lock:
            self._iteration = iteration

    def post(self, iteration: int, kind: Kind, content: torch.Tensor) -> None:
        """Send a message, without waiting; those before it have been taken.

        Raises ChannelBrokenError if not: a puller and who closes may both have found them taken.
        """
        with self._use():
            channel = self._check(iteration)
            if self._outgoing:
                msg = f"another thread has sent a message of iteration {iteration}"
                raise ChannelBrokenError(msg)
            head, parts = _make_head(), [content]
            _numbers_in(head)[:] = torch.tensor([iteration, kind, len(content)], device="cpu")
            if len(content) <= _ROOM:
                head[_START : _START + len(content)] = content
                parts = []
            parts.insert(0, head)
            self._outgoing = [(channel.start_broadcast(part), part) for part in parts]

    def is_taken(self, iteration: int, seconds: float) -> bool:
        """Whether all partners take what was posted, within some seconds."""
        with self._use():
            self._check(iteration)
            if not all(transfer.wait(seconds) for transfer, _ in self._outgoing):
                return False
            self._outgoing = []
            return True

    def receive(self, iteration: int, seconds: float) -> Message | None:
        """Wait for a message; None after some seconds."""
        with self._use():
            channel = self._check(iteration)
            deadline = time.monotonic() + seconds
            while True:
                if self._incoming is None:
                    self._head = _make_head()  # what is in it is handed out
                    self._incoming = channel.start_broadcast(self._head)
                if not self._incoming.wait(max(0.001, deadline - time.monotonic())):
                    return None
                sender, kind, num_bytes = _numbers_in(self._head).tolist()
                if self._body is None and num_bytes > _ROOM:
                    self._body = torch.empty(num_bytes, dtype=torch.uint8, device="cpu")
                    self._incoming = channel.start_broadcast(self._body)
                    continue
                content = self._head[_START : _START + num_bytes]
                if self._body is not None:
                    content = self._body
                self._incoming = self._body = None
                if sender == iteration:
                    return Message(Kind(kind), content)

    @contextmanager
    def _use(self) -> Iterator[None]:
        """Hold the lock, by one call at a time.

        A collection of garbage may close an iterator in any thread, also inside of a call here: it
        must not wait for its own thread, nor send in the middle of a message.
        """
        with self._lock:
            if self._is_used:
                msg = "an iterator is closed while its thread sends or receives"
                raise ChannelBrokenError(msg)
            self._is_used = True
            try:
                yield
            finally:
                self._is_used = False

    def _check(self, iteration: int) -> BroadcastChannel:
        """The channel; only the iteration under way may use it."""
        if self._channel is None or iteration != self._iteration:
            msg = f"iteration {iteration} is over"
            raise ChannelBrokenError(msg)
        return self._channel


def _make_head() -> torch.Tensor:
    return torch.empty(_HEAD_BYTES, dtype=torch.uint8, device="cpu")


def _numbers_in(head: torch.Tensor) -> torch.Tensor:
    """The iteration, the kind of the message, and the bytes of its content."""
    return head[:24].view(torch.int64)
