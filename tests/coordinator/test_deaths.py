"""Workers that die: closures that are given back, workers that are started again or lost."""

from __future__ import annotations

import math
import threading
from collections import Counter

import pytest

import torch_distinput as tdi
from tests.coordinator.simulated_engine import Gate, die, worker_name
from tests.coordinator.waiting import add, die_behind, fail, lose_server, pass_through
from torch_distinput.coordinator import ClusterCoordinator, ParameterServerStrategy
from torch_distinput.coordinator.closures import worker_thread
from torch_distinput.coordinator.engines.engine import ProcessDiedError


def append(numbers, number):
    Log.entries.append(number)


class Log:
    entries: list = []  # noqa: RUF012 - functions on workers write it


def die_the_first_times(name, times):
    """Kill the worker until it has been tried this often; then say which worker this is."""
    gate = Gate.known[name]
    gate.arrive()
    if len(gate.arrivals) <= times:
        die()
    return worker_name()


class TestGivenBack:
    @pytest.mark.parametrize("times", [0, 1, 2])
    def test_a_closure_whose_worker_dies_runs_again(self, coordinator, times) -> None:
        Gate("dying")
        value = coordinator.schedule(die_the_first_times, args=("dying", times))
        others = [coordinator.schedule(add, args=(i,)) for i in range(20)]
        coordinator.join()
        assert "worker" in value.fetch()
        assert list(range(20)) == coordinator.fetch(others)
        stats = coordinator.stats()
        assert (21, times, 0) == (stats.done, stats.given_back, stats.failed)

    def test_it_is_the_next_to_run(self, alone) -> None:
        Log.entries.clear()
        Gate("first")
        gate = Gate("queue")
        alone.schedule(pass_through, args=(gate,))
        alone.schedule(die_the_first_times, args=("first", 1))
        values = [alone.schedule(append, args=(None, i)) for i in range(3)]
        alone.schedule(append, args=(None, "last"))
        gate.open()
        alone.join()
        assert [0, 1, 2, "last"] == Log.entries
        assert 2 == len(Gate.known["first"].arrivals)
        del values

    @pytest.mark.parametrize("moment", ["before", "after"])
    def test_a_death_before_or_after_the_function_gives_it_back_too(
        self, alone, simulated, moment
    ) -> None:
        def kill_second(remote, method):
            if method == "run" and remote.calls["run"] == 2:
                remote.kill()

        setattr(simulated, moment, kill_second)
        values = [alone.schedule(add, args=(i,)) for i in range(4)]
        alone.join()
        assert [0, 1, 2, 3] == alone.fetch(values)
        assert (1, 1) == (alone.stats().given_back, alone.stats().worker_restarts)

    def test_the_third_death_gives_it_up_with_its_history(self, coordinator) -> None:
        poison = coordinator.schedule(die)
        with pytest.raises(
            tdi.WorkerLostError,
            match=r"closure 0 \(die\).*3 times(.|\n)*\n  \d\d:\d\d:\d\d worker \d: killed by"
            r" signal 9\n.*\n.*killed by signal 9(\n|$)",
        ):
            coordinator.join()
        with pytest.raises(tdi.WorkerLostError, match=r"closure 0 \(die\)"):
            poison.fetch()
        assert 1 == coordinator.schedule(add, args=(1,)).fetch()
        assert (1, 2) == (coordinator.stats().failed, coordinator.stats().given_back)

    def test_a_poison_closure_cancels_what_waits(self, alone) -> None:
        gate = Gate("poison")
        alone.schedule(pass_through, args=(gate,))
        alone.schedule(die)
        waiting = alone.schedule(add, args=(1,))
        gate.open()
        with pytest.raises(tdi.WorkerLostError):
            alone.join()
        with pytest.raises(
            tdi.ClosureCancelledError, match=r"closure 1 \(die\) failed with Worker"
        ):
            waiting.fetch()


