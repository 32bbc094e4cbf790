"""run_ranks: results, failures, deaths and hangs of real processes, and what stays behind: nothing.

A distributed operation that has to be there and is not (a peer that never comes) is what makes a
rank hang here; nothing sleeps.
"""

from __future__ import annotations

import functools
import os
import random
import sys
import threading
from pathlib import Path

import pytest

from tests.testing.rank_functions import (
    circumstances,
    hang_on_worker_1,
    hang_when_leaving,
    kill_self,
    load,
    on_worker,
    pid,
    place,
    raise_odd_error,
    raise_value_error,
    total,
    train,
    unpicklable,
    wait_for_nothing,
)
from torch_distinput.testing.ranks import RankError, run_ranks, run_ranks_outcomes


class TestResults:
    def test_in_worker_order(self) -> None:
        """Each worker's result, whichever came first."""
        assert run_ranks(place, 3) == [(0, 3, 1), (1, 3, 1), (2, 3, 1)]

    def test_one_worker(self) -> None:
        """A single worker is a group too."""
        assert run_ranks(place, 1, replicas_per_worker=2) == [(0, 1, 2)]

    def test_tensors_and_partial(self) -> None:
        """The group reduces, a partial carries arguments, and tensors come back."""
        results = run_ranks(functools.partial(total, scale=2.0), 2)

        assert [result.tolist() for result in results] == [[6.0, 6.0]] * 2

    def test_processes_are_used_again(self) -> None:
        """A job costs no new process."""
        assert run_ranks(pid, 2) == run_ranks(pid, 2)

    def test_circumstances_are_the_callers(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """Environment and directory of the call; seeds by rank; one thread."""
        monkeypatch.setenv("MARK", "seen")
        monkeypatch.chdir(tmp_path)

        first, second = run_ranks(circumstances, 2), run_ranks(circumstances, 2)

        assert first == second
        drawn = [random.Random(rank).random() for rank in (0, 1)]
        assert first == [("seen", str(tmp_path), value, 1) for value in drawn]

    def test_models_end_before_the_group(self) -> None:
        """DistributedDataParallel modules left as locals do not hang the end of a job."""
        for _ in range(5):
            assert run_ranks(train, 2) == [[1.5, 1.5]] * 2

    def test_loader_processes(self) -> None:
        """A rank may start loader processes."""
        assert run_ranks(load, 2) == [[3, 12]] * 2


class TestFailures:
    def test_error_names_worker_and_keeps_type(self) -> None:
        """The first error is raised with its worker; the original is the cause."""
        with pytest.raises(RankError, match="^worker 1 of 2 raised ValueError: one .* many") as got:
            run_ranks(functools.partial(on_worker, 1, raise_value_error), 2)

        assert got.value.worker == 1
        assert got.value.exitcode is None
        assert isinstance(got.value.__cause__, ValueError)
        assert "in raise_value_error" in got.value.remote_traceback
        # What the peers then say is said second.
        assert "\nthen worker 0 of 2 raised RuntimeError: " in str(got.value)

    def test_error_that_does_not_pickle(self) -> None:
        """Type and text of an exception that does not pickle are still told."""
        with pytest.raises(RankError, match="worker 0 of 2 raised .*OddError: 3: just so") as got:
            run_ranks(functools.partial(on_worker, 0, raise_odd_error), 2)

        assert got.value.__cause__ is None

    def test_result_that_does_not_pickle(self) -> None:
        """A result that cannot be sent is that worker's error."""
        with pytest.raises(RankError, match="worker . of 2 raised TypeError: .*pickle"):
            run_ranks(unpicklable, 2)

    def test_killed_rank(self) -> None:
        """A rank that is killed is dead with its exit code; the other one tells what it saw."""
        alive, dead = run_ranks_outcomes(functools.partial(on_worker, 1, kill_self), 2)

        assert isinstance(alive.error, RuntimeError)
        assert not isinstance(alive.error, RankError)
        assert (alive.worker, alive.exitcode, alive.late) == (0, None, False)
        assert isinstance(dead.error, RankError)
        assert (dead.worker, dead.exitcode, dead.late) == (1, -9, False)
        assert "worker 1 of 2 died with exit code -9 (SIGKILL)" in str(dead.error)

    def test_killed_rank_is_to_blame(self) -> None:
        """run_ranks raises for the dead rank, not for those that noticed."""
        with pytest.raises(RankError, match="^worker 1 of 2 died") as got:
            run_ranks(functools.partial(on_worker, 1, kill_self), 2)

        assert (got.value.worker, got.value.exitcode) == (1, -9)

    def test_exit(self) -> None:
        """sys.exit() ends the rank as it would end a script."""
        with pytest.raises(RankError, match="worker 0 of 1 died with exit code 3 ") as got:
            run_ranks(functools.partial(on_worker, 0, functools.partial(sys.exit, 3)), 1)

        assert got.value.exitcode == 3

    def test_fatal_signal_leaves_the_stack(self) -> None:
        """A crash in native code tells where it was."""
        with pytest.raises(
            RankError, match="SIGABRT.*\n.*\n.*\nFatal Python error: Aborted"
        ) as got:
            run_ranks(functools.partial(on_worker, 0, os.abort), 1)

        assert "in on_worker" in got.value.remote_traceback

    def test_results_of_the_others(self) -> None:
        """Who does not depend on the dead one still answers."""
        outcomes = run_ranks_outcomes(exit_on_worker_0, 3)

        assert [(one.result, one.exitcode) for one in outcomes] == [(None, 7), (1, None), (2, None)]


def exit_on_worker_0(strategy) -> int:
    if strategy.worker_index == 0:
        os._exit(7)
    return strategy.worker_index


class TestHangs:
    @pytest.mark.slow
    def test_late_rank_is_named(self) -> None:
        """When the time is up, the ranks that have not answered are named, with their stacks."""
        with pytest.raises(TimeoutError, match="^worker 1 of 2 had not answered after 4 s") as got:
            run_ranks(hang_on_worker_1, 2, timeout=4)

        assert "in wait_for_nothing" in str(got.value)
        assert "worker 0" not in str(got.value)

    @pytest.mark.slow
    def test_all_late(self) -> None:
        """A rank that waits for a late one is late too."""
        with pytest.raises(TimeoutError, match=r"worker 0 of 2(.|\n)*worker 1 of 2"):
            run_ranks(functools.partial(on_worker, 1, wait_for_nothing), 2, timeout=1)

    @pytest.mark.slow
    def test_outcomes_of_a_late_rank(self) -> None:
        """The others' results are there."""
        quick, late = run_ranks_outcomes(hang_on_worker_1, 2, timeout=4)

        assert (quick.result, quick.error, quick.late) == (0, None, False)
        assert (late.result, late.exitcode, late.late) == (None, None, True)
        assert isinstance(late.error, TimeoutError)

    @pytest.mark.slow
    def test_error_is_told_before_a_hang(self) -> None:
        """The rank that failed is to blame, not those that then wait for it."""
        with pytest.raises(RankError, match="^worker 0 of 2 raised ValueError.*\nthen worker 1 of"):
            run_ranks(fail_or_hang, 2, timeout=4)

    @pytest.mark.slow
    def test_hang_when_leaving(self) -> None:
        """The watchdog covers the end of the group too."""
        with pytest.raises(TimeoutError, match="in __del__"):
            run_ranks(hang_when_leaving, 1, timeout=3)


def fail_or_hang(strategy) -> None:
    if strategy.worker_index == 0:
        raise_value_error()
    wait_for_nothing()


class TestArguments:
    @pytest.mark.parametrize("num_workers", [0, -1])
    def test_num_workers(self, num_workers: int) -> None:
        with pytest.raises(ValueError, match=f"num_workers must be at least 1, got {num_workers}"):
            run_ranks(place, num_workers)

    def test_replicas(self) -> None:
        with pytest.raises(ValueError, match="replicas_per_worker must be at least 1, got 0"):
            run_ranks(place, 1, replicas_per_worker=0)

    def test_timeout(self) -> None:
        with pytest.raises(ValueError, match="timeout must be more than 0 seconds, got 0"):
            run_ranks(place, 1, timeout=0)

    def test_fn_is_sent_by_reference(self) -> None:
        """A function that other processes cannot find is refused before anything runs."""

        def local(strategy) -> None: ...

        for fn in (local, lambda strategy: None, functools.partial(print, threading.Lock())):
            with pytest.raises(TypeError, match="at the level of a module, or a functools.partial"):
                run_ranks(fn, 1)

    def test_fn_is_not_found_by_the_ranks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A function that only this process has is refused with the reason."""
        monkeypatch.setattr(sys.modules[__name__], "made_elsewhere", made_here, raising=False)

        with pytest.raises(RankError, match="worker 0 could not load fn, which has to be in a mod"):
            run_ranks(made_here, 1)


def made_here(strategy) -> None: ...


made_here.__qualname__ = made_here.__name__ = "made_elsewhere"
