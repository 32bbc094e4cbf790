"""Processes of an engine by their ids, and named pipes by which they say who they are."""

from __future__ import annotations

import os
import select
from pathlib import Path

SECONDS = 120
"""A watchdog."""


def named_pipe(path: Path) -> Path:
    """A pipe that a process of an engine opens by name."""
    os.mkfifo(path)
    return path


def wait_until_gone(pids) -> None:
    """Return when no process has one of these ids; an error after two minutes."""
    for pid in pids:
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        with os.fdopen(process):
            poll = select.poll()
            poll.register(process, select.POLLIN)
            assert poll.poll(1000 * SECONDS), f"process {pid} is still there"
