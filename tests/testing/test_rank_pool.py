"""The processes behind run_ranks: used again, new after a failure, and none of them is left."""

from __future__ import annotations

import functools
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.testing.rank_functions import (
    hang_on_worker_1,
    kill_self,
    on_worker,
    pid,
    place,
    raise_value_error,
)
from torch_distinput.testing.ranks import RankError, run_ranks


class TestPool:
    @pytest.mark.parametrize("action", [raise_value_error, kill_self])
    def test_new_processes_after_a_failure(self, action: Callable[[], None]) -> None:
        """Nothing of a failed job is used again."""
        before = run_ranks(pid, 2)
        with pytest.raises(RankError):
            run_ranks(functools.partial(on_worker, 1, action), 2)

        after = run_ranks(pid, 2)

        assert not {*before} & {*after}
        assert not [process for process in before if is_running(process)]

    @pytest.mark.slow
    def test_new_processes_after_a_hang(self) -> None:
        """No rank of a hung job stays."""
        before = run_ranks(pid, 2)
        with pytest.raises(TimeoutError):
            run_ranks(hang_on_worker_1, 2, timeout=1)

        assert not [process for process in before if is_running(process)]
        assert run_ranks(place, 2) == [(0, 2, 1), (1, 2, 1)]

    def test_idle_rank_was_killed(self) -> None:
        """A rank that something else ended between two jobs is replaced."""
        victim, _ = run_ranks(pid, 2)
        handle = os.pidfd_open(victim)
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        select.select([handle], [], [])  # until it has ended
        os.close(handle)

        assert victim not in run_ranks(pid, 2)

    @pytest.mark.slow
    def test_no_process_is_left(self, tmp_path: Path) -> None:
        """When the interpreter ends, the ranks have ended."""
        done = run_script(tmp_path, "print(*run_ranks(pid, 2))")

        assert (done.returncode, done.stderr) == (0, "")
        assert [is_running(int(word)) for word in done.stdout.split()] == [False, False]

    @pytest.mark.slow
    def test_no_process_is_left_by_a_kill(self, tmp_path: Path) -> None:
        """When the interpreter is killed in the middle of a job, ranks and their children end."""
        done = run_script(tmp_path, "run_ranks(functools.partial(kill, os.getpid()), 2)")

        assert done.returncode == -signal.SIGKILL
        pids = [int(path.name) for path in tmp_path.glob("[0-9]*")]
        assert len(pids) == 2 * 2
        for process in pids:
            wait_for_end(process)


SCRIPT = """
import functools
import os
import signal
import threading
from pathlib import Path

import torch.distributed as dist
from torch.utils.data import DataLoader
from torch_distinput.testing import rank_pool
from torch_distinput.testing.ranks import run_ranks

rank_pool._PRELOAD.remove("torch._dynamo")  # takes as long as torch, and only optimizers need it


def pid(strategy):
    return os.getpid()


def kill(victim, strategy):
    loader = iter(DataLoader(range(6), num_workers=1))
    next(loader)
    for process in (os.getpid(), loader._workers[0].pid):
        Path(str(process)).touch()
    dist.barrier()
    if dist.get_rank() == 0:
        os.kill(victim, signal.SIGKILL)
    threading.Event().wait()


if __name__ == "__main__":
"""


def run_script(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    script = folder / "uses_ranks.py"
    script.write_text(f"{SCRIPT}    {line}\n")
    return subprocess.run(
        [sys.executable, str(script)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def wait_for_end(process: int) -> None:
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return
    try:
        assert select.select([handle], [], [], 30)[0], f"process {process} is still there"
    finally:
        os.close(handle)


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
