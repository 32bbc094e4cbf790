"""Scheduling, joining and fetching, over processes that are pretended."""

from __future__ import annotations

import collections
import importlib
import logging
import pickle
import threading
from importlib.util import find_spec

import numpy as np
import pytest
import torch

import torch_distinput as tdi
from tests.coordinator.simulated_engine import Gate, SimulatedEngine
from tests.coordinator.waiting import SECONDS, add, fail, fail_behind, pass_through
from torch_distinput.coordinator import ClusterCoordinator, ParameterServerStrategy
from torch_distinput.coordinator.engines import pickling


def make_zeros(num_bytes):
    return torch.zeros(num_bytes, dtype=torch.uint8)


def describe_strategy():
    return repr(tdi.get_strategy()), tdi.get_strategy().num_replicas_in_sync


class TestSchedule:
    def test_a_closure_runs_with_its_arguments(self, coordinator) -> None:
        assert 3 == coordinator.schedule(add, args=(1,), kwargs={"b": 2}).fetch()

    def test_each_of_many_closures_runs_once(self, coordinator) -> None:
        values = [coordinator.schedule(add, args=[i]) for i in range(200)]
        coordinator.join()
        assert list(range(200)) == coordinator.fetch(values)
        assert 200 == coordinator.stats().done

    def test_it_returns_while_all_workers_are_busy(self, coordinator) -> None:
        gate = Gate("busy")
        values = [coordinator.schedule(pass_through, args=(gate, i)) for i in range(5)]
        gate.expect(2)
        assert not coordinator.done()
        gate.open()
        assert [0, 1, 2, 3, 4] == coordinator.fetch(values)

    def test_arguments_are_those_of_the_moment(self, coordinator) -> None:
        numbers = [1]
        gate = Gate("moment")
        value = coordinator.schedule(pass_through, args=(gate, numbers))
        numbers.append(2)
        gate.open()
        assert [1] == value.fetch()

    def test_what_cannot_be_pickled_is_an_error_at_once(self, coordinator) -> None:
        with pytest.raises((TypeError, pickle.PicklingError, AttributeError)):
            coordinator.schedule(add, args=(threading.Lock(),))
        assert coordinator.done()

    def test_a_call_in_the_place_of_a_function_is_refused(self, coordinator) -> None:
        with pytest.raises(TypeError, match=r"schedule needs a function, got int"):
            coordinator.schedule(add(1))

    def test_a_single_argument_without_a_tuple_is_refused(self, coordinator) -> None:
        with pytest.raises(TypeError, match=r"args must be a list or tuple, got int"):
            coordinator.schedule(add, args=1)
        with pytest.raises(TypeError, match=r"kwargs must be a dict .* got list"):
            coordinator.schedule(add, kwargs=[1])

    def test_a_function_sees_the_strategy_of_its_worker(self, coordinator) -> None:
        shown, replicas = coordinator.schedule(describe_strategy).fetch()
        assert "MirroredStrategy(worker 0 of 1, devices cpu)" == shown
        assert 1 == replicas

    def test_a_remote_value_is_refused_as_an_argument(self, coordinator) -> None:
        value = coordinator.schedule(add, args=(1,))
        with pytest.raises(tdi.UsageError, match=r"RemoteValue of closure 0 \(add\).*Fetch it"):
            coordinator.schedule(add, args=({"deep": [value]},))

    @pytest.mark.parametrize("what", ["strategy", "coordinator"])
    def test_the_coordinators_own_side_does_not_travel(self, what, request, coordinator) -> None:
        with pytest.raises(TypeError, match=r"belongs to this process"):
            coordinator.schedule(add, args=(request.getfixturevalue(what),))

    def test_what_is_not_there_on_the_worker_is_said(self, coordinator) -> None:
        coordinator.schedule(add, args=(NotThere(),))
        with pytest.raises(
            tdi.ConfigurationError,
            match=r"Expected add and its arguments .* on worker \d, got ValueError: no such module",
        ):
            coordinator.join()


class NotThere:
    """Cannot be unpickled."""

    def __reduce__(self):
        return fail, ("no such module",)


