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
_QUIETLY = getattr(socket, "MSG_NOSIGNAL", 0)
"""An error, whatever the user has made of SIGPIPE."""
_AT_ONCE = getattr(socket, "MSG_DONTWAIT", 0)
"""To send what fits, without waiting; not on Windows, where another thread sends all."""
_READ_BYTES = 1 << 16
_IDLE_SECONDS = 60
"""Time without a message, after which the system asks whether the other host is there."""
_CLOSED = "the other rank has closed the connection"


@final
class PeerConnection:
    """Sends and receives messages, as many threads may at a time: one for each tag."""

    def __init__(self, connected: socket.socket) -> None:
        """Take over a socket."""
        connected.settimeout(None)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):  # else after hours, when firewalls have forgotten it
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_SECONDS)
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
        call_in_child(connected, socket.socket.close)

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
                self._start_sender()

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
        self._socket.close()

    def _take(self, tag: int) -> bytes:
        waiting = self._arrived[tag]
        content = waiting.popleft()
        if not waiting:
            del self._arrived[tag]
        return content

    def _start_sender(self) -> None:
        try:
            start_thread(self._send_rest, name="sender", stop=_nothing, give_up=self.shut)
        except RuntimeError as error:  # no more threads: half a message is none
            self._unsent.clear()
            self.shut()
            raise ChannelBrokenError(str(error)) from error

    def _send_at_once(self, message: memoryview) -> int:
        if not _AT_ONCE:
            return 0
        try:
            return self._socket.send(message, _AT_ONCE | _QUIETLY)
        except BlockingIOError:
            return 0
        except OSError as error:
            self.shut()  # whoever came next would send behind a message that is missing
            raise ChannelBrokenError(str(error)) from error

    def _send_rest(self) -> None:
        is_done = False
        while not is_done:
            try:
                self._socket.sendall(self._unsent[0], _QUIETLY)
            except OSError:
                self.shut()  # who sends or receives next hears of it
            with self._sending:
                self._unsent.popleft()
                is_done = not self._unsent

    def _read(self) -> tuple[int, bytes]:
        """The next message, whose it may be; what has arrived behind it is kept.

        One that was cut off stays where it is: who reads next must not take its rest for another.
        """
        self._fill(_HEADER.size)
        tag, length = _HEADER.unpack_from(self._unread)
        end = _HEADER.size + length
        self._fill(end)
        content = bytes(memoryview(self._unread)[_HEADER.size : end])
        del self._unread[:end]
        return tag, content

    def _fill(self, size: int) -> None:
        """Wait until so many bytes are there."""
        try:
            while (missing := size - len(self._unread)) > 0:
                received = self._socket.recv(max(_READ_BYTES, missing))
                if not received:
                    raise ConnectionResetError(_CLOSED)
                self._unread += received
        except OSError as error:
            raise ChannelBrokenError(str(error)) from error


def _nothing() -> None:
    """What was begun is sent to its end."""
