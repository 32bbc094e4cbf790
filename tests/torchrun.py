"""torchrun's agent, with ranks that need no new interpreter: it takes two seconds to import torch.

The agent is a thread of this process. Ranks are forked from a server that has imported torch, that
of `run_ranks`; each ends as a child of multiprocessing does. torchrun's command line, and the end
of an interpreter, are seen in ``gloo/test_stop.py``.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import runpy
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

LIMIT = 400.0
"""Seconds; then a rank that hangs says where, and ends. Scripts take minutes on busy cores."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a job has ended, and what its ranks have printed, one after the other."""

    is_well: bool
    out: str
    err: str


def run_job(
    folder: Path, ranks: int, entry: Callable[..., None], *arguments: object, restarts: int = 0
) -> Ended:
    """Run a function at the level of a module on each rank; logs go to a folder that has none."""
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=ranks, max_restarts=restarts,
        rdzv_backend="c10d", rdzv_endpoint="localhost:0", run_id=folder.name,
        start_method="forkserver",
        logs_specs=DefaultLogsSpecs(log_dir=str(folder), redirects=Std.ALL),
    )  # fmt: skip
    # In a thread, because in the main thread the agent takes the signals over for good.
    with mock.patch.dict(os.environ), ThreadPoolExecutor(1) as agent:
        job = agent.submit(elastic_launch(config, be_rank), dict(os.environ), entry, arguments)
        error = job.exception()
    if error is not None and not isinstance(error, ChildFailedError):
        raise error
    out, err = (
        "".join(path.read_text() for path in sorted(folder.rglob(f"{name}.log")))
        for name in ("stdout", "stderr")
    )
    return Ended(is_well=error is None, out=out, err=err)


def run_script(folder: Path, ranks: int, script: Path | str, *arguments: object) -> Ended:
    """Run a script as ``torchrun`` does, or a module as ``torchrun -m``."""
    return run_job(folder, ranks, play_script, script, arguments)


def be_rank(environment: dict[str, str], entry: Callable[..., None], arguments: tuple) -> None:
    """Run on the rank, which has the environment of the server, and torchrun's variables."""
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    os.environ.update(environment)  # which has no variables of torchrun
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
    torch.set_num_threads(1)
    multiprocessing.set_start_method(None, force=True)  # the one of the platform
    try:
        entry(*arguments)
    except SystemExit as end:
        print(end, file=sys.stderr)  # multiprocessing does, when the log is closed
        raise


def play_script(script: Path | str, arguments: tuple[object, ...]) -> None:
    """Be the script."""
    sys.argv = [str(script), *map(str, arguments)]
    if isinstance(script, Path):
        runpy.run_path(str(script), run_name="__main__")
    else:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
