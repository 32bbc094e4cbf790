"""Workers and servers that die, optimizers that raise: nothing half applied, nobody waits."""

from __future__ import annotations

import pickle
import threading

import pytest
import torch
from torch import nn, optim

from tests.coordinator.in_process import InProcess, PlayedWorker, as_caller, forget_all, start
from torch_distinput.coordinator.parameters import parameters as parameters_module
from torch_distinput.coordinator.parameters.server import ParameterServer
from torch_distinput.errors import ServerLostError, UsageError


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 2)
        self.fc = nn.Linear(2, 1)


def make_adam(parameters):
    return optim.Adam(parameters, lr=0.1)


@pytest.fixture(autouse=True)
def _alone():
    forget_all()


def ones(module):
    return {name: torch.ones_like(one) for name, one in module.named_parameters()}


class DiedError(BaseException):
    """Stands for the end of a worker's process."""


class Trap:
    """A remote object that the worker dies before it calls, once."""

    def __init__(self, remote, method):
        self.remote, self.name, self.method = remote, remote.name, method

    def call(self, method, *args):
        if method == self.method:
            raise DiedError
        return self.remote.call(method, *args)


@pytest.mark.parametrize("max_staleness", [None, 0])
@pytest.mark.parametrize(("number", "method"), [(0, "stage"), (1, "stage"), (0, "commit")])
def test_a_push_of_a_worker_that_dies_is_applied_on_all_servers_or_on_none(
    number, method, max_staleness
):
    parameters, servers = start(2, Model, make_adam, max_staleness=max_staleness)
    before = parameters.state_dict()
    worker = PlayedWorker(parameters, "worker 0")
    module = worker.pull()
    client = parameters_module._clients[parameters._connection.key, worker.caller]
    remotes = list(servers)
    remotes[number] = Trap(servers[number], method)
    client._fan_out._remotes = tuple(remotes)
    with pytest.raises(DiedError):
        worker.push(ones(module))
    parameters.release("worker 0")
    again = PlayedWorker(parameters, "worker 0", nonce="second")
    for name, value in again.pull().state_dict().items():
        assert torch.equal(before["model"][name], value)
    again.push(ones(module))
    steps = {int(one["step"]) for one in parameters.state_dict()["optimizer"]["state"].values()}
    assert {1} == steps
    assert [{}, {}] == [next(iter(one.object._served.values())).staged for one in servers]


def test_a_worker_that_is_not_released_is_by_the_process_that_replaces_it():
    parameters, _ = start(2, Model, make_adam, max_staleness=0)
    PlayedWorker(parameters, "worker 0").pull()
    PlayedWorker(parameters, "worker 0", nonce="second").pull()


def test_a_closure_that_ends_without_push_holds_nobody_up():
    parameters, _ = start(2, Model, make_adam, max_staleness=0)
    one = PlayedWorker(parameters, "worker 0")
    one.pull()
    with as_caller(one.caller):
        parameters_module.release_all()
    PlayedWorker(parameters, "worker 1").pull()
    with pytest.raises(UsageError, match="pull before each push"):
        one.push(ones(Model()))


def test_a_pull_that_fails_halfway_holds_nobody_up(monkeypatch):
    """Server 0 has let it in, server 1 raises."""
    parameters, servers = start(2, Model, make_adam, max_staleness=0)
    pull = ParameterServer.pull

    def fail(server, *args):
        if server is servers[1].object:
            raise ZeroDivisionError
        return pull(server, *args)

    one = PlayedWorker(parameters, "worker 0")
    monkeypatch.setattr(ParameterServer, "pull", fail)
    with pytest.raises(ZeroDivisionError):
        one.pull()
    monkeypatch.undo()
    with as_caller(one.caller):
        parameters_module.release_all()
    PlayedWorker(parameters, "worker 1").pull()


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(
    "use",
    [
        lambda worker, parameters: worker.pull(),
        lambda worker, parameters: worker.push(ones(Model())),
        lambda worker, parameters: parameters.state_dict(),
        lambda worker, parameters: parameters.load_state_dict(STATE),
    ],
)
def test_a_server_that_died_ends_everything_in_any_process(number, use):
    parameters, servers = start(2, Model, make_adam)
    STATE.update(parameters.state_dict())
    worker = PlayedWorker(parameters, "worker 0")
    worker.pull()
    servers[number].kill()
    for _ in range(2):
        with pytest.raises(
            ServerLostError, match=f"server {number} to answer.*signal 9.*restore from a checkpoint"
        ):
            use(worker, parameters)


STATE: dict = {}


def test_a_server_that_dies_while_another_commits_is_named_to_the_worker():
    parameters, servers = start(2, Model, make_adam)
    worker = PlayedWorker(parameters, "worker 0")
    module = worker.pull()
    apply = ParameterServer.apply

    def die(server, *args):
        apply(server, *args)
        if server is servers[1].object:
            servers[1].kill()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ParameterServer, "apply", die)
        with pytest.raises(ServerLostError, match="server 1 to answer"):
            worker.push(ones(module))
    with pytest.raises(ServerLostError, match="server 1 to answer"):
        PlayedWorker(parameters, "worker 1").pull()


