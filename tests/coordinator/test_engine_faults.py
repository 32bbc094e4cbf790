"""Processes that end: before, in and between calls; and those that are started after them."""

from __future__ import annotations

import os
import pickle
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from tests.coordinator.engines import new_engine
from tests.coordinator.processes import SECONDS, named_pipe, wait_until_gone
from tests.coordinator.remote_objects import FailedToMake, KilledInMake, MakeWaits, Subject
from torch_distinput.coordinator.engines import local
from torch_distinput.coordinator.engines.engine import ProcessDiedError
from torch_distinput.coordinator.engines.local import LocalEngine
from torch_distinput.errors import UsageError


@pytest.fixture
def remote(started):
    return started.start("worker 0", Subject, restarts=True)


class TestDeath:
    @pytest.mark.slow
    def test_in_a_call(self, remote):
        with pytest.raises(ProcessDiedError, match="worker 0: "):
            remote.call("kill")

    def test_by_an_exit_in_a_call(self, remote):
        with pytest.raises(ProcessDiedError, match="worker 0: "):
            remote.call("leave")

    def test_between_calls(self, remote):
        os.kill(remote.call("pid"), signal.SIGKILL)
        with pytest.raises(ProcessDiedError, match="worker 0: "):
            remote.call("pid")

    def test_every_later_call_says_so_until_it_is_restarted(self, remote):
        """The object that another process would have lacks what calls did to this one."""
        remote.call("add")
        os.kill(remote.call("pid"), signal.SIGKILL)
        for _ in range(3):
            with pytest.raises(ProcessDiedError):
                remote.call("add")

    def test_of_all_calls_that_are_under_way(self, remote, tmp_path):
        with ThreadPoolExecutor(3) as pool:
            pipes = [named_pipe(tmp_path / str(i)) for i in range(3)]
            calls = [pool.submit(remote.call, "wait", str(pipe)) for pipe in pipes]
            pids = {int(pipe.read_text()) for pipe in pipes}
            os.kill(pids.pop(), signal.SIGKILL)
            assert set() == pids
            assert [ProcessDiedError] * 3 == [type(call.exception(SECONDS)) for call in calls]

    def test_in_make(self, started, tmp_path):
        """The first call waits for it, and is told."""
        pipe = named_pipe(tmp_path / "made")
        remote = started.start("server 0", partial(MakeWaits, str(pipe)), restarts=False)
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(remote.call, "pid")
            os.kill(int(pipe.read_text()), signal.SIGKILL)
            assert isinstance(call.exception(SECONDS), ProcessDiedError)

    def test_of_a_caller_leaves_the_object_it_called(self, started, remote):
        """And that of the object is seen by the caller."""
        other = started.start("server 0", Subject, restarts=False)
        caller = started.start("worker 1", Subject, restarts=False)
        assert 1 == remote.call("ask", other, "add")
        with pytest.raises(ProcessDiedError):
            remote.call("kill")
        assert 2 == caller.call("ask", other, "add")
        os.kill(other.call("pid"), signal.SIGKILL)
        with pytest.raises(ProcessDiedError, match="server 0: "):
            caller.call("ask", other, "add")


