"""Running the scripts of examples/: in this process, on ranks of the test kit, by torchrun."""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import torch.distributed.run
from torch.distributed.run import get_args_parser

from tests.torchrun import run_script
from torch_distinput.testing import run_ranks

EXAMPLES = Path(__file__).parents[2] / "examples"
TIMEOUT_SECONDS = 400  # the slowest takes minutes on busy cores


def run(num_ranks: int, script: str, *arguments: str) -> list[str]:
    """Run a script on this many ranks, and return the lines that they printed."""
    if num_ranks == 1:
        return play_script(script, arguments).splitlines()
    job = functools.partial(play_script, script, arguments)
    # There may be fewer devices than ranks.
    with mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES=""):
        printed = run_ranks(job, num_ranks, timeout=TIMEOUT_SECONDS)
    return "".join(printed).splitlines()


def run_by_torchrun(folder: Path, num_ranks: int, script: str, *arguments: str) -> list[str]:
    """Run a script by torchrun, whose logs go to a folder that has none."""
    ended = run_script(folder, num_ranks, EXAMPLES / script, *arguments)
    assert ended.is_well, ended.err
    return ended.out.splitlines()


def run_launcher(script: str, *arguments: str) -> list[str]:
    """Run a script that starts torchrun with itself; the ranks are those of `run`."""
    with mock.patch.object(subprocess, "run", run_as_torchrun):
        return run(1, script, *arguments)


def run_as_torchrun(
    command: list[str], *, check: bool, env: Mapping[str, str] = os.environ
) -> subprocess.CompletedProcess[str]:
    """Do what ``subprocess.run`` would, if the command is one that torchrun understands."""
    assert [sys.executable, "-m", torch.distributed.run.__name__] == command[:3]
    asked = get_args_parser().parse_args(command[3:])
    assert asked.standalone
    with mock.patch.dict(os.environ, env):
        lines = run(int(asked.nproc_per_node), asked.training_script, *asked.training_script_args)
    print(*lines, sep="\n")
    return subprocess.CompletedProcess(command, 0)


def play_script(script: str, arguments: tuple[str, ...], _: Any = None) -> str:
    """Run a script in this process, and return what it printed."""
    with (
        mock.patch.dict(os.environ),
        mock.patch.object(sys, "argv", [script, *arguments]),
        contextlib.redirect_stdout(io.StringIO()) as printed,
        contextlib.redirect_stderr(io.StringIO()) as errors,
    ):
        try:
            runpy.run_path(str(EXAMPLES / script), run_name="__main__")
        except SystemExit as end:
            if end.code:
                raise RuntimeError(f"{script}: {end.code}\n{errors.getvalue()}") from None
        finally:
            gc.collect()  # models must be gone before the process group is
            if s3fs := sys.modules.get("s3fs"):  # whose next store is at another address
                s3fs.S3FileSystem.clear_instance_cache()
    return printed.getvalue()
