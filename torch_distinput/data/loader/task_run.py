"""One run over tasks: which process was asked for what, and what has come back.

Task n goes to process n modulo their number, so that what a process does depends on nothing else.
How far they are ahead, and what travels together, changes no order: small batches go further ahead,
and in groups, for each message wakes a process.

    results of 64 KB, two processes     0: one task each, again and again until four have come
                                        4: eight tasks each in one message; both go on with those
                                           that they have, and send what they have every 2 ms
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, final

from torch_distinput.data.loader.channel import ProcessChannel
from torch_distinput.data.loader.process_datasets import RunKey, dump_message
from torch_distinput.data.loader.shared_memory import Parcel, Receiver

_PREFETCH_FACTOR = 2
"""Torch's default."""
_AHEAD_BYTES = 1 << 20
_MOST_AHEAD = 16
"""Each process goes so far ahead: as many batches as have these bytes, but no more than these."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a DataLoader was told.

    Attributes:
        ahead: tasks that a process was sent and has not answered.
        may_grow: nobody has set that on purpose.
        timeout: seconds to wait for a result; None: as long as it takes.
    """

    ahead: int
    may_grow: bool
    timeout: float | None

    @staticmethod
    def of(keywords: Mapping[str, Any]) -> Limits:
        """Take DataLoader's own keywords."""
        ahead = keywords.get("prefetch_factor") or _PREFETCH_FACTOR
        timeout = keywords.get("timeout") or None
        return Limits(ahead=ahead, may_grow=ahead == _PREFETCH_FACTOR, timeout=timeout)


@final
class TaskRun:
    """Asks for results, in order, and takes them."""

    def __init__(
        self,
        run: RunKey,
        tasks: Iterator[Any],
        channels: Sequence[ProcessChannel],
        receiver: Receiver,
        *,
        limits: Limits,
        grouped: bool,
    ) -> None:
        """Send nothing yet."""
        self._receiver = receiver
        self._run = run
        self._tasks = tasks
        self._channels = channels
        self._limits = limits
        self._may_grow = grouped and limits.may_grow
        self._most = limits.ahead * len(channels)  # asked, and not taken
        self._largest = self._num_asked = self._num_taken = 0
        self._inboxes = receiver.inboxes

    def begin(self) -> None:
        """Ask for the first results, one by one: tasks may take long to come."""
        self._receiver.begin()
        for _ in range(self._most):
            self._ask(1)

    def __iter__(self) -> Iterator[Any]:
        """Take the results; whenever some were taken, others are asked for.

        Raises:
            ChannelClosed: if a process has ended.
            RuntimeError: if it does not answer in time.
        """
        for channel, inbox in cycle(zip(self._channels, self._inboxes, strict=True)):
            if self._num_taken == self._num_asked:
                return
            while not inbox:
                inbox.extend(self._receive(channel))
            parcel = inbox.popleft()
            self._num_taken += 1
            if self._may_grow:
                self._grow(self._receiver.num_bytes(parcel))
            due = self._most + self._num_taken - self._num_asked
            if not self._may_grow or 2 * due >= self._most:
                self._ask(due)
            yield self._receiver.open(parcel)

    def _grow(self, size: int) -> None:
        """Once the first results have shown how large they are; later ones may be larger."""
        self._largest = max(self._largest, size)
        least, count = self._limits.ahead, len(self._channels)
        if self._num_taken >= least * count and self._largest:
            self._most = count * min(max(least, _AHEAD_BYTES // self._largest), _MOST_AHEAD)

    def _ask(self, count: int) -> None:
        """Send each process its own of the next tasks together."""
        drawn = list(islice(self._tasks, max(0, count)))
        num_channels = len(self._channels)
        for first in range(min(num_channels, len(drawn))):
            channel = self._channels[(self._num_asked + first) % num_channels]
            channel.send(dump_message(self._run, drawn[first::num_channels]))
        self._num_asked += len(drawn)

    def _receive(self, channel: ProcessChannel) -> Sequence[Parcel]:
        """The next results; those of runs that were left are passed over."""
        try:
            message = channel.receive(self._limits.timeout)
        except TimeoutError:
            msg = f"DataLoader timed out after {self._limits.timeout:g} seconds"
            raise RuntimeError(msg) from None
        run, parcels = pickle.loads(message)  # noqa: S301 - our own process wrote it
        if run == self._run[0]:
            return parcels  # type: ignore[no-any-return]
        for parcel in parcels:
            self._receiver.drop(parcel)
        return ()
