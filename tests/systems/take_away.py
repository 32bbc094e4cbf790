"""Makes this process look like one of macOS or Windows, as far as a missing name can do that.

What torch, NumPy and the standard library do when they are imported, they have done before: here it
is about our own code. ``python take_away.py win32`` runs ``uses`` in such a process.
"""

from __future__ import annotations

import builtins
import io
import multiprocessing
import multiprocessing.connection
import multiprocessing.context
import multiprocessing.shared_memory
import os
import select
import signal
import socket
import sys
import sysconfig
from typing import Any

import fsspec  # noqa: F401 - before the platform has another name
import numpy as np  # noqa: F401
import torch.distributed
import torch.utils.data  # noqa: F401

NOWHERE = ("/dev/shm", "/proc")  # noqa: S108
# Functions that neither system has.
OF_LINUX = {
    os: (
        *("sched_getaffinity", "sched_setaffinity", "pidfd_open", "memfd_create", "eventfd"),
        *("posix_fadvise", "posix_fallocate", "splice", "copy_file_range", "getrandom"),
    ),
    select: ("epoll",),
}
OF_POSIX = {
    os: (
        *("fork", "forkpty", "register_at_fork", "getuid", "geteuid", "getgid", "getpgrp"),
        *("getpgid", "killpg", "setsid", "pread", "preadv", "pwrite", "set_blocking", "mkfifo"),
        *("uname", "statvfs", "getloadavg", "sysconf", "wait", "WNOHANG", "chown", "nice"),
        *("O_NONBLOCK", "O_CLOEXEC", "O_DIRECTORY"),
    ),
    select: ("poll",),
    socket: ("AF_UNIX",),
    signal: (
        *("pthread_kill", "pthread_sigmask", "setitimer", "alarm", "pause", "sigwait"),
        *("siginterrupt", "sigpending"),
    ),
}
MODULES = ("fcntl", "resource", "termios", "pwd", "grp", "_posixshmem")
SIGNALS_OF_WINDOWS = {"SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM"}


def take_away(platform: str) -> None:
    """Remove what ``platform`` has not."""
    sysconfig.get_config_vars()  # which reads a file with the name of the platform
    gone = [OF_LINUX, OF_POSIX] if platform == "win32" else [OF_LINUX]
    for table in gone:
        for module, names in table.items():
            for name in names:
                vars(module).pop(name, None)
    if platform == "win32":
        for name in MODULES:
            sys.modules[name] = None  # type: ignore[assignment] # an import of it fails
        for name in [name for name in vars(signal) if name.startswith("SIG")]:
            if name[3:4] != "_" and name not in SIGNALS_OF_WINDOWS:
                delattr(signal, name)
    contexts = multiprocessing.context._concrete_contexts  # type: ignore[attr-defined]
    for method in ("fork", "forkserver") if platform == "win32" else ():
        del contexts[method]
    multiprocessing.set_start_method("spawn", force=True)
    multiprocessing.get_all_start_methods = lambda: list(contexts)
    for opener in (builtins, io, os):
        setattr(opener, "open", hidden(opener.open))  # noqa: B010
    os.readlink = hidden(os.readlink)
    sys.platform = platform


def hidden(function: Any) -> Any:
    """Files of Linux are not there."""

    def look(path: Any, *args: Any, **kwargs: Any) -> Any:
        if str(path).startswith(NOWHERE):
            raise FileNotFoundError(2, "not on this system", str(path))
        return function(path, *args, **kwargs)

    return look


if __name__ == "__main__":
    take_away(sys.argv[1])
    from tests.systems import uses

    uses.run_all()
