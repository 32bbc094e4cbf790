"""Programs that tests start as a user would."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

LIMIT_SECONDS = 500.0
"""A watchdog: the slowest takes 50 s on idle cores."""


def output_of(command: Sequence[str | Path]) -> str:
    """Run a command that must succeed, without a GPU, and return what it prints."""
    with subprocess.Popen(
        command,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},  # there may be fewer devices than ranks
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            printed, errors = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.terminate()  # torchrun then ends its ranks, which SIGKILL would leave behind
            raise
    assert process.returncode == 0, f"exit code {process.returncode}\n{printed}\n{errors}"
    return printed
