"""What happens at once: each order is forced, by gates and by looking at who waits."""

from __future__ import annotations

import gc
import os
import signal
import threading

import pytest

import torch_distinput as tdi
from tests.coordinator.simulated_engine import Gate, die
from tests.coordinator.waiting import (
    SECONDS,
    add,
    fail,
    fail_behind,
    hold_once,
    in_thread,
    lose_server,
    make_large,
    pass_through,
)
from torch_distinput.coordinator import ClusterCoordinator, ParameterServerStrategy


class TestJoin:
    def test_it_waits_for_what_runs_when_another_closure_has_failed(
        self, coordinator, waits, pool
    ) -> None:
        gate = Gate("still runs")
        running = coordinator.schedule(pass_through, args=(gate, 1))
        gate.expect()
        joined = in_thread(pool, waits, coordinator.join)
        failed = coordinator.schedule(fail, args=("oh",))
        waits.expect()  # woken by the error, it waits again
        with pytest.raises(ValueError, match="oh"):
            failed.fetch()
        assert not joined.done()
        gate.open()
        with pytest.raises(ValueError, match="oh"):
            joined.result(SECONDS)
        assert 1 == running.fetch()

    def test_close_ends_it(self, coordinator, waits, pool, strategy) -> None:
        gate = Gate("never opened")
        coordinator.schedule(pass_through, args=(gate,))
        joined = in_thread(pool, waits, coordinator.join)
        strategy.close()
        with pytest.raises(tdi.UsageError, match="was closed"):
            joined.result(SECONDS)

    def test_it_waits_for_a_closure_that_is_given_back(self, coordinator, waits, pool) -> None:
        gate, again = Gate("dies"), Gate("again")
        coordinator.schedule(die_once, args=(gate, again))
        gate.expect()
        joined = in_thread(pool, waits, coordinator.join)
        gate.open()
        again.expect()
        assert not joined.done()
        again.open()
        joined.result(SECONDS)

    def test_it_waits_until_servers_know_of_a_death(
        self, coordinator, strategy, waits, pool
    ) -> None:
        """What the dead worker has pushed may still be applied until then."""
        gate, again, slow = Gate("dies slowly"), Gate("at once"), SlowRelease()
        again.open()
        strategy._processes.add_parameters(slow)
        coordinator.schedule(die_once, args=(gate, again))
        gate.expect()
        gate.open()
        assert slow.begun.wait(SECONDS)
        joined = in_thread(pool, waits, coordinator.join)
        assert [] == again.arrivals
        slow.ended.set()
        joined.result(SECONDS)
        assert 1 == len(again.arrivals)

    def test_a_lost_server_ends_it_though_another_closure_runs(
        self, coordinator, waits, pool
    ) -> None:
        gate = Gate("long")
        coordinator.schedule(pass_through, args=(gate,))
        gate.expect()
        joined = in_thread(pool, waits, coordinator.join)
        coordinator.schedule(lose_server)
        with pytest.raises(tdi.ServerLostError):
            joined.result(SECONDS)

    def test_two_that_join_hear_of_one_error_once(self, coordinator, waits, pool) -> None:
        gate = Gate("two")
        coordinator.schedule(fail_behind, args=(gate, "oh"))
        gate.expect()
        joined = [in_thread(pool, waits, coordinator.join) for _ in range(2)]
        gate.open()
        errors = [each.exception(SECONDS) for each in joined]
        assert ["oh"] == [str(error) for error in errors if error is not None]


def die_once(gate, again):
    if gate.is_open:
        again.wait()
        return
    gate.wait()
    die()


class SlowRelease:
    """Parameters whose server still applies a push of the worker that died."""

    def __init__(self) -> None:
        self.begun, self.ended = threading.Event(), threading.Event()

    def release(self, worker) -> None:
        self.begun.set()
        assert self.ended.wait(SECONDS)


class TestFetch:
    @pytest.mark.parametrize("what", ["waiting", "running"])
    def test_close_ends_it(self, coordinator, waits, pool, strategy, what) -> None:
        gate = Gate("fetched")
        values = [coordinator.schedule(pass_through, args=(gate,)) for _ in range(3)]
        gate.expect(2)
        value = values[0 if what == "running" else 2]
        fetched = in_thread(pool, waits, value.fetch)
        strategy.close()
        with pytest.raises(tdi.UsageError, match="was closed"):
            fetched.result(SECONDS)

    def test_two_threads_get_one_value(self, alone, simulated, pool) -> None:
        """The second asks the worker, which has dropped what the first one has fetched."""
        value = alone.schedule(make_large)
        alone.join()
        asks, goes_on = threading.Event(), threading.Event()

        def delay_first(remote, method):
            if method == "fetch" and not asks.is_set():
                asks.set()
                assert goes_on.wait(SECONDS)

        simulated.before = delay_first
        second = pool.submit(value.fetch)
        assert asks.wait(SECONDS)
        first = value.fetch()
        alone.schedule(add, args=(1,)).fetch()  # with it the worker hears that it may drop it
        goes_on.set()
        assert first is second.result(SECONDS)

    def test_the_failure_of_another_ends_it(self, coordinator, waits, pool) -> None:
        gate, other = Gate("one"), Gate("other")
        coordinator.schedule(fail_behind, args=(gate, "oh"))
        coordinator.schedule(pass_through, args=(other,))
        gate.expect()
        other.expect()
        fetched = in_thread(pool, waits, coordinator.schedule(add, args=(1,)).fetch)
        gate.open()
        with pytest.raises(tdi.ClosureCancelledError, match="oh"):
            fetched.result(SECONDS)
        other.open()


