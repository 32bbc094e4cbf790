"""One connection to another rank, for the messages of several datasets, each under its tag.

    thread    does                                               guarded by
    voters    send; who waits for a message reads for all, and   ``_sending``, ``_changed``
              leaves what is not its own
    sender    writes what the system did not take at once, and   ``_sending``
              ends
    any       ``shut``: all who wait, or come, hear of it        the system

Nobody reads while nobody waits: what has arrived stays with the system.
"""

from __future__ import annotations

import socket
import struct
import weakref
from collections import deque
from typing import final

from torch_distinput.communicator import ChannelBrokenError
from torch_distinput.threads import call_in_child, new_condition, new_lock, start_thread

_HEADER = struct.Struct("!QQ")
"""The tag and the length of a message."""
_AT_ONCE = getattr(socket, "MSG_DONTWAIT", None)
"""To send what fits, without waiting; not on Windows, where another thread sends all."""
_READ_BYTES = 1 << 16
CLOSED = "the other rank has closed the connection"


@final
class PeerConnection:
    """Sends and receives messages, as many threads may at a time: one for each tag."""

    def __init__(self, connected: socket.socket) -> None:
        """Take over a socket."""
        connected.settimeout(None)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        self._sending = new_lock()
        self._unsent: deque[memoryview] = deque()  # while it holds any, there is a sender
        self._changed = new_condition()
        self._is_read = False  # some thread reads, for all
        self._unread = bytearray()  # of who reads
        self._arrived: dict[int, deque[bytes]] = {}
        # Not at exit: threads may still be reading then, and are ended in their order.
        weakref.finalize(self, connected.close).atexit = False
        # A child's copy would keep the connection open beyond the end of this process.
        call_in_child(self, PeerConnection._close)

    def send(self, tag: int, content: bytes) -> None:
        """Send a message without waiting for who receives it: that one may be sending too.

        Raises:
            ChannelBrokenError: the other rank is gone, or the connection was shut.
        """
        message = memoryview(_HEADER.pack(tag, len(content)) + content)
        with self._sending:
            if self._unsent:
                self._unsent.append(message)
            elif rest := message[self._send_at_once(message) :]:
                self._unsent.append(rest)
                start_thread(self._send_rest, name="sender", stop=_nothing, give_up=self.shut)

    def receive(self, tag: int) -> bytes:
        """Wait for the next message of a tag.

        Raises:
            ChannelBrokenError: there will be none.
        """
        while True:
            with self._changed:
                self._changed.wait_for(lambda: tag in self._arrived or not self._is_read)
                if tag in self._arrived:
                    return self._take(tag)
                self._is_read = True
            try:
                found, content = self._read()
                with self._changed:
                    self._arrived.setdefault(found, deque()).append(content)
            finally:
                with self._changed:
                    self._is_read = False
                    self._changed.notify_all()

    def shut(self) -> None:
        """End the connection in both directions, for whoever waits; any thread may."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it has ended

    def close(self) -> None:
        """Shut it, and give the socket back."""
        self.shut()
        self._close()

    def _close(self) -> None:
        self._socket.close()

    def _take(self, tag: int) -> bytes:
        waiting = self._arrived[tag]
        content = waiting.popleft()
        if not waiting:
            del self._arrived[tag]
        return content

    def _send_at_once(self, message: memoryview) -> int:
        if _AT_ONCE is None:
            return 0
        try:
            return self._socket.send(message, _AT_ONCE)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ChannelBrokenError(str(error)) from error

    def _send_rest(self) -> None:
        is_done = False
        while not is_done:
            try:
                self._socket.sendall(self._unsent[0])
            except OSError:
                self.shut()  # who sends or receives next hears of it
            with self._sending:
                self._unsent.popleft()
                is_done = not self._unsent

    def _read(self) -> tuple[int, bytes]:
        """The next message, whose it may be; what has arrived behind it is kept."""
        tag, length = _HEADER.unpack(self._read_bytes(_HEADER.size))
        return tag, self._read_bytes(length)

    def _read_bytes(self, size: int) -> bytes:
        try:
            while len(self._unread) < size:
                received = self._socket.recv(max(_READ_BYTES, size - len(self._unread)))
                if not received:
                    raise ConnectionResetError(CLOSED)
                self._unread += received
        except OSError as error:
            raise ChannelBrokenError(str(error)) from error
        content = bytes(memoryview(self._unread)[:size])
        del self._unread[:size]
        return content


def read_bytes(connected: socket.socket, size: int) -> bytearray:
    """Read so many bytes.

    Raises:
        OSError: the connection ends before.
    """
    content = bytearray(size)
    missing = memoryview(content)
    while missing:
        count = connected.recv_into(missing)
        if not count:
            raise ConnectionResetError(CLOSED)
        missing = missing[count:]
    return content


def _nothing() -> None:
    """What was begun is sent to its end."""