class TestFetch:
    def test_structures_keep_their_form(self, coordinator) -> None:
        Pair = collections.namedtuple("Pair", "a b")
        one, two = (coordinator.schedule(add, args=(i,)) for i in (1, 2))
        found = coordinator.fetch({"x": [one, 5], "y": (two,), "z": Pair(one, "text")})
        assert {"x": [1, 5], "y": (2,), "z": Pair(1, "text")} == found

    @pytest.mark.skipif(
        not (find_spec("cloudpickle") or find_spec("ray")), reason="needs cloudpickle: by value"
    )
    def test_a_value_of_a_class_of_a_script(self, coordinator, monkeypatch) -> None:
        """Classes of a script travel with the function, and back: that class is the same."""
        name = "cloudpickle" if find_spec("cloudpickle") else "ray.cloudpickle"
        monkeypatch.setattr(pickling, "by_value", lambda: importlib.import_module(name))

        class Loss:
            def __init__(self, value):
                self.value = value

        losses = [Loss(torch.full((size,), 2.0)) for size in (3, 100_000)]
        values = [coordinator.schedule(lambda loss: loss, args=(loss,)) for loss in losses]
        for loss, value in zip(losses, coordinator.fetch(values), strict=True):
            assert type(value) is Loss
            assert torch.equal(value.value, loss.value)

    @pytest.mark.parametrize("num_bytes", [10, 1_000_000])
    def test_tensors_arrive_whole(self, coordinator, num_bytes) -> None:
        value = coordinator.schedule(make_zeros, args=(num_bytes,))
        assert torch.equal(torch.zeros(num_bytes, dtype=torch.uint8), value.fetch())
        value.fetch()[0] = 1  # memory of its own, which may be written to
        assert 1 == value.fetch()[0]

    def test_a_small_value_is_there_after_its_worker_is_gone(self, coordinator, simulated) -> None:
        value = coordinator.schedule(make_zeros, args=(60_000,))
        coordinator.join()
        for remote in simulated.objects.values():
            remote.kill()
        assert 60_000 == len(value.fetch())

    def test_a_large_value_is_lost_with_its_worker(self, coordinator, simulated) -> None:
        value = coordinator.schedule(make_zeros, args=(70_000,))
        coordinator.join()
        for remote in simulated.objects.values():
            remote.kill()
        with pytest.raises(tdi.WorkerLostError, match=r"closure 0 \(make_zeros\) in worker \d"):
            value.fetch()

    def test_a_large_value_is_lost_when_its_worker_was_started_again(
        self, coordinator, simulated
    ) -> None:
        value = coordinator.schedule(make_zeros, args=(70_000,))
        coordinator.join()
        for remote in simulated.objects.values():
            remote.made = []
        with pytest.raises(tdi.WorkerLostError, match=r"since then, and was started again"):
            value.fetch()

    def test_a_value_that_cannot_be_pickled_is_an_error_of_its_closure(self, coordinator) -> None:
        value = coordinator.schedule(threading.Lock)
        with pytest.raises(TypeError, match=r"return what can be sent.*got a lock that cannot"):
            coordinator.join()
        with pytest.raises(TypeError, match=r"return what can be sent"):
            value.fetch()


class TestErrors:
    def test_the_original_error_comes_with_its_worker_and_the_lines_there(
        self, coordinator
    ) -> None:
        coordinator.schedule(fail, args=("oh",))
        with pytest.raises(ValueError, match=r"^oh$") as caught:
            coordinator.join()
        assert "closure 0 (fail) on worker" in str(caught.value.__cause__)
        assert "the lines over there" in str(caught.value.__cause__)

    @pytest.mark.parametrize("call", ["schedule", "join", "done", "create"])
    def test_it_surfaces_at_the_next_call_and_is_cleared(self, coordinator, call) -> None:
        with pytest.raises(ValueError, match="oh"):
            coordinator.schedule(fail, args=("oh",)).fetch()
        calls = {
            "schedule": lambda: coordinator.schedule(add, args=(1,)),
            "join": coordinator.join,
            "done": coordinator.done,
            "create": lambda: coordinator.create_per_worker_dataset([1]),
        }
        with pytest.raises(ValueError, match="oh"):
            calls[call]()
        calls[call]()
        coordinator.join()
        assert 3 == coordinator.schedule(add, args=(3,)).fetch()

    def test_it_cancels_what_waits_and_no_more(self, coordinator) -> None:
        gate, other = Gate("first"), Gate("second")
        failed = coordinator.schedule(fail_behind, args=(gate, "oh"))
        running = coordinator.schedule(pass_through, args=(other, 5))
        gate.expect()
        other.expect()
        waiting = [coordinator.schedule(add, args=(i,)) for i in range(3)]
        gate.open()
        for value in waiting:
            with pytest.raises(
                tdi.ClosureCancelledError,
                match=r"closure \d \(add\).*cancelled: closure 0 \(fail_behind\) failed with "
                r"ValueError: oh.*Schedule it again",
            ):
                value.fetch()
        other.open()
        with pytest.raises(ValueError, match="oh"):
            coordinator.join()
        assert 5 == running.fetch()
        with pytest.raises(ValueError, match="oh"):
            failed.fetch()
        stats = coordinator.stats()
        assert (1, 1, 3) == (stats.done, stats.failed, stats.cancelled)

    def test_a_second_error_does_not_cancel_what_was_scheduled_after_the_first(
        self, coordinator, caplog
    ) -> None:
        gate = Gate("late")
        late = coordinator.schedule(fail_behind, args=(gate, "late"))
        gate.expect()
        with pytest.raises(ValueError, match="early"):
            coordinator.schedule(fail, args=("early",)).fetch()
        with pytest.raises(ValueError, match="early"):
            coordinator.done()
        second = Gate("new generation")
        running = coordinator.schedule(pass_through, args=(second, 1))
        waiting = coordinator.schedule(add, args=(2,))
        second.expect()
        with caplog.at_level(logging.WARNING):
            gate.open()
            with pytest.raises(ValueError, match="late"):
                late.fetch()
            second.open()
            coordinator.join()
        assert [1, 2] == coordinator.fetch([running, waiting])
        coordinator.strategy.close()  # the thread says it when nobody waits for it
        assert "closure 0 (fail_behind) failed too" in caplog.text

    def test_an_error_nobody_has_heard_of_is_logged_at_the_end(self, simulated, caplog) -> None:
        with ParameterServerStrategy(1, 0, simulated, devices=["cpu"]) as strategy:
            value = ClusterCoordinator(strategy).schedule(fail, args=("unheard",))
            with pytest.raises(ValueError, match="unheard"):
                value.fetch()
        assert "never raised an error of a closure: ValueError('unheard')" in caplog.text


