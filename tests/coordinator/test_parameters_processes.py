"""Servers and workers in processes of their own, on each engine."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch

from tests.coordinator.parameter_workers import Lookup, StepWorker, make_adagrad
from torch_distinput.coordinator.engines.engine import ProcessDiedError
from torch_distinput.coordinator.parameters.create import create_parameters
from torch_distinput.coordinator.parameters.server import ParameterServer
from torch_distinput.errors import ServerLostError

SECONDS = 200
"""A watchdog: a hundred steps on the busiest machine."""


@pytest.fixture(scope="module")
def servers(started):
    return [
        started.start(f"server {number}", ParameterServer, restarts=False) for number in range(2)
    ]


@pytest.fixture(scope="module")
def workers(started):
    return [
        started.start(name, partial(StepWorker, name), restarts=True)
        for name in ("worker 0", "worker 1")
    ]


@pytest.fixture
def pool():
    with ThreadPoolExecutor(4) as made:
        yield made


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
def test_workers_train_as_one_process_would(servers, workers):
    """The gradients come back as dense ones: given to Adagrad as rows, they are the same."""
    parameters = create_parameters(servers, Lookup, make_adagrad)
    module = Lookup()
    module.load_state_dict(parameters.state_dict()["model"])
    optimizer = make_adagrad(list(module.parameters()))
    for step in range(10):
        rows = [step, 99 - step, step]
        gradients = workers[step % 2].call("step", parameters, rows)
        for name, parameter in module.named_parameters():
            one = gradients[name]
            parameter.grad = one.to_sparse(1).coalesce() if name == "table.weight" else one
        optimizer.step()
        pulled = workers[(step + 1) % 2].call("pull", parameters)
        for name, value in module.state_dict().items():
            assert torch.equal(value, pulled[name]), (step, name)
    assert 10 == parameters.stats().num_pushes


@pytest.mark.slow
@pytest.mark.parametrize("bound", [None, 0, 1])
def test_workers_at_the_same_time_keep_to_the_bound(servers, workers, pool, bound):
    parameters = create_parameters(servers, Lookup, make_adagrad, max_staleness=bound)
    calls = [pool.submit(worker.call, "steps", parameters, 50) for worker in workers]
    for call in calls:
        call.result(SECONDS)
    stats = parameters.stats()
    assert 100 == stats.num_pushes == sum(stats.staleness.values())
    assert bound is None or max(stats.staleness) <= bound


def test_a_worker_that_is_killed_holds_nobody_up(started, servers, workers):
    parameters = create_parameters(servers, Lookup, make_adagrad, max_staleness=0)
    with pytest.raises(ProcessDiedError):
        workers[0].call("pull_and_die", parameters)
    parameters.release("worker 0")
    workers[1].call("steps", parameters, 3)
    started.restart(workers[0])
    workers[0].call("steps", parameters, 3)
    assert 6 == parameters.stats().num_pushes


def test_a_server_that_is_killed_is_named_in_every_process(started, workers):
    servers = [
        started.start(f"server {number}", Pidful, restarts=False) for number in range(2)
    ]
    parameters = create_parameters(servers, Lookup, make_adagrad)
    workers[0].call("steps", parameters, 1)
    os.kill(servers[1].call("pid"), signal.SIGKILL)
    for use in (
        parameters.pull,
        parameters.state_dict,
        partial(workers[0].call, "steps", parameters, 1),
        partial(workers[1].call, "steps", parameters, 1),
    ):
        with pytest.raises(ServerLostError, match="server 1 to answer.*restore from a checkpoint"):
            use()


class Pidful:
    """A parameter server that tells its process."""

    def __init__(self):
        self.server = ParameterServer()

    def pid(self):
        return os.getpid()

    def __getattr__(self, name):
        return getattr(self.server, name)
