"""A process as others on its machine can look it up: a killed one cannot say that it is gone."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class ProcessIdentity(NamedTuple):
    """Where a process runs.

    Attributes:
        machine: the running system and its space of process numbers; "" if they are not known.
        number: the process number.
        started: tells it from others that get its number later.
    """

    machine: str
    number: int
    started: str


def identify_process() -> ProcessIdentity:
    """This process."""
    number = os.getpid()
    try:
        system = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        machine = f"{system}/{Path('/proc/self/ns/pid').readlink()}"
        return ProcessIdentity(machine, number, _stat(number)[1])
    except OSError:
        return ProcessIdentity("", number, "")


def has_died(process: ProcessIdentity, own: ProcessIdentity) -> bool:
    """Whether a process of this machine has ended; False for one that cannot be looked up."""
    if not own.machine or process.machine != own.machine:
        return False
    try:
        os.kill(process.number, 0)  # asks only
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    with suppress(OSError):
        state, started = _stat(process.number)
        return state in "ZX" or started != process.started
    return False


def _stat(number: int) -> tuple[str, str]:
    """State and time of the start; the name before them may hold anything."""
    fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    return fields[0], fields[19]
