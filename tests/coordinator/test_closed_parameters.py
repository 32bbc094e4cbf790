"""Parameters that were closed: nobody keeps them, nobody waits for them."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

import torch_distinput as tdi
from tests.coordinator.in_process import PlayedWorker, forget_all, start
from tests.coordinator.simulated_engine import Gate, die
from tests.coordinator.test_staleness import Later, until_waiting
from tests.coordinator.waiting import add
from torch_distinput.coordinator import ClusterCoordinator, ParameterServerStrategy
from torch_distinput.coordinator.parameters import parameters as parameters_module


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 2)
        self.fc = nn.Linear(2, 1)


def make_sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def train_step(parameters):
    module = parameters.pull()
    module.fc(module.table(torch.tensor([1]))).sum().backward()
    parameters.push()


def close(parameters):
    parameters.close()


@pytest.fixture(autouse=True)
def _alone():
    forget_all()


def test_servers_and_workers_let_go_of_them(simulated):
    with ParameterServerStrategy(1, 2, simulated, devices=["cpu"]) as strategy:
        coordinator = ClusterCoordinator(strategy)
        parameters = strategy.create_parameters(Model, make_sgd, max_staleness=0)
        kept = strategy.create_parameters(Model, make_sgd)
        for one in (parameters, kept):
            coordinator.schedule(train_step, args=(one,)).fetch()
        first, _ = parameters_module._clients.values()
        copy = weakref.ref(first._local.module)
        del first
        parameters.close()
        parameters.close()
        servers = [simulated.objects[f"server {i}"].made[0] for i in range(2)]
        assert [1, 1] == [len(server._served) for server in servers]
        assert [] == servers[0]._gates.bounded
        coordinator.schedule(add, args=(1,)).fetch()
        gc.collect()
        assert copy() is None
        coordinator.schedule(train_step, args=(kept,)).fetch()
        assert 2 == kept.stats().num_pushes


def test_whoever_uses_them_afterwards_is_told(simulated):
    with ParameterServerStrategy(1, 1, simulated, devices=["cpu"]) as strategy:
        coordinator = ClusterCoordinator(strategy)
        parameters = strategy.create_parameters(Model, make_sgd)
        parameters.close()
        calls = (parameters.pull, parameters.push, parameters.stats, parameters.state_dict)
        for call in calls:
            with pytest.raises(tdi.UsageError, match="got some that were closed"):
                call()
        with pytest.raises(tdi.UsageError, match="before they are closed"):
            coordinator.schedule(train_step, args=(parameters,)).fetch()


def test_a_worker_that_dies_later_is_still_survived(simulated):
    with ParameterServerStrategy(1, 1, simulated, devices=["cpu"]) as strategy:
        coordinator = ClusterCoordinator(strategy)
        strategy.create_parameters(Model, make_sgd).close()
        coordinator.schedule(add, args=(1,)).fetch()
        simulated.objects["worker 0"].kill()
        assert 2 == coordinator.schedule(add, args=(2,)).fetch()


def test_they_may_be_closed_while_servers_are_told_of_a_death(simulated):
    with ParameterServerStrategy(1, 1, simulated, devices=["cpu"]) as strategy:
        coordinator = ClusterCoordinator(strategy)
        first, second = (strategy.create_parameters(Model, make_sgd) for _ in range(2))

        def close_second(_, method):
            if method == "release":
                simulated.before = lambda *_: None
                second.close()

        coordinator.schedule(add, args=(1,)).fetch()
        simulated.before = close_second
        assert "done" == coordinator.schedule(die_once, args=(Gate("closed"),)).fetch()
        coordinator.schedule(train_step, args=(first,)).fetch()
        assert 1 == first.stats().num_pushes


def die_once(gate):
    gate.arrive()
    if len(gate.arrivals) == 1:
        die()
    return "done"


def test_a_worker_may_not_close_them(simulated):
    with ParameterServerStrategy(1, 1, simulated, devices=["cpu"]) as strategy:
        parameters = strategy.create_parameters(Model, make_sgd)
        with pytest.raises(tdi.UsageError, match="Call it on the coordinator"):
            ClusterCoordinator(strategy).schedule(close, args=(parameters,)).fetch()


def test_a_pull_that_waits_is_refused():
    parameters, servers = start(1, Model, make_sgd, max_staleness=0)
    PlayedWorker(parameters, "worker 0").pull()
    waiting = Later(PlayedWorker(parameters, "worker 1").pull)
    until_waiting(next(iter(servers[0].object._chiefs.values())).gate)
    parameters.close()
    with pytest.raises(tdi.UsageError, match="closed while a closure used them"):
        waiting.result()


def test_they_may_be_closed_though_a_server_is_lost():
    parameters, servers = start(2, Model, make_sgd)
    servers[1].kill()
    parameters.close()
    assert {} == servers[0].object._served
