"""Programs that tests start as a user would."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

LIMIT_SECONDS = 500.0
"""A watchdog: the slowest takes 50 s on idle cores."""


def own_machine(folder: str | Path) -> dict[str, str]:
    """The environment of a script that sees neither devices nor the clusters of other scripts.

    There may be fewer devices than ranks. And a Ray that is started without an address joins the
    cluster that was started last, which is in a file, and may be that of another test.
    """
    return {"CUDA_VISIBLE_DEVICES": "", "RAY_TMPDIR": str(folder)}


def output_of(command: Sequence[str | Path]) -> str:
    """Run a command that must succeed, without a GPU, and return what it prints."""
    with (
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder,
        subprocess.Popen(
            command,
            env=os.environ | own_machine(folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        try:
            printed, errors = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.terminate()  # torchrun then ends its ranks, which SIGKILL would leave behind
            raise
    assert process.returncode == 0, f"exit code {process.returncode}\n{printed}\n{errors}"
    return printed
