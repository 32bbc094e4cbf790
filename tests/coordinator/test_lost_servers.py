"""A server that is lost ends the job for everybody, in whichever order it is found out."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

import torch_distinput as tdi
from tests.coordinator.simulated_engine import Gate, die
from tests.coordinator.waiting import SECONDS, add
from torch_distinput.coordinator import ClusterCoordinator, ParameterServerStrategy
from torch_distinput.coordinator.engines.engine import ProcessDiedError


class DyingSGD(torch.optim.SGD):
    """Ends its process, the server's, at the second step."""

    num_steps = 0

    def step(self, closure=None):
        self.num_steps += 1
        if self.num_steps == 2:
            die()
        return super().step(closure)


def make_model():
    return nn.Linear(2, 1)


def make_sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def make_dying(parameters):
    return DyingSGD(parameters, lr=0.1)


def train_step(parameters):
    parameters.pull()(torch.ones(1, 2)).sum().backward()
    parameters.push()


def ask_behind(gate, parameters):
    gate.wait()
    parameters.stats()


def state_of(parameters):
    return parameters.state_dict()


def load(parameters):
    parameters.load_state_dict({})


def assert_all_raise(coordinator, parameters, values=()):
    """Twice, as it stays so."""
    calls = [
        *(coordinator.join, coordinator.done, lambda: coordinator.schedule(add, args=(1,))),
        *(parameters.pull, parameters.push, parameters.stats),
        *(lambda: state_of(parameters), lambda: load(parameters)),
        *(value.fetch for value in values),
    ]
    for number, call in enumerate(2 * calls):
        with pytest.raises(tdi.ServerLostError, match="restore from a checkpoint"):
            pytest.fail(f"call {number} returned {call()}")


def test_one_that_dies_in_a_push_does(simulated):
    with ParameterServerStrategy(1, 1, simulated, devices=["cpu"]) as strategy:
        coordinator = ClusterCoordinator(strategy)
        parameters = strategy.create_parameters(make_model, make_dying)
        done = coordinator.schedule(train_step, args=(parameters,))
        values = [coordinator.schedule(train_step, args=(parameters,)) for _ in range(3)]
        with pytest.raises(tdi.ServerLostError):
            coordinator.join()
        assert done.fetch() is None
        assert_all_raise(coordinator, parameters, values)


def test_one_that_a_worker_cannot_reach_does_though_it_answers_others(simulated):
    """A network can do that: whether the push was applied, nobody knows."""

    def lose_commit(remote, method):
        if method == "commit":
            raise ProcessDiedError(f"{remote.name}: is temporarily unavailable")

    with ParameterServerStrategy(1, 1, simulated, devices=["cpu"]) as strategy:
        coordinator = ClusterCoordinator(strategy)
        parameters = strategy.create_parameters(make_model, make_sgd)
        parameters.pull()
        simulated.before = lose_commit
        coordinator.schedule(train_step, args=(parameters,))
        with pytest.raises(tdi.ServerLostError):
            coordinator.join()
        assert_all_raise(coordinator, parameters)


def test_calls_that_begin_while_it_is_found_out_raise_too(simulated, pool):
    """The error has left the worker, and the coordinator does not know of it yet."""
    found, told, gate = threading.Event(), threading.Event(), Gate("asks")
    with ParameterServerStrategy(2, 1, simulated, devices=["cpu"]) as strategy:
        coordinator = ClusterCoordinator(strategy)
        parameters = strategy.create_parameters(make_model, make_sgd)
        asking = coordinator.schedule(ask_behind, args=(gate, parameters))
        gate.expect()

        def hold_error(remote, method):  # the call after a closure that raised
            if method == "take_reports":
                found.set()
                assert told.wait(SECONDS)

        simulated.before = hold_error
        simulated.objects["server 0"].kill()
        lost = coordinator.schedule(train_step, args=(parameters,))
        assert found.wait(SECONDS)
        late = coordinator.schedule(train_step, args=(parameters,))
        joined = pool.submit(coordinator.join)
        assert not coordinator.done()
        with pytest.raises(tdi.ServerLostError):
            parameters.pull()
        gate.open()
        told.set()
        with pytest.raises(tdi.ServerLostError):
            joined.result(SECONDS)
        assert_all_raise(coordinator, parameters, [asking, lost, late])


def test_an_open_job_is_not_ended_by_a_pull_of_the_coordinator(simulated):
    with ParameterServerStrategy(1, 1, simulated, devices=["cpu"]) as strategy:
        coordinator = ClusterCoordinator(strategy)
        parameters = strategy.create_parameters(make_model, make_sgd)
        simulated.objects["server 0"].kill()
        with pytest.raises(tdi.ServerLostError):
            parameters.pull()
        assert 1 == coordinator.schedule(add, args=(1,)).fetch()


def test_without_workers_parameters_can_still_be_saved(simulated):
    with ParameterServerStrategy(1, 1, simulated, devices=["cpu"]) as strategy:
        coordinator = ClusterCoordinator(strategy)
        parameters = strategy.create_parameters(make_model, make_sgd)

        def refuse(remote):
            raise ProcessDiedError(f"{remote.name}: no memory")

        simulated.on_restart = refuse
        coordinator.schedule(die)
        with pytest.raises(tdi.WorkerLostError):
            coordinator.join()
        assert "model" in parameters.state_dict()
        assert parameters.pull() is parameters.pull()


def test_after_close_parameters_say_that(simulated):
    with ParameterServerStrategy(1, 1, simulated, devices=["cpu"]) as strategy:
        parameters = strategy.create_parameters(make_model, make_sgd)
    for call in (parameters.pull, parameters.push, parameters.stats, parameters.state_dict):
        with pytest.raises(tdi.UsageError, match="was closed"):
            call()


def test_servers_take_a_call_of_each_worker_and_more(simulated):
    """All may wait there for the push of one, which has to come in, too."""
    with ParameterServerStrategy(300, 2, simulated, devices=["cpu"]):
        assert {616} == {simulated.objects[f"server {i}"].num_calls for i in range(2)}