class Failing(optim.SGD):
    """Raises at its second step where it has more than one dimension."""

    num_steps = 0

    def step(self, closure=None):
        self.num_steps += 1
        if self.num_steps == 2 and len(self.param_groups[0]["params"]) > 1:
            raise ZeroDivisionError("second step")
        return super().step(closure)


def make_failing(parameters):
    return Failing(parameters, lr=0.1)


def test_an_optimizer_that_raises_ends_the_training_until_a_state_is_loaded():
    parameters, _ = start(2, Model, make_failing)
    worker = PlayedWorker(parameters, "worker 0")
    state = parameters.state_dict()
    worker.push(ones(worker.pull()))
    module = worker.pull()
    with pytest.raises(ZeroDivisionError, match="second step"):
        worker.push(ones(module))
    with pytest.raises(UsageError, match="ZeroDivisionError: second step.*restore from"):
        worker.pull()
    with pytest.raises(UsageError, match="ZeroDivisionError: second step.*restore from"):
        parameters.state_dict()
    parameters.load_state_dict(state)
    for name, value in worker.pull().state_dict().items():
        assert torch.equal(state["model"][name], value)


def test_the_coordinators_pause_is_around_a_state():
    parameters, _ = start(1, Model, make_adam)
    held = threading.Lock()
    parameters.pause = lambda: held
    with pytest.MonkeyPatch.context() as patch:
        seen = []
        call = InProcess.call
        patch.setattr(
            InProcess, "call", lambda *args: seen.append(held.locked()) or call(*args)
        )
        parameters.load_state_dict(parameters.state_dict())
    assert {True} == set(seen)
    assert not held.locked()


def test_states_are_cuts_between_two_pushes_while_workers_push():
    """All parameters have taken the same number of steps, and the model fits them."""
    parameters, _ = start(3, Model, make_sgd)
    begin = parameters.state_dict()["model"]
    workers = [PlayedWorker(parameters, f"worker {number}") for number in range(3)]
    stop = threading.Event()

    def work(worker):
        while not stop.is_set():
            worker.push(ones(worker.pull()))

    working = [threading.Thread(target=work, args=(worker,)) for worker in workers]
    for thread in working:
        thread.start()
    try:
        for _ in range(30):
            model = parameters.state_dict()["model"]
            steps = {int((begin[key] - model[key]).mean().round()) for key in model}
            assert 1 == len(steps)
    finally:
        stop.set()
        for thread in working:
            thread.join(60)
    assert parameters.stats().num_pushes > 0


def make_sgd(parameters):
    return optim.SGD(parameters, lr=1.0)


def test_a_pickled_handle_has_no_module_in_it():
    parameters, _ = start(1, Model, make_adam)
    parameters.pause = threading.Lock  # of this process
    assert len(pickle.dumps(parameters)) < 1000


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("method", ["hold", "state", "resume"])
def test_ctrl_c_in_state_dict_holds_nobody_up(method, moment):
    parameters, _ = start(2, Model, make_adam)
    interrupt_once(parameters, method, moment)
    with pytest.raises(KeyboardInterrupt):
        parameters.state_dict()
    worker = PlayedWorker(parameters, "worker 0")
    worker.push(ones(worker.pull()))
    assert 1 == parameters.stats().num_pushes
    parameters.state_dict()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_state_that_is_loaded_in_part_is_used_by_nobody(moment):
    parameters, _ = start(2, Model, make_adam)
    state = parameters.state_dict()
    interrupt_once(parameters, "load", moment)
    with pytest.raises(KeyboardInterrupt):
        parameters.load_state_dict(state)
    for call in (parameters.pull, parameters.state_dict):
        with pytest.raises(UsageError, match=r"not finished.*\(load_state_dict\)"):
            call()
    parameters.load_state_dict(state)
    parameters.push(ones(parameters.pull()))


def interrupt_once(parameters, method, moment):
    """Ctrl-C around the next call of server 0 by this process."""
    remotes = parameters._client()._fan_out._remotes
    interrupted = Interrupted(remotes[0], method, moment)
    parameters._client()._fan_out._remotes = (interrupted, *remotes[1:])


class Interrupted:
    """A remote object whose caller hears Ctrl-C once, before or after one of its methods."""

    def __init__(self, remote, method, moment):
        self.remote, self.name, self.method, self.moment = remote, remote.name, method, moment

    def call(self, method, *args):
        is_hit = method == self.method
        if is_hit:
            self.method = ""
        if is_hit and self.moment == "before":
            raise KeyboardInterrupt
        result = self.remote.call(method, *args)
        if is_hit:
            raise KeyboardInterrupt
        return result
