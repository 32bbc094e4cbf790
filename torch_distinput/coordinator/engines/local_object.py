"""A caller's end of an object in a process of ``LocalEngine``, in any process of the cluster.

    thread             writes                        reads                 guarded by
    any                ``idle``: takes one for a     the same              each operation on a list
                       call, puts it back                                  is whole
    one that restarts  ``_child``, ``_connections``  any                   each assignment is whole

A connection carries one call at a time. A child that was forked makes its own.
"""

from __future__ import annotations

import multiprocessing
import select
from dataclasses import dataclass, field
from multiprocessing.connection import (
    Client,
    Connection,
    answer_challenge,
    deliver_challenge,
)
from typing import Any, final

from torch_distinput import threads
from torch_distinput.coordinator.engines import outcome, wire
from torch_distinput.coordinator.engines.child_process import ChildProcess
from torch_distinput.coordinator.engines.engine import ProcessDiedError
from torch_distinput.coordinator.engines.wire import Frame

_GONE = (EOFError, ConnectionError, FileNotFoundError)
"""How the end of the other side shows: on a connection, and on the way to one."""


@dataclass(eq=False)
class _Connections:
    """Connections of this process to one object that are not in use."""

    idle: list[Connection] = field(default_factory=list)

    def take(self) -> Connection | None:
        while self.idle:
            taken = self.idle.pop()
            poll = select.poll()
            poll.register(taken, select.POLLIN)
            if not poll.poll(0):
                return taken
            taken.close()  # nobody has asked, so what there is to read is the end
        return None

    def forget(self) -> None:
        while self.idle:
            self.idle.pop().close()


@final
class LocalObject:
    """An object in a process of :class:`LocalEngine`; see :class:`RemoteObject`.

    Attributes:
        name: who it is in messages, as in "worker 2".
    """

    def __init__(self, name: str, address: str, child: ChildProcess | None = None) -> None:
        self.name = name
        self._address = address
        self._child = child
        self._connections = _new_connections()

    def __reduce__(self) -> tuple[Any, ...]:
        return (LocalObject, (self.name, self._address))

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the object, and wait for the result."""
        return outcome.result_of(self._exchange(wire.to_frame((method, args)), None))

    def wait_for(self, child: ChildProcess, timeout: float) -> None:
        """From here on, call the object of another process: wait until that answers.

        Raises:
            ProcessDiedError: the process ended, or did not answer in time.
            Exception: what ``make()`` raised.
        """
        self._child, self._connections = child, _new_connections()
        outcome.result_of(self._exchange(wire.to_frame(("", ())), timeout))

    def _exchange(self, call: Frame, timeout: float | None) -> Frame:
        connections = self._connections
        try:
            connection = connections.take() or self._connect(timeout)
            try:
                wire.send(connection.fileno(), call)
                reply = wire.receive(connection.fileno())
            except BaseException:  # Ctrl-C, too: the answer is still to come on this one
                connection.close()
                raise
        except _GONE:
            how = self._child.how_it_ended() if self._child else "its process ended"
            raise ProcessDiedError(f"{self.name}: {how}") from None
        connections.idle.append(connection)
        return reply

    def _connect(self, timeout: float | None) -> Connection:
        connection = Client(self._address, "AF_UNIX")
        try:
            self._await(connection, timeout)
            key = multiprocessing.current_process().authkey
            answer_challenge(connection, key)
            deliver_challenge(connection, key)
        except BaseException:
            connection.close()
            raise
        return connection

    def _await(self, connection: Connection, timeout: float | None) -> None:
        if not connection.poll(timeout):
            raise ProcessDiedError(f"{self.name}: no answer within {timeout:g} s of its start")


def _new_connections() -> _Connections:
    connections = _Connections()
    threads.call_in_child(connections, _Connections.forget)
    return connections
