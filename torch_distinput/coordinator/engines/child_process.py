"""A process of ``LocalEngine`` seen from the coordinator: started, watched, ended with all of it.

    thread         writes              reads                     guarded by
    any            nothing             ``_exitcode``             the event ``_ended``
    watch-process  ``_exitcode``       the process's sentinel    the event, which it sets
    any            a new process       exit codes of all others  a lock of this process

The last row: ``Process.start`` asks after every other child, and an exit code can be read once.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection
from pathlib import Path
from typing import cast, final

from torch_distinput import threads
from torch_distinput.coordinator.engines import local_process
from torch_distinput.coordinator.engines.local_process import ProcessStart

# What takes a second to import is loaded once, in the fork server. An optimizer needs the third.
_PRELOAD = ["torch", "torch.distributed", "torch._dynamo", local_process.__name__]
_GRACE_SECONDS = 5.0
"""For a process that was killed to be gone, and for its exit code to be known."""
_OF_SCRIPTS = (
    ". Its own output says why. If it ended as it began: a script needs "
    "if __name__ == '__main__':, because each process imports it"
)


@final
class ChildProcess:
    """One process and all that it starts, until it has ended."""

    def __init__(self, name: str, address: str, start: ProcessStart) -> None:
        """Start it. From here on the address is its own."""
        with _listener(address) as listener, threads.named_lock("exit codes of processes"):
            self._process = _context().Process(
                target=local_process.run_process,
                args=(listener, start),
                name=name,
                daemon=False,  # those may not have children, such as loader processes
            )
            with _importable_main():
                self._process.start()
        self._exitcode: int | None = None
        self._is_closed = False
        self._ended = threads.new_event()
        threads.start_thread(self._watch, name="watch-process", stop=self.kill)

    def terminate(self) -> None:
        """Ask the process and all that it has started to end."""
        self._is_closed = True
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End them."""
        self._signal(signal.SIGKILL)

    def has_ended(self, timeout: float) -> bool:
        """Wait until the process has ended, but not longer than so many seconds."""
        return self._ended.wait(timeout)

    def how_it_ended(self) -> str:
        """Say how, for a message."""
        if self._is_closed:
            return "ended by close()"
        code = self._exitcode if self.has_ended(_GRACE_SECONDS) else None
        if code is None:
            return "its process does not answer any more"
        if code < 0:
            return f"killed by signal {-code} ({signal.Signals(-code).name})"
        return f"ended with exit code {code}{_OF_SCRIPTS if code else ''}"

    def _signal(self, number: int) -> None:
        if self._ended.is_set() or self._process.pid is None:
            return
        for send in (os.kill, os.killpg):  # it begins in a group that is not its own
            with suppress(ProcessLookupError):
                send(self._process.pid, number)

    def _watch(self) -> None:
        connection.wait([self._process.sentinel])
        with threads.named_lock("exit codes of processes"):
            self._process.join()
        # What it has started may hold its sockets, and then nobody would see that it is gone.
        with suppress(ProcessLookupError):
            os.killpg(cast(int, self._process.pid), signal.SIGKILL)
        self._exitcode = self._process.exitcode
        self._ended.set()


def _context() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    return context


@contextmanager
def _importable_main() -> Iterator[None]:
    """Let a process start for a program that was read from standard input, as in ``python -``.

    Python gives it a file that is not there, and multiprocessing has each process import that. Its
    functions travel by value, as those of a notebook, which has no file.
    """
    main = sys.modules["__main__"]
    if getattr(main, "__file__", None) != "<stdin>":
        yield
        return
    del main.__file__
    try:
        yield
    finally:
        main.__file__ = "<stdin>"


def _listener(address: str) -> socket.socket:
    """A socket under an address that may have belonged to a process before this one.

    It is made here, so that calls can wait in it before the process has begun.
    """
    listener = socket.socket(socket.AF_UNIX)
    threads.call_in_child(listener, socket.socket.close)
    try:
        listener.bind(f"{address}.new")
        listener.listen(socket.SOMAXCONN)
        Path(f"{address}.new").replace(address)
    except BaseException:  # the folder is gone, say, as when all of it is closed meanwhile
        listener.close()
        raise
    return listener
