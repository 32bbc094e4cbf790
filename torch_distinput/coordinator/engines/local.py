"""Starts the coordinator's processes on this machine, by ``multiprocessing``.

    thread  writes                     reads     guarded by
    any     ``_objects``, ``_closed``  the same  ``_lock``

A process is started with the lock held, so that none begins after ``close`` has looked.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, final

from torch_distinput import threads
from torch_distinput.coordinator.engines import pickling
from torch_distinput.coordinator.engines.child_process import ChildProcess
from torch_distinput.coordinator.engines.engine import ProcessDiedError, RemoteObject
from torch_distinput.coordinator.engines.local_object import LocalObject
from torch_distinput.coordinator.engines.local_process import ProcessStart
from torch_distinput.errors import UsageError, make_system_error

_GRACE_SECONDS = 2.0
"""For processes that were asked to end, before they are killed."""
_PAUSES = (0.1, 0.5, 2.0)
"""Seconds between tries to start a process again; ``close`` waits for them."""
_LONGEST_FOLDER = 80
"""The address of a socket has 107 characters at most."""


@dataclass(slots=True)
class _Started:
    """What is known of an object, which outlives its process."""

    make: bytes
    address: str
    restarts: bool
    child: ChildProcess


@final
class LocalEngine:
    """Runs each object in a process of its own on this machine.

    Processes start from a fork server that has imported torch, in some milliseconds each. They
    import the script that started them, which therefore needs ``if __name__ == "__main__":``. Each
    computes with one thread unless ``OMP_NUM_THREADS`` says more. All end when the coordinator's
    process does, in whatever way that ends.

    Args:
        timeout: seconds that a process which is started again may take until it answers.
    """

    def __init__(self, *, timeout: float = 120.0) -> None:
        if not hasattr(os, "pidfd_open"):
            cure = 'Use engine="ray", or train without a coordinator.'
            raise make_system_error("LocalEngine", "os.pidfd_open (Linux)", cure)
        self._timeout = timeout
        self._objects: dict[RemoteObject, _Started] = {}
        self._closed = False
        self._lock = threads.new_lock()
        short = len(tempfile.gettempdir()) < _LONGEST_FOLDER
        self._folder = tempfile.mkdtemp(prefix="coordinator-", dir=None if short else "/tmp")  # noqa: S108
        self._children: list[ChildProcess] = []
        # At the exit of this process, before multiprocessing waits for its children, if nobody has
        # called close(); not in a fork of it.
        self._end = Finalize(None, _end, (self._children, self._folder), exitpriority=10)

    def start(
        self, name: str, make: Callable[[], Any], *, restarts: bool, num_calls: int = 16
    ) -> RemoteObject:
        """Start a process with the object ``make()`` in it; see :meth:`Engine.start`.

        The first call waits for the fork server. Any number of calls may be under way.
        """
        del num_calls
        pickled = pickling.dumps(make, f"the object of {name}")
        with self._lock:
            if self._closed:
                msg = f"{name} was to be started by an engine that is closed. Make a new engine."
                raise UsageError(msg)
            address = str(Path(self._folder, str(len(self._objects))))
            child = self._new_child(name, address, pickled)
            remote = LocalObject(name, address, child)
            self._objects[remote] = _Started(
                make=pickled, address=address, restarts=restarts, child=child
            )
        return remote

    def restart(self, remote: RemoteObject) -> None:
        """Return when a new object answers; see :meth:`Engine.restart`."""
        with self._lock:
            started = self._objects.get(remote)
            if started is None or not started.restarts:
                msg = (
                    "Expected an object that this engine has started with restarts=True, got "
                    f"{remote.name}. Start it so, or start another one."
                )
                raise UsageError(msg)
            if self._closed:
                raise ProcessDiedError(f"{remote.name}: ended by close()")
            started.child.kill()
            started.child.has_ended(self._timeout)
            child = self._try_new_child(remote.name, started.address, started.make)
            self._children.remove(started.child)
            started.child = child
            assert isinstance(remote, LocalObject)
        remote.wait_for(started.child, self._timeout)

    def close(self) -> None:
        """End all processes, with all that they have started, and wait until they are gone."""
        with self._lock:
            self._closed = True
        self._end()

    def _try_new_child(self, name: str, address: str, make: bytes) -> ChildProcess:
        """Try again for a while: there may be too many processes or open files for a moment."""
        for pause in (*_PAUSES, None):
            try:
                return self._new_child(name, address, make)
            except (OSError, EOFError) as error:  # EOFError: the fork server has ended
                failed = error
            if pause is not None:
                time.sleep(pause)
        msg = f"{name}: could not be started: {type(failed).__name__}: {failed}"
        raise ProcessDiedError(msg) from failed

    def _new_child(self, name: str, address: str, make: bytes) -> ChildProcess:
        start = ProcessStart(
            make=make,
            folder=self._folder,
            environment=dict(os.environ),
            start_method=multiprocessing.get_start_method(allow_none=True),
        )
        child = ChildProcess(name, address, start)
        self._children.append(child)
        return child


def _end(children: list[ChildProcess], folder: str) -> None:
    for child in children:
        child.terminate()
    deadline = time.monotonic() + _GRACE_SECONDS
    for child in children:
        if not child.has_ended(max(0.0, deadline - time.monotonic())):
            child.kill()
    for child in children:
        child.has_ended(_GRACE_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)