class TestGarbage:
    """Collected at any moment, in a thread that may hold the lock of the queue."""

    def test_a_value_is_let_go_under_the_lock(self, coordinator, simulated) -> None:
        value = coordinator.schedule(make_large)
        coordinator.join()
        kept = [r.made[0]._values for r in simulated.objects.values() if r.made]
        assert 1 == sum(map(len, kept))
        with coordinator._queue._lock:
            del value
        while any(kept):
            coordinator.schedule(add, args=(1,)).fetch()

    def test_a_value_that_nobody_has_awaited_is_let_go(self, coordinator, simulated) -> None:
        coordinator.schedule(make_large)
        coordinator.join()
        kept = [r.made[0]._values for r in simulated.objects.values() if r.made]
        while any(kept):
            coordinator.schedule(add, args=(1,)).fetch()

    def test_a_fetched_value_is_let_go_and_stays(self, coordinator, simulated) -> None:
        value = coordinator.schedule(make_large)
        assert 100_000 == len(value.fetch())
        kept = [r.made[0]._values for r in simulated.objects.values() if r.made]
        while any(kept):
            coordinator.schedule(add, args=(1,)).fetch()
        assert 100_000 == len(value.fetch())

    def test_a_value_is_collected_while_its_worker_is_dead(self, coordinator, simulated) -> None:
        values = [coordinator.schedule(make_large) for _ in range(4)]
        coordinator.join()
        for remote in simulated.objects.values():
            remote.kill()
        del values[:2]
        coordinator.fetch([coordinator.schedule(add, args=(i,)) for i in range(4)])
        with coordinator._queue._lock:
            values.clear()
        assert [0, 1] == coordinator.fetch([coordinator.schedule(add, args=(i,)) for i in range(2)])

    def test_a_dataset_is_dropped_under_the_lock(self, coordinator) -> None:
        dataset = coordinator.create_per_worker_dataset([1])
        coordinator.join()
        with coordinator._queue._lock:
            del dataset
        coordinator.join()

    def test_a_strategy_is_dropped_under_the_lock(self, simulated) -> None:
        before = set(threading.enumerate())
        strategy = ParameterServerStrategy(1, 0, simulated, devices=["cpu"])
        queue = ClusterCoordinator(strategy)._queue
        with queue._lock:
            del strategy
            gc.collect()
        for thread in set(threading.enumerate()) - before:
            if "torch_distinput" in thread.name:
                thread.join(SECONDS)
        assert simulated.closed


class TestHold:
    def test_nothing_runs_inside_and_everything_afterwards(self, coordinator) -> None:
        gate = Gate("held")
        gate.is_open = True
        with coordinator._queue.hold():
            values = [coordinator.schedule(pass_through, args=(gate, i)) for i in range(4)]
            assert not coordinator.done()
            assert [] == gate.arrivals
        assert [0, 1, 2, 3] == coordinator.fetch(values)

    def test_it_waits_for_what_runs(self, coordinator, waits, pool) -> None:
        gate = Gate("held up")
        coordinator.schedule(pass_through, args=(gate,))
        gate.expect()
        held = in_thread(pool, waits, lambda: hold_once(coordinator))
        assert not held.done()
        gate.open()
        held.result(SECONDS)
        coordinator.join()

    def test_close_ends_it(self, coordinator, waits, pool, strategy) -> None:
        gate = Gate("held for ever")
        coordinator.schedule(pass_through, args=(gate,))
        gate.expect()
        held = in_thread(pool, waits, lambda: hold_once(coordinator))
        strategy.close()
        with pytest.raises(tdi.UsageError, match="was closed"):
            held.result(SECONDS)

    def test_two_may_hold(self, coordinator) -> None:
        queue = coordinator._queue
        with queue.hold():
            with queue.hold():
                value = coordinator.schedule(add, args=(1,))
            assert not coordinator.done()
        assert 1 == value.fetch()


class TestFaultsOfOurs:
    def test_a_thread_that_fails_leaves_nobody_waiting(self, coordinator, simulated) -> None:
        for remote in simulated.objects.values():
            remote.call = lambda *_: None  # no reply
        with pytest.raises(AttributeError, match="reports"):
            coordinator.schedule(add, args=(1,)).fetch()
        with pytest.raises(AttributeError, match="reports"):
            coordinator.join()


@pytest.mark.parametrize("call", ["schedule", "join", "fetch"])
def test_a_fork_of_the_process_is_refused(coordinator, call) -> None:
    """It has no thread that serves a worker, and would wait for ever. The parent goes on."""
    gate = Gate("forked")
    value = coordinator.schedule(pass_through, args=(gate, 1))
    gate.expect()
    calls = {
        "schedule": lambda: coordinator.schedule(add, args=(1,)),
        "join": coordinator.join,
        "fetch": value.fetch,
    }
    child = os.fork()
    if not child:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SECONDS)
        try:
            calls[call]()
        except tdi.UsageError as error:
            os._exit("a process that it forked" not in str(error))
        os._exit(2)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    gate.open()
    assert 1 == value.fetch()
