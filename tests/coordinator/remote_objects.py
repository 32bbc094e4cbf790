"""Objects that tests put into processes of an engine, which import them from here."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from torch_distinput.coordinator.engines.engine import Lent

SECONDS = 120
"""A watchdog of those that meet."""


class OversizedError(Exception):
    """It can be pickled, but not be made again from its arguments."""

    def __init__(self, size, limit):
        super().__init__(f"{size} of {limit}")


class MissingError(Exception):
    """It can be pickled, and made again from its arguments, but not with the same words."""

    def __init__(self, name):
        super().__init__(f"no file {name!r} here")
        self.name = name


class Record:
    """Python shows it with its address."""


class NoFileError(OSError):
    """Python's own __init__ is what takes its parts."""

    def __init__(self, path):
        super().__init__(2, "nothing there", path)


class LockedError(Exception):
    """It cannot be pickled."""

    def __init__(self):
        super().__init__("with a lock")
        self.lock = threading.Lock()


class Subject:
    """Does what a test asks it for."""

    def __init__(self):
        self.count = 0
        self._meeting = threading.Barrier(4)
        self._writing = threading.Lock()
        self._memory = np.ones(0)
        self.values = ()

    def add(self, number=1):
        self.count += number
        return self.count

    def echo(self, *values):
        return values

    def pid(self):
        return os.getpid()

    def meet(self):
        """Return when four calls have met here, or raise BrokenBarrierError."""
        return self._meeting.wait(timeout=SECONDS)

    def keep(self, *values):
        self.values = values

    def kept(self):
        return self.values

    @contextmanager
    def lending(self, value):
        """Of an array that is written to, before and after."""
        with self._writing:
            yield value
            self._memory[:] = 2

    def lend(self, rows):
        self._memory = np.ones(rows)
        return Lent(opened=self.lending(self._memory))

    def lend_unpicklable(self):
        return Lent(opened=self.lending(threading.Lock()))

    def draw(self):
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    def fail(self, error):
        raise error

    def fail_oddly(self, kind):
        if kind == "lock":
            raise LockedError
        if kind == "file":
            raise NoFileError("a.txt")
        if kind == "object":
            raise ValueError("bad", Record())
        raise OversizedError(3, 2) if kind == "args" else MissingError("a.txt")

    def exit(self, status):
        sys.exit(status)

    def fail_inside(self):
        class OfMethodError(ValueError):
            pass

        raise OfMethodError("made here")

    def unpicklable(self):
        return threading.Lock()

    def kill(self):
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    def leave(self):
        sys.stdout.flush()
        os._exit(7)

    def start_child(self):
        """The id of a process that ends by itself long after the test."""
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"]).pid

    def ask(self, remote, method, *args):
        """Call an object of another process."""
        return remote.call(method, *args)

    def wait(self, path):
        """Say in a named pipe who waits, and do so until the process ends."""
        announce(path)
        threading.Event().wait()


def announce(path, pids=()):
    """Write ids into a named pipe, when somebody reads it: of this process, if no others."""
    with Path(path).open("w") as pipe:
        pipe.write(" ".join(map(str, pids or [os.getpid()])))


class Meeting:
    """Where forty calls meet."""

    def __init__(self):
        self._all = threading.Barrier(40)

    def meet(self):
        return self._all.wait(timeout=SECONDS)


class FailedToMake:
    def __init__(self):
        raise LookupError("nothing to make it of")


class MakeWaits:
    def __init__(self, path):
        announce(path)
        threading.Event().wait()


class KilledInMake:
    """The process of the first one survives, that of each later one does not."""

    def __init__(self, path):
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            os.kill(os.getpid(), signal.SIGKILL)

    def pid(self):
        return os.getpid()