class TestLost:
    def test_a_worker_that_does_not_start_is_left_to_the_others(
        self, coordinator, simulated
    ) -> None:
        simulated.on_restart = refuse
        simulated.before = lambda remote, method: kill(remote, "worker 1")
        assert [0, 1, 2] == coordinator.fetch(
            [coordinator.schedule(add, args=(i,)) for i in range(3)]
        )
        while not coordinator.stats().lost_workers:
            coordinator.schedule(add, args=(1,)).fetch()
        assert (1,) == coordinator.stats().lost_workers
        coordinator.join()

    def test_without_the_last_one_all_that_wait_get_an_error(self, coordinator, simulated) -> None:
        gate = Gate("hopeless")
        values = [coordinator.schedule(pass_through, args=(gate,)) for _ in range(5)]
        gate.expect(2)
        simulated.on_restart = refuse
        for remote in simulated.objects.values():
            remote.kill()
        for call in (
            coordinator.join,
            coordinator.done,
            lambda: coordinator.schedule(add, args=(1,)),
            *(value.fetch for value in values),
        ):
            with pytest.raises(
                tdi.WorkerLostError,
                match=r"got none: all 2 could not be started(.|\n)*worker 0: no memory(.|\n)*"
                r"worker 1: no memory",
            ):
                call()
        assert (0, 1) == coordinator.stats().lost_workers

    def test_a_restart_may_fail_twice(self, alone, simulated) -> None:
        failures = [ProcessDiedError("worker 0: no memory") for _ in range(2)]

        def fail_first(remote):
            if failures:
                raise failures.pop()

        simulated.on_restart = fail_first
        Gate("twice")
        value = alone.schedule(die_the_first_times, args=("twice", 1))
        assert "worker 0" == value.fetch()

    def test_failures_are_counted_in_a_row(self, alone, simulated) -> None:
        """Two that fail, one that succeeds, two that fail: nobody is lost."""
        failing = iter([True, True, False, True, True, False])

        def fail_some(remote):
            if next(failing):
                raise ProcessDiedError("worker 0: no memory")

        simulated.on_restart = fail_some
        Gate("in a row")
        assert "worker 0" == alone.schedule(die_the_first_times, args=("in a row", 2)).fetch()

    def test_a_worker_that_cannot_be_made_is_lost_with_its_reason(self, simulated) -> None:
        with ParameterServerStrategy(1, 0, simulated, devices=["nonsense"]) as strategy:
            coordinator = ClusterCoordinator(strategy)
            with pytest.raises(tdi.WorkerLostError, match=r"worker 0: could not be made: Runtime"):
                coordinator.schedule(add, args=(1,)).fetch()
                coordinator.join()

    def test_a_dataset_function_that_kills_every_process_loses_the_worker(self, alone) -> None:
        dataset = alone.create_per_worker_dataset(die)
        with pytest.raises(tdi.WorkerLostError, match=r"all 1 could not be started"):
            while True:
                alone.join()
        assert 2 == alone.stats().worker_restarts
        del dataset

    def test_a_death_while_a_dataset_is_made_is_survived(self, alone) -> None:
        Gate("making")
        dataset = alone.create_per_worker_dataset(make_at_second_try)
        assert 7 == alone.schedule(next, args=(iter(dataset),)).fetch()
        assert (1, 0) == (alone.stats().worker_restarts, alone.stats().given_back)
        assert 2 == len(Gate.known["making"].arrivals)


    def test_a_dataset_that_could_not_be_made_again_is_tried_again(self, alone, simulated) -> None:
        Gate("second fails")
        dataset = alone.create_per_worker_dataset(make_unless_second)
        assert 7 == alone.schedule(next, args=(iter(dataset),)).fetch()
        simulated.objects["worker 0"].kill()
        alone.schedule(add, args=(1,))
        with pytest.raises(tdi.SourceError, match="not now"):
            alone.join()
        assert 7 == alone.schedule(next, args=(iter(dataset),)).fetch()


def make_unless_second():
    gate = Gate.known["second fails"]
    gate.arrive()
    if len(gate.arrivals) == 2:
        raise OSError("not now")
    return [7]


def make_at_second_try():
    die_the_first_times("making", 1)
    return [7]


def refuse(remote):
    raise ProcessDiedError(f"{remote.name}: no memory")


def kill(remote, name):
    if remote.name == name:
        remote.kill()


class TestServerLost:
    def test_it_ends_the_job(self, coordinator) -> None:
        gate = Gate("server")
        running = coordinator.schedule(pass_through, args=(gate, 1))
        gate.expect()
        lost = coordinator.schedule(lose_server)
        waiting = [coordinator.schedule(pass_through, args=(gate,)) for _ in range(3)]
        for call in (
            lost.fetch,
            coordinator.join,
            coordinator.join,
            coordinator.done,
            lambda: coordinator.schedule(add, args=(1,)),
            waiting[-1].fetch,
            running.fetch,
        ):
            with pytest.raises(tdi.ServerLostError, match="restore from a checkpoint"):
                call()

    def test_so_it_does_where_a_dataset_is_made(self, alone) -> None:
        dataset = alone.create_per_worker_dataset(lose_server)
        with pytest.raises(tdi.ServerLostError, match="restore from a checkpoint"):
            while True:
                alone.join()
        del dataset