class TestRestart:
    def test_it_makes_a_new_object_each_time(self, started, remote):
        pids = set()
        for _ in range(2):
            assert 5 == remote.call("add", 5)
            pids.add(remote.call("pid"))
            with pytest.raises(ProcessDiedError):
                remote.call("kill")
            started.restart(remote)
        assert 1 == remote.call("add", 1)
        assert 2 == len(pids - {remote.call("pid")})

    def test_of_one_that_lives_does_too(self, started, remote):
        before = remote.call("pid")
        remote.call("add", 5)
        started.restart(remote)
        assert 1 == remote.call("add", 1)
        wait_until_gone([before])

    def test_a_copy_in_another_process_reaches_the_new_object(self, started, remote):
        other = started.start("server 0", Subject, restarts=False)
        copy = pickle.loads(pickle.dumps(remote))
        assert remote.call("pid") == other.call("ask", remote, "pid") == copy.call("pid")
        with pytest.raises(ProcessDiedError):
            remote.call("kill")
        started.restart(remote)
        assert remote.call("pid") == other.call("ask", remote, "pid") == copy.call("pid")

    def test_of_a_process_that_dies_again(self, started, tmp_path):
        make = partial(KilledInMake, tmp_path / "was there")
        remote = started.start("worker 0", make, restarts=True)
        os.kill(remote.call("pid"), signal.SIGKILL)
        with pytest.raises(ProcessDiedError, match="worker 0: "):
            started.restart(remote)

    def test_of_one_that_cannot_be_made(self, started):
        remote = started.start("worker 0", FailedToMake, restarts=True)
        with pytest.raises(LookupError, match="nothing to make it of"):
            started.restart(remote)


class TestClose:
    @pytest.fixture
    def closing(self, engine):
        """An engine for one test."""
        made = new_engine(engine)
        yield made
        made.close()

    def test_ends_calls_that_are_under_way(self, closing, tmp_path):
        remote = closing.start("worker 0", Subject, restarts=True)
        pipe = named_pipe(tmp_path / "call")
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(remote.call, "wait", str(pipe))
            pid = int(pipe.read_text())
            closing.close()
            wait_until_gone([pid])
            assert isinstance(call.exception(SECONDS), ProcessDiedError)

    def test_leaves_nothing_to_call_or_start(self, closing):
        remote = closing.start("worker 0", Subject, restarts=True)
        pid = remote.call("pid")
        closing.close()
        closing.close()
        wait_until_gone([pid])
        with pytest.raises(ProcessDiedError, match="worker 0: "):
            remote.call("pid")
        with pytest.raises(ProcessDiedError, match="worker 0: "):
            closing.restart(remote)
        with pytest.raises(UsageError, match="worker 1 .* closed. Make a new"):
            closing.start("worker 1", Subject, restarts=True)

    def test_of_processes_that_have_just_been_started(self, closing, tmp_path):
        """Those that are still making their objects end, too."""
        pipe = named_pipe(tmp_path / "made")
        closing.start("worker 0", partial(MakeWaits, str(pipe)), restarts=True)
        closing.start("worker 1", Subject, restarts=True)
        pid = int(pipe.read_text())
        closing.close()
        wait_until_gone([pid])

    def test_of_one_that_was_killed(self, closing):
        remote = closing.start("worker 0", Subject, restarts=True)
        with pytest.raises(ProcessDiedError):
            remote.call("kill")
        closing.close()

    def test_ends_processes_that_a_process_has_started(self, closing):
        remote = closing.start("worker 0", Subject, restarts=True)
        child = remote.call("start_child")
        closing.close()
        wait_until_gone([child])

    def test_of_none(self, closing):
        closing.close()


def test_a_start_that_fails_for_a_moment_can_be_tried_again(monkeypatch):
    """Such as one for which there were too many open files."""
    engine = LocalEngine(timeout=SECONDS)
    try:
        remote = engine.start("worker 0", Subject, restarts=True)
        remote.call("pid")
        with monkeypatch.context() as patched:
            patched.setattr(local, "ChildProcess", fail_to_start)
            patched.setattr(local, "_PAUSES", (0.0,))
            for _ in range(2):
                with pytest.raises(ProcessDiedError, match="worker 0: could not be started: OSErr"):
                    engine.restart(remote)
        failures = [EOFError(), OSError("too many open files")]
        start = local.ChildProcess

        def fail_twice(*args):
            if failures:
                raise failures.pop()
            return start(*args)

        monkeypatch.setattr(local, "_PAUSES", (0.0, 0.0))
        monkeypatch.setattr(local, "ChildProcess", fail_twice)
        engine.restart(remote)
        assert remote.call("pid") != os.getpid()
        assert [] == failures
    finally:
        engine.close()


def fail_to_start(*_):
    raise OSError("too many open files")