class TestClosing:
    def test_everything_refuses_afterwards(self, strategy, coordinator) -> None:
        gate = Gate("closing")
        started = coordinator.schedule(pass_through, args=(gate,))
        gate.expect()
        done = coordinator.schedule(add, args=(1,))
        done.fetch()
        waiting = [coordinator.schedule(pass_through, args=(gate,)) for _ in range(2)]
        strategy.close()
        for call in (
            coordinator.join,
            coordinator.done,
            lambda: coordinator.schedule(add, args=(1,)),
            lambda: coordinator.create_per_worker_dataset([1]),
            started.fetch,
            waiting[-1].fetch,
        ):
            with pytest.raises(tdi.UsageError, match=r"got one that was closed"):
                call()
        assert 1 == done.fetch()
        strategy.close()

    def test_no_thread_is_left(self, simulated) -> None:
        before = set(threading.enumerate())
        with ParameterServerStrategy(2, 0, simulated, devices=["cpu"]) as strategy:
            coordinator = ClusterCoordinator(strategy)
            coordinator.schedule(add, args=(1,))
            assert 2 == len(threads_of_workers() - before)
        assert set() == threads_of_workers() - before

    def test_a_strategy_that_is_dropped_ends_its_processes(self, simulated) -> None:
        before = set(threading.enumerate())
        coordinator = ClusterCoordinator(ParameterServerStrategy(1, 0, simulated, devices=["cpu"]))
        coordinator.join()
        (thread,) = threads_of_workers() - before
        del coordinator
        import gc

        gc.collect()
        thread.join(SECONDS)
        assert simulated.closed
        assert not thread.is_alive()


def threads_of_workers():
    """Of all strategies: those of other tests may be about to end."""
    return {thread for thread in threading.enumerate() if "worker" in thread.name}


class TestStrategy:
    def test_a_strategy_has_one_coordinator(self, strategy, coordinator) -> None:
        assert ClusterCoordinator(strategy) is coordinator
        assert coordinator.strategy is strategy

    def test_other_strategies_have_none(self) -> None:
        with pytest.raises(TypeError, match=r"needs a ParameterServerStrategy, got Mirrored"):
            ClusterCoordinator(tdi.MirroredStrategy(["cpu"]))  # type: ignore[arg-type]

    @pytest.mark.parametrize("name", ["run", "distribute_dataset", "scope", "reduce"])
    def test_what_belongs_to_a_worker_says_so(self, strategy, name) -> None:
        with pytest.raises(AttributeError, match=rf"tdi.get_strategy\(\).{name}$"):
            getattr(strategy, name)

    def test_what_does_not_exist_is_said_plainly(self, strategy) -> None:
        with pytest.raises(AttributeError, match=r"has no attribute 'nonsense'$"):
            strategy.nonsense  # noqa: B018

    def test_it_shows_its_numbers(self, strategy) -> None:
        assert "ParameterServerStrategy(2 workers, 0 parameter servers)" == repr(strategy)

    def test_an_unknown_engine_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"'local', 'ray' or an engine, got 'spark'"):
            ParameterServerStrategy(1, 0, "spark")

    def test_a_start_that_fails_ends_what_was_started(self, simulated) -> None:
        def start(name, make, *, restarts):
            if name == "worker 1":
                raise RuntimeError("no room")
            return SimulatedEngine.start(simulated, name, make, restarts=restarts)

        simulated.start = start
        with pytest.raises(RuntimeError, match="no room"):
            ParameterServerStrategy(2, 0, simulated)
        assert simulated.closed


def test_arrays_are_values_too(coordinator) -> None:
    value = coordinator.schedule(np.arange, args=(5,))
    assert [0, 1, 2, 3, 4] == value.fetch().tolist()
