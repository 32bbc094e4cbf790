"""No process stays when the coordinator's ends, in whatever way that happens."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import threading

import pytest

from tests.commands import output_of
from tests.coordinator.engines import new_engine
from tests.coordinator.processes import named_pipe, wait_until_gone
from tests.coordinator.remote_objects import Subject, announce
from tests.docs.pages import ROOT
from torch_distinput.coordinator.engines import child_process, local_process

pytestmark = pytest.mark.with_frameworks  # with each engine


def coordinate(name, folder, end, environment):
    """The coordinator: it says who its processes are, and then waits in a call."""
    os.environ.update(environment)
    # It needs a fork server of its own, which need not know about optimizers.
    child_process._PRELOAD = ["torch", local_process.__name__]
    engine = new_engine(name)
    remotes = [engine.start(f"worker {i}", Subject, restarts=True) for i in range(2)]
    pids = [remote.call(method) for remote in remotes for method in ("pid", "start_child")]
    forked = 0 if name == "ray" else os.fork()  # its sockets do not survive a fork
    if not forked and name != "ray":
        threading.Event().wait()
    announce(folder / "pids", [*pids, forked])
    if end != "exit":
        remotes[0].call("wait", str(folder / "call"))


@pytest.mark.parametrize("end", ["SIGINT", "SIGKILL", "exit"])
def test_all_end_with_the_coordinator(engine, end, tmp_path):
    """Its processes, and what they have started; a signal comes while it waits in a call.

    A fork of the coordinator lives on, with all that was open.
    """
    said, call = named_pipe(tmp_path / "pids"), named_pipe(tmp_path / "call")
    context = multiprocessing.get_context("forkserver")
    ray = engine == "ray" and importlib.import_module("ray")
    environment = dict(os.environ)  # the fork server may be older than Ray's token
    if ray:
        environment["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    coordinator = context.Process(target=coordinate, args=(engine, tmp_path, end, environment))
    coordinator.start()
    *pids, forked = map(int, said.read_text().split())
    try:
        if end != "exit":
            assert pids[0] == int(call.read_text())
            os.kill(coordinator.pid, signal.Signals[end])
        wait_until_gone([*pids, coordinator.pid])
    finally:
        coordinator.kill()
        coordinator.join()
        if forked:
            os.kill(forked, signal.SIGKILL)
    assert 4 == len(set(pids))


PRELOAD = """
from torch_distinput.coordinator.engines import child_process, local_process
from tests.coordinator.engines import new_engine
from tests.coordinator.remote_objects import Subject

child_process._PRELOAD = ["torch", local_process.__name__]  # as above
"""
SCRIPT = """

class Counter(Subject):
    def next(self):
        return self.add()

if __name__ == "__main__":
    remote = new_engine("local").start("worker 0", Counter, restarts=False)
    print(remote.call("next"), remote.call("pid"))
"""


def test_a_script_leaves_neither_processes_nor_files(tmp_path, monkeypatch):
    """It has the class of its object, and does not close the engine."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    script = tmp_path / "script.py"
    script.write_text(PRELOAD + SCRIPT)
    count, pid = map(int, output_of([sys.executable, script]).split())
    assert 1 == count
    wait_until_gone([pid])
    assert [] == [*tmp_path.glob("coordinator-*"), *tmp_path.glob("pymp-*")]


FROM_STANDARD_INPUT = """
import __main__

engine = new_engine("local")
print(engine.start("worker 0", Subject, restarts=False).call("add"), __main__.__file__)
"""


def test_a_script_may_come_from_standard_input(tmp_path, monkeypatch):
    """It is no file that a process could import."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    script = tmp_path / "script"
    script.write_text(PRELOAD + FROM_STANDARD_INPUT)
    command = ["sh", "-c", f"exec {sys.executable} - < {script}"]
    assert "1 <stdin>\n" == output_of(command)
