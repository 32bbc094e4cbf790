"""Steps that one rank reads and sends to its partners, the ranks that get the same data.

SendingFeed     on the rank that reads: around any other feed
ReceivingFeed   on its partners, which open nothing

What is sent is a delivery, so that batches, counts, ids, states and the end are the same on all of
them. Nobody waits for a step twice: the reader sends it from memory of its own and goes on; before
it reads the next one, its partners have taken the one before, so they are one step apart at most.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, final

import torch

from torch_distinput.cluster.liveness.peer_monitor import PeerMonitor
from torch_distinput.cluster.liveness.wait_limit import WaitLimit
from torch_distinput.cluster.step_broadcast import Kind, Message, StepBroadcast
from torch_distinput.communicator import ChannelBrokenError
from torch_distinput.data.batch.serialized import deserialize, serialize
from torch_distinput.engine.delivered_bytes import DeliveryReader, DeliveryWriter
from torch_distinput.engine.epoch_record import Origin
from torch_distinput.engine.feeds import Delivery, Feed, spec_of_step
from torch_distinput.errors import PeerFailedError, SourceError

_POLL_SECONDS = 0.2
"""Time between two looks at the board while another rank is waited for."""
_LEAVE_SECONDS = 1.0
_MOST_AHEAD = 4
"""Messages that are taken when a loop is left; what is left of more is passed over later."""
_NOTHING = torch.empty(0, dtype=torch.uint8, device="cpu")
_CURE = (
    "Every rank must leave the loop at the same step; raise InputOptions.timeout if a source is "
    "only slow."
)


@final
class _Line:
    """One iteration's end of the way between a reader and its partners."""

    def __init__(
        self, broadcast: StepBroadcast, iteration: int, monitor: PeerMonitor, timeout: float
    ) -> None:
        self.is_open = True
        self._broadcast = broadcast
        self._iteration = iteration
        self._monitor = monitor
        self._timeout = timeout

    def post(self, kind: Kind, content: torch.Tensor = _NOTHING) -> None:
        try:
            self._broadcast.post(self._iteration, kind, content)
        except ChannelBrokenError as error:
            if self.is_open:  # else it was closed meanwhile, and nobody wants this message
                self._monitor.call_roll(error)

    def settle(self, index: int) -> bool:
        """Wait until the partners have taken what was posted; False if this end was closed."""
        return self._wait(index, self._is_taken, f"the partners to take step {index - 1}")

    def receive(self, index: int) -> Message | None:
        """Wait for a message; None if this end was closed."""
        found: list[Message] = []

        def is_there(seconds: float) -> bool:
            message = self._broadcast.receive(self._iteration, seconds)
            found.extend([] if message is None else [message])
            return message is not None

        expected = f"step {index} from the rank that reads for this one"
        return found[0] if self._wait(index, is_there, expected) else None

    def leave(self, last: Callable[[float], bool]) -> None:
        """Close this end; what is under way is waited for shortly, so that the next can begin."""
        if self.is_open:
            self.is_open = False
            try:
                last(_LEAVE_SECONDS)
            except ChannelBrokenError:  # the other end is gone: nobody is left to tell
                return

    def end(self) -> None:
        """There is nothing more to say."""
        self.is_open = False

    def send_last(self, seconds: float) -> bool:
        """Tell that this end is closed, once what was posted before has been taken."""
        if not self._is_taken(seconds):
            return False
        self._broadcast.post(self._iteration, Kind.CLOSED, _NOTHING)
        return self._is_taken(seconds)

    def receive_last(self, seconds: float) -> bool:
        """Take what was sent until the other end is closed, too.

        No more than was read ahead: if the other end goes on, it must not go on unheard.
        """
        for _ in range(_MOST_AHEAD):
            message = self._broadcast.receive(self._iteration, seconds)
            if message is None:
                return False
            if message.kind in (Kind.END, Kind.FAILED, Kind.CLOSED):
                return True
        return False

    def _is_taken(self, seconds: float) -> bool:
        return self._broadcast.is_taken(self._iteration, seconds)

    def _wait(self, index: int, is_done: Callable[[float], bool], expected: str) -> bool:
        wait_limit: WaitLimit | None = None
        try:
            while not is_done(_POLL_SECONDS):
                if not self.is_open:
                    return False
                wait_limit = wait_limit or WaitLimit(self._timeout)
                self._monitor.waiting(index, is_reading=False)
                self._monitor.look()
                if wait_limit.is_over:
                    self._monitor.give_up(expected, index, _CURE)
        except ChannelBrokenError as error:
            self._monitor.call_roll(error)
        return True


