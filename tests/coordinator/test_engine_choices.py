"""What one engine has and the others do not: how a process ended, clusters that are not there."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.commands import output_of, own_machine
from tests.coordinator.processes import SECONDS, wait_until_gone
from tests.coordinator.remote_objects import Subject
from tests.docs.pages import ROOT
from torch_distinput.coordinator.engines.child_process import ChildProcess
from torch_distinput.coordinator.engines.engine import ProcessDiedError
from torch_distinput.coordinator.engines.local import LocalEngine
from torch_distinput.coordinator.engines.ray import RayEngine
from torch_distinput.errors import ConfigurationError


@pytest.fixture
def local():
    made = LocalEngine()
    yield made
    made.close()


@pytest.fixture
def ray():
    """For tests of Ray alone: they follow the rule of the fixture `engine`."""
    if find_spec("ray") is None:
        pytest.skip("needs ray: not installed")


def of_session(leader):
    """The processes that a script has started, and they in turn."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        found += [int(path.name)] * (int(fields[3]) == leader)
    return found


class TestLocal:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("method", "expected"),
        [
            ("kill", "^server 0: killed by signal 9 \\(SIGKILL\\)$"),
            ("leave", "^server 0: ended with exit code 7. Its own output says why. If"),
        ],
    )
    def test_it_says_how_a_process_ended(self, local, method, expected):
        remote = local.start("server 0", Subject, restarts=False)
        with pytest.raises(ProcessDiedError, match=expected):
            remote.call(method)

    def test_after_close_it_says_that(self, local):
        remote = local.start("server 0", Subject, restarts=False)
        local.close()
        with pytest.raises(ProcessDiedError, match="^server 0: ended by close"):
            remote.call("pid")

    def test_eight_processes_start(self, local):
        remotes = [local.start(f"worker {i}", Subject, restarts=True) for i in range(8)]
        assert 8 == len({remote.call("pid") for remote in remotes})

    def test_a_start_in_a_folder_that_is_gone_leaves_no_socket(self, tmp_path):
        """Else whatever runs much later finds it: here a ResourceWarning is an error."""
        with pytest.raises(FileNotFoundError) as caught:
            ChildProcess("worker 0", str(tmp_path / "gone" / "0"), None)
        del caught
        gc.collect()

    def test_the_environment_is_that_of_the_start(self, local, monkeypatch):
        """Not that of the fork server, which may be older."""
        monkeypatch.setenv("TDI_OF_A_TEST", "seen")
        remote = local.start("worker 0", Environment, restarts=True)
        assert "seen" == remote.call("variable", "TDI_OF_A_TEST")

    @pytest.mark.parametrize("number", [None, "2"])
    def test_a_process_computes_with_one_thread_unless_told_otherwise(
        self, local, monkeypatch, number
    ):
        if number is None:
            monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        else:
            monkeypatch.setenv("OMP_NUM_THREADS", number)
        threads = local.start("worker 0", Environment, restarts=True).call("num_threads")
        assert (threads == 1) is (number is None)

    def test_a_fork_of_the_coordinator_has_connections_of_its_own(self, local):
        remote = local.start("worker 0", Subject, restarts=True)
        remote.call("add")
        forked = os.fork()
        if not forked:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # a handler would go on with the tests
            signal.alarm(SECONDS)
            local.close()  # it is not its own
            os._exit(0 if remote.call("add") == 2 else 1)
        assert 0 == os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1])
        assert 3 == remote.call("add")


    def test_a_fork_of_a_process_does_not_hide_its_end(self, local):
        """It has the sockets of the process, and would live on."""
        remote = local.start("worker 0", Environment, restarts=True)
        other = local.start("server 0", Subject, restarts=False)
        forked = remote.call("fork")
        os.kill(remote.call("pid"), signal.SIGKILL)
        with pytest.raises(ProcessDiedError, match="its process ended"):
            other.call("ask", remote, "pid")
        wait_until_gone([forked])

    def test_processes_start_others_as_the_coordinator_does(self, local):
        remote = local.start("worker 0", Environment, restarts=True)
        assert multiprocessing.get_start_method() == remote.call("start_method")


class Environment:
    def fork(self):
        forked = os.fork()
        if not forked:
            threading.Event().wait()
        return forked

    def pid(self):
        return os.getpid()

    def start_method(self):
        return multiprocessing.get_start_method()

    def variable(self, name):
        return os.environ.get(name)

    def num_threads(self):
        return torch.get_num_threads()


UNREACHABLE = """
import socket
from torch_distinput.coordinator.engines.ray import RayEngine
from torch_distinput.errors import ConfigurationError

with socket.socket() as bound:  # and not listening
    bound.bind(("127.0.0.1", 0))
    try:
        RayEngine(f"127.0.0.1:{bound.getsockname()[1]}")
    except ConfigurationError as error:
        print(error)
"""

OWN_RAY = """
import os, signal, sys
import ray
from tests.coordinator.remote_objects import Subject
from torch_distinput.coordinator.engines.ray import RayEngine

engine = RayEngine(actor_options={"num_cpus": 1})
remote = engine.start("worker 0", Subject, restarts=True)
print(remote.call("pid"), flush=True)
if sys.argv[1] == "close":
    engine.close()
    print(ray.is_initialized())
    sys.exit()
os.kill(os.getpid(), signal.SIGKILL)
"""


class TestRay:
    def test_it_says_what_to_install(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "ray", None)
        with pytest.raises(ImportError, match=r"Run pip install 'torch_distinput\[ray\]', or use"):
            RayEngine()

    def test_another_cluster_than_the_one_in_use(self, monkeypatch):
        context = SimpleNamespace(gcs_address="192.0.2.1:6379")
        used = SimpleNamespace(is_initialized=lambda: True, get_runtime_context=lambda: context)
        monkeypatch.setitem(sys.modules, "ray", used)
        with pytest.raises(ConfigurationError, match="got one at 192.0.2.1:6379. Leave"):
            RayEngine("192.0.2.2:6379")

    def test_a_cluster_that_is_not_there(self, ray):
        """Ray would ask for two minutes."""
        printed = output_of([sys.executable, "-c", UNREACHABLE]).strip()
        assert printed.startswith("Expected a Ray cluster at 127.0.0.1:")
        assert "got no connection ([Errno 111] Connection refused). Start one by" in printed

    @pytest.mark.long
    @pytest.mark.parametrize("end", ["close", "kill"])
    def test_a_ray_that_it_has_started_ends_with_it(self, ray, end):
        with (
            tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder,
            subprocess.Popen(
                [sys.executable, "-c", OWN_RAY, end],
                cwd=ROOT,
                env=os.environ | own_machine(folder),
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            ) as script,
        ):
            pid, *rest = script.communicate(timeout=2 * SECONDS)[0].split()
        assert ["False"][: end == "close"] == rest
        wait_until_gone([int(pid)])
        wait_until_gone(of_session(script.pid))
