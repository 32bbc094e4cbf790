"""One worker, virtual replicas and simulated workers need no fork, no /dev/shm and no signal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import LONG

ROOT = Path(__file__).parents[2]
WORK = ["import_everything", "play_columns", "play_files", "play_virtual_replicas", "show"]
WORK += ["look_up_words"]


def run_without(platform):
    """The names of the uses, in order, as they ended."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.systems.take_away", platform]
    done = subprocess.run(
        command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=120
    )
    assert 0 == done.returncode, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_without_what_windows_lacks() -> None:
    """What needs more says so, with what to do instead."""
    needs = ["read_with_processes", "run_real_ranks", "start_local_engine"]
    assert [*WORK, *needs] == run_without("win32")


@pytest.mark.skipif(not LONG, reason="lacks less than Windows")
def test_without_what_macos_lacks() -> None:
    assert [*WORK, "start_local_engine"] == run_without("darwin")