@final
class SendingFeed:
    """The steps of another feed, which are sent as well."""

    def __init__(
        self,
        feed: Feed,
        broadcast: StepBroadcast,
        iteration: int,
        *,
        monitor: PeerMonitor,
        timeout: float,
    ) -> None:
        """Take a feed, and the way to the partners in an iteration that has begun."""
        self.origin = feed.origin
        self._feed = feed
        self._line = _Line(broadcast, iteration, monitor, timeout)
        self._writer = DeliveryWriter(self._find_spec)
        self._spec: Any = None

    def next(self, index: int) -> Delivery | None:
        """Read the next step and send it, or what came instead of it."""
        if not self._line.settle(index):
            return None
        try:
            delivery = self._feed.next(index)
            content = _NOTHING if delivery is None else self._write(delivery)
        except BaseException as error:
            self._tell(error, index)
            raise
        if not self._line.is_open:
            return None
        self._line.post(Kind.END if delivery is None else Kind.STEP, content)
        if delivery is None:
            # Waited for: whoever has the end may leave, and take the connection along.
            self._line.settle(index)
            self._line.end()
        return delivery

    def spec(self) -> Any:
        """What the feed says, which is sent, unless it went with a step."""
        first = self.origin.position.steps
        if self._spec is None and self._line.settle(first):
            try:
                self._line.post(Kind.SPEC, serialize(self._find_spec()))
            except BaseException as error:
                self._tell(error, first)
                raise
        return self._spec

    def close(self) -> None:
        """Close the feed, and tell the partners, which close as well."""
        self._feed.close()
        self._line.leave(self._line.send_last)

    def _find_spec(self) -> Any:
        if self._spec is None:
            self._spec = self._feed.spec()
        return self._spec

    def _write(self, delivery: Delivery) -> torch.Tensor:
        try:
            return self._writer.write(delivery)
        except Exception as error:
            msg = (
                "Expected batches that pickle can copy, to send them to the ranks that share "
                f'data (replicate_input="broadcast"), got {type(error).__name__}: {error}. Let '
                'the batches hold tensors, arrays, numbers and strings, or use "read".'
            )
            raise SourceError(msg) from error

    def _tell(self, error: BaseException, index: int) -> None:
        """Let the partners hear it in words, as long as they are there."""
        if self._line.is_open:
            with suppress(Exception):  # the error itself says more
                self._line.post(Kind.FAILED, serialize(f"{type(error).__name__}: {error}"))
                if isinstance(error, Exception):
                    self._line.settle(index)
            self._line.end()


@final
class ReceivingFeed:
    """The steps that a partner has read."""

    def __init__(
        self,
        origin: Origin,
        broadcast: StepBroadcast,
        iteration: int,
        *,
        monitor: PeerMonitor,
        timeout: float,
    ) -> None:
        """Take where the epoch starts, and the way to the reader."""
        self.origin = origin
        self._line = _Line(broadcast, iteration, monitor, timeout)
        self._reader = DeliveryReader()
        self._kept: Message | None = None
        self._spec: Any = None

    def next(self, index: int) -> Delivery | None:
        """Receive the next step, or what came instead of it."""
        message = self._take(index)
        while message is not None and message.kind is Kind.SPEC:
            self._spec = deserialize(message.content)
            message = self._take(index)
        if message is None or self._is_end(message, index):
            return None
        delivery, spec = self._reader.read(message.content)
        self._spec = self._spec if spec is None else spec
        return delivery

    def spec(self) -> Any:
        """What the reader has said, or else what its next step tells, which is still to come."""
        if self._spec is None:
            first = self.origin.position.steps
            message = self._take(first)
            if message is not None and message.kind is Kind.SPEC:
                self._spec = deserialize(message.content)
            elif message is not None:
                self._kept = message
                self._spec = None if self._is_end(message, first) else _read_spec(message)
        return self._spec

    def close(self) -> None:
        """Take what was sent meanwhile, until the reader has closed, too."""
        self._line.leave(self._line.receive_last)

    def _is_end(self, message: Message, index: int) -> bool:
        """Whether it is the end of data and no step; raises if it is neither."""
        if message.kind is Kind.STEP:
            return False
        self._line.end()
        if message.kind is Kind.END:
            return True
        what = "it closed the iterator, or left its loop. Every rank must leave at the same step."
        if message.kind is Kind.FAILED:
            what = deserialize(message.content)
        msg = f"Expected step {index} from the rank that reads for this one, but {what}"
        raise PeerFailedError(msg)

    def _take(self, index: int) -> Message | None:
        kept, self._kept = self._kept, None
        return self._line.receive(index) if kept is None else kept


def _read_spec(message: Message) -> Any:
    """The spec of the first step, which is read again when it is asked for."""
    delivery, spec = DeliveryReader().read(message.content)
    return spec_of_step(delivery.step) if spec is None and delivery.step else spec