class TestErrorsAndDeaths:
    def test_a_death_after_another_closure_failed_cancels(self, coordinator) -> None:
        """Its worker dies while the queue is cancelled: it does not come back."""
        gate = Gate("dies later")
        dying = coordinator.schedule(die_behind, args=(gate,))
        gate.expect()
        with pytest.raises(ValueError, match="oh"):
            coordinator.schedule(fail, args=("oh",)).fetch()
        gate.open()
        with pytest.raises(tdi.ClosureCancelledError, match=r"closure 1 \(fail\) failed"):
            dying.fetch()
        with pytest.raises(ValueError, match="oh"):
            coordinator.join()
        assert 1 == len(gate.arrivals)

    def test_also_if_the_error_has_been_raised_before(self, coordinator) -> None:
        gate = Gate("dies after")
        dying = coordinator.schedule(die_behind, args=(gate,))
        gate.expect()
        with pytest.raises(ValueError, match="oh"):
            coordinator.schedule(fail, args=("oh",)).fetch()
        with pytest.raises(ValueError, match="oh"):
            coordinator.done()
        value = coordinator.schedule(add, args=(1,))
        gate.open()
        with pytest.raises(tdi.ClosureCancelledError, match=r"closure 1 \(fail\) failed"):
            dying.fetch()
        coordinator.join()
        assert 1 == value.fetch()
        assert 1 == len(gate.arrivals)

    def test_a_worker_that_dies_after_an_error_is_started_again(self, alone, simulated) -> None:
        """The error is known, what its closure took is not."""
        dataset = alone.create_per_worker_dataset([1, 2, 3])
        simulated.before = lambda remote, method: method == "take_reports" and remote.kill()
        alone.schedule(take_and_fail, args=(iter(dataset),))
        with pytest.raises(ValueError, match="after 1"):
            alone.join()
        assert 1 == alone.schedule(add, args=(1,)).fetch()
        visits = dataset.visits()
        assert (0, 1, {}) == (visits.num_closures, visits.num_lost, visits.counts)


def take_and_fail(iterator):
    raise ValueError(f"after {next(iterator)}")


def test_deaths_at_every_call_lose_nothing(simulated, monkeypatch) -> None:
    """Whichever calls of a worker end in its death, each closure returns its value."""
    # Else a worker that waited for a core would be asked, and die, before its closure is called.
    monkeypatch.setattr(worker_thread, "_IDLE_SECONDS", math.inf)
    num_calls, lock = 0, threading.Lock()
    deaths: Counter = Counter()

    def kill_every_seventh(remote, method):
        nonlocal num_calls
        with lock:
            num_calls += 1
            this = remote.request.number if method == "run" else None
            if num_calls % 7 == 0 and (this is None or deaths[this] < 2):
                deaths[this] += 1
                remote.kill()

    simulated.before = simulated.after = kill_every_seventh
    with ParameterServerStrategy(3, 0, simulated, devices=["cpu"]) as strategy:
        coordinator = ClusterCoordinator(strategy)
        values = [coordinator.schedule(add, args=(i,)) for i in range(300)]
        coordinator.join()
        assert list(range(300)) == coordinator.fetch(values)
        assert coordinator.stats().given_back == sum(deaths.values()) - deaths[None] > 10


class TestIdle:
    """A worker that dies while it has nothing to do is not killed by the closure that comes."""

    @pytest.fixture(autouse=True)
    def ask_at_once(self, monkeypatch):
        monkeypatch.setattr(worker_thread, "_IDLE_SECONDS", -1.0)

    def test_the_closure_is_given_back_without_a_death(self, alone, simulated) -> None:
        assert 1 == alone.schedule(add, args=(1,)).fetch()
        for _ in range(3):  # as often as a closure may kill
            simulated.objects["worker 0"].kill()
            assert 2 == alone.schedule(add, args=(2,)).fetch()
        assert (3, 3) == (alone.stats().given_back, alone.stats().worker_restarts)

    def test_it_may_die_three_times_with_the_same_closure(self, alone, simulated) -> None:
        assert 1 == alone.schedule(add, args=(1,)).fetch()
        kills = iter(range(3))
        simulated.before = lambda remote, method: kill_at_start(remote, method, kills)
        assert 2 == alone.schedule(add, args=(2,)).fetch()
        assert (3, 0) == (alone.stats().worker_restarts, alone.stats().failed)


def kill_at_start(remote, method, kills):
    if method == "start" and next(kills, None) is not None:
        remote.kill()
