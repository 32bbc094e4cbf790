"""Messages between the main process and a loader process, over a pair of sockets.

A message is bytes, of whatever length. Both ends may be writing at once, and a socket holds little.
So an end that cannot write on takes in what has arrived: none waits for the other for ever.

Only the two processes hold an end each. When one of them ends, however, the other finds the channel
closed; so nobody has to ask again and again whether it is still there.
"""

from __future__ import annotations

import os
import select
import struct
from collections.abc import Callable
from typing import Any, final

_LENGTH = struct.Struct("!Q")
_READ_BYTES = 1 << 16
CAN_POLL = hasattr(select, "poll")
"""Whether this system has what a channel waits with; Windows has not."""


class ChannelClosed(Exception):  # noqa: N818 - it may be the normal end
    """The other process has closed its end, or has ended."""


@final
class ProcessChannel:
    """One end. Used by one thread at a time."""

    def __init__(self, connection: Any) -> None:
        """Take over an end of ``multiprocessing.Pipe()``."""
        self._connection = connection
        self._file: int = connection.fileno()
        os.set_blocking(self._file, False)
        self._arrived = bytearray()
        self._reading, self._both = select.poll(), select.poll()
        self._reading.register(self._file, select.POLLIN)
        self._both.register(self._file, select.POLLIN | select.POLLOUT)

    def send(self, message: bytes) -> None:
        """Write a message; it may still be on its way when this returns.

        Raises:
            ChannelClosed: if nobody will read it.
        """
        left = memoryview(_LENGTH.pack(len(message)) + message)
        while left:
            try:
                left = left[os.write(self._file, left) :]
            except BlockingIOError:
                ((_, event),) = self._both.poll()
                if event & select.POLLIN:
                    self._take_in(_READ_BYTES)
            except (BrokenPipeError, ConnectionResetError) as error:
                raise ChannelClosed from error

    def receive(
        self, seconds: float | None = None, is_over: Callable[[], bool] | None = None
    ) -> bytes:
        """Return the next message.

        Args:
            seconds: to wait for more of it; None: as long as it takes.
            is_over: asked when they have passed; without it that is an error.

        Raises:
            ChannelClosed: if there will be none.
            TimeoutError: if it takes longer.
        """
        while True:
            missing = self._missing()
            if missing <= 0:
                return self._cut_off()
            try:
                self._take_in(max(missing, _READ_BYTES))
            except BlockingIOError:
                if not self._reading.poll(None if seconds is None else 1000 * seconds):
                    if is_over is None:
                        raise TimeoutError from None
                    if is_over():
                        raise ChannelClosed from None

    def is_open(self) -> bool:
        """Whether the other process still has its end."""
        return all(not event & select.POLLHUP for _, event in self._reading.poll(0))

    def close(self) -> None:
        """Close this end."""
        self._file = -1  # the number may be that of another file soon
        self._connection.close()

    def _missing(self) -> int:
        """Bytes that have not arrived of the first message."""
        arrived = len(self._arrived) - _LENGTH.size
        return -arrived if arrived < 0 else _LENGTH.unpack_from(self._arrived)[0] - arrived

    def _cut_off(self) -> bytes:
        """The first message, which has arrived."""
        stop = _LENGTH.size + _LENGTH.unpack_from(self._arrived)[0]
        message = bytes(memoryview(self._arrived)[_LENGTH.size : stop])
        del self._arrived[:stop]
        return message

    def _take_in(self, most: int) -> None:
        try:
            new = os.read(self._file, most)
        except ConnectionResetError as error:
            raise ChannelClosed from error
        if not new:
            raise ChannelClosed
        self._arrived += new
