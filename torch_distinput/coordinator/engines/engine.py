"""What the coordinator asks of whatever starts its processes: three calls.

``LocalEngine`` starts them on this machine, ``RayEngine`` lets Ray place them on many. What is
retried, in which order, and what a death means is not decided here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, final


class ProcessDiedError(Exception):
    """The process of a remote object ended before it answered: the call may have run, or not.

    The text says who, and how it ended if that is known ("worker 2: killed by signal 9").
    """


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Lent:
    """What a method returns whose arrays its object goes on to write.

    Attributes:
        opened: a context manager of the result. Its arrays are copied inside, and sent afterwards:
            nobody is kept waiting by a caller that is slow to take them.
    """

    opened: AbstractContextManager[Any]


class RemoteObject(Protocol):
    """An object in another process, which any thread of any process of the cluster may call.

    It can be pickled: with it a worker reaches the parameter servers.

    Attributes:
        name: who it is in messages, as in "worker 2".
    """

    name: str

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the object, and wait for the result.

        Several calls may be under way at once: the object runs each in a thread of its process.
        Arguments and results are pickled, but for the contents of dense arrays of numpy, which are
        read where they are while this call lasts, or while they are :class:`Lent`. An array that
        arrives may be read-only: it may lie in memory that processes share. Who wants to write
        copies it. Tensors travel best as arrays.

        Raises:
            ProcessDiedError: the process ended first.
            Exception: what the method raised, with the remote traceback as its ``__cause__``; a
                RuntimeError with its text, where it cannot be pickled or is an exit.
        """


class Engine(Protocol):
    """Starts processes; one engine object is for one cluster."""

    def start(
        self, name: str, make: Callable[[], Any], *, restarts: bool, num_calls: int = 16
    ) -> RemoteObject:
        """Start a process with the object ``make()`` in it, without waiting for it.

        Args:
            name: who it is.
            make: called in the process. What it raises is raised by each call.
            restarts: whether :meth:`restart` may be called for it.
            num_calls: how many may be under way at once, at least; others may have to wait for one
                of them to end.

        Raises:
            TypeError: ``make`` cannot be pickled; names what in it cannot.
            UsageError: the engine is closed.
        """

    def restart(self, remote: RemoteObject) -> None:
        """Return when a new object, of ``make()`` in a new process, answers.

        Until then each call of whoever has started it raises :class:`ProcessDiedError`. A process
        that is still there is ended. Copies of ``remote`` in other processes call the new object.

        Raises:
            ProcessDiedError: the new process ended too, or did not answer in time.
            Exception: what ``make()`` raised.
            UsageError: it was not started with ``restarts=True``.
        """

    def close(self) -> None:
        """End all processes, whatever they do, and wait until they are gone; may be called twice.

        Calls that are under way raise :class:`ProcessDiedError`.
        """
