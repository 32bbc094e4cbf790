"""What cannot work is refused: what was expected, what came, what to do."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from torch import nn, optim

from tests.coordinator.in_process import PlayedWorker, forget_all, start, start_servers
from torch_distinput.coordinator.parameters.create import create_parameters
from torch_distinput.errors import ConfigurationError, ServerLostError, UsageError


@pytest.fixture(autouse=True)
def _alone():
    forget_all()


def sgd(parameters):
    return optim.SGD(parameters, lr=0.1)


def two_layers():
    return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))


def tied_by_memory():
    module = two_layers()
    module[1].weight = nn.Parameter(module[0].weight[:1, :2].detach())
    return module


def over_a_buffer():
    module = two_layers()
    module.register_buffer("copy", module[0].weight.detach()[1])
    return module


class _Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(2).to_sparse())


MODULES = [
    (lambda: 3, TypeError, "module_fn to be a function.*returns.*int.*Write"),
    (nn.Linear(2, 1), TypeError, "module_fn to be a function.*no function: Linear.*Write"),
    (nn.ReLU, ConfigurationError, "with parameters, got a ReLU that has none. Return"),
    (tied_by_memory, ConfigurationError, "'[01].weight' and '[01].weight'.*same memory.*Tie them"),
    (over_a_buffer, ConfigurationError, "'0.weight' and 'copy'.*same memory.*Tie them"),
    (lambda: nn.LazyLinear(3), ConfigurationError, "'weight', which is uninitialized.*Initialize"),
    (lambda: nn.Linear(2, 1, device="meta"), ConfigurationError, "on 'meta'.*Initialize"),
    (_Sparse, ConfigurationError, "'weight', which is torch.sparse_coo. Initialize"),
    (lambda: nn.Embedding(3, 2, max_norm=1.0), ConfigurationError, "max_norm=1.0.*Leave max_norm"),
]


@pytest.mark.parametrize(("module_fn", "error", "match"), MODULES)
def test_modules(module_fn, error, match):
    with pytest.raises(error, match=match):
        start(2, module_fn, sgd)


def of_others(parameters):
    return optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1)


def none_of_them(parameters):
    return optim.SGD([{"params": []}], lr=0.1)


def by_place(parameters):
    """Another grouping on each server."""
    return optim.SGD([{"params": parameters[:1]}, {"params": parameters[1:]}], lr=0.1)


OPTIMIZERS = [
    ("SGD", TypeError, "optimizer_fn must be a function of a list of parameters, got .SGD."),
    (lambda parameters: parameters, TypeError, "torch.optim.Optimizer, got list. Return for"),
    (of_others, ConfigurationError, "got a SGD of 1 parameters, 1 of which are others. Pass the"),
    (none_of_them, ConfigurationError, "got a SGD of 0 parameters, 0 of which are others. Pass"),
    (optim.LBFGS, ConfigurationError, "got LBFGS, which calls the model again.*Use one"),
    (by_place, ConfigurationError, r"as it groups .*got .*for \d shards. Let it choose by"),
]


@pytest.mark.parametrize(("optimizer_fn", "error", "match"), OPTIMIZERS)
def test_optimizers(optimizer_fn, error, match):
    with pytest.raises(error, match=match):
        start(2, two_layers, optimizer_fn)


def table():
    """Of its parameters two are cut into rows on two servers."""
    return nn.Sequential(nn.Embedding(6, 2), nn.Embedding(6, 1), nn.Linear(1, 1, bias=False))


class Warm(optim.Adafactor):
    """The same under another name."""


@pytest.mark.parametrize("kind", [optim.Adafactor, Warm])
def test_an_optimizer_that_looks_at_whole_parameters_does_not_get_rows(kind):
    match = f"{kind.__name__}.*rows, got 2.*'0.weight'.*partitioner"
    with pytest.raises(ConfigurationError, match=match):
        start(2, table, kind)
    start(2, table, kind, partitioner=lambda *_: 1)
    start(1, table, kind)


class Scaled(optim.SGD):
    """Perhaps by the norm of a parameter."""

    def step(self, closure=None):
        return super().step(closure)


class Named(optim.SGD):
    """By the rule of torch's."""


@pytest.mark.parametrize("num_servers", [1, 2])
@pytest.mark.parametrize("kind", [Scaled, Named, optim.SGD])
def test_an_optimizer_that_may_look_at_whole_parameters_is_told(kind, num_servers, caplog):
    with caplog.at_level("WARNING"):
        start(num_servers, table, kind)
    told = [one for one in caplog.messages if "cut into rows" in one]
    assert len(told) == (1 if kind is Scaled and num_servers == 2 else 0)
    assert all("Scaled gets the rows" in one and "2 parameters are cut" in one for one in told)


@pytest.mark.parametrize("bound", [-1, 1.5, True])
def test_the_bound_on_staleness(bound):
    with pytest.raises(ValueError, match=f"a number of pushes from 0.*got {bound}. 0 lets"):
        start(1, two_layers, sgd, max_staleness=bound)


def test_what_one_server_refuses_no_other_holds():
    """A notebook that tries again and again would fill them."""
    servers = start_servers(3)
    servers[1].kill()
    with pytest.raises(ServerLostError, match="server 1"):
        create_parameters(servers, two_layers, sgd)
    assert [{}, {}] == [servers[one].object._served for one in (0, 2)]
    assert {} == servers[0].object._chiefs


def test_a_function_that_cannot_be_pickled_is_named():
    import threading

    lock = threading.Lock()
    with pytest.raises(TypeError, match="module_fn.*lock"):
        create_parameters(start_servers(1), lambda: lock and two_layers(), sgd)


widths = itertools.count(2)


def another_each_time():
    return nn.Linear(next(widths), 1)


def test_a_module_that_differs_on_the_worker():
    parameters, _ = start(1, another_each_time, sgd)
    with pytest.raises(ConfigurationError, match=r"1 differences: weight: .*\(1, 2\).*\(1, 3\)"):
        PlayedWorker(parameters, "worker 0").pull()


@pytest.fixture
def worker():
    parameters, _ = start(2, two_layers, sgd)
    return PlayedWorker(parameters, "worker 0")


def test_a_push_before_a_pull(worker):
    with pytest.raises(UsageError, match="a pull before each push, got a push without.*Call pull"):
        worker.push({"0.bias": torch.zeros(2)})


def test_a_second_push_after_a_pull(worker):
    worker.pull()
    worker.push({"0.bias": torch.zeros(2)})
    with pytest.raises(UsageError, match="a pull before each push"):
        worker.push({"0.bias": torch.zeros(2)})


def test_a_push_without_backward(worker):
    worker.pull()
    with pytest.raises(UsageError, match=r"of 4 parameters, got none: backward\(\) was not"):
        worker.push()


GRADIENTS = [
    ({"2.bias": torch.zeros(2)}, ConfigurationError, "got 1 unknown ones, among them '2.bias'"),
    ({"0.bias": torch.zeros(3)}, ConfigurationError, r"\(2,\) torch.float32, got \(3,\) torch.fl"),
    ({"0.bias": torch.zeros(2).double()}, ConfigurationError, "float32, got .* torch.float64"),
    ({"0.bias": [0.0, 0.0]}, TypeError, "a tensor as the gradient of '0.bias', got list"),
    ({}, UsageError, "got none: backward"),
    ({"0.bias": None}, UsageError, "got none: backward"),
]


@pytest.mark.parametrize(("gradients", "error", "match"), GRADIENTS)
def test_gradients(worker, gradients, error, match):
    """And the push may be tried again."""
    worker.pull()
    with pytest.raises(error, match=match):
        worker.push(gradients)
    worker.push({"0.bias": torch.zeros(2)})


def test_two_gradients_of_one_parameter():
    def tied():
        module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        module[1].weight = module[0].weight
        return module

    worker = PlayedWorker(start(1, tied, sgd)[0], "worker 0")
    worker.pull()
    gradient = torch.zeros(2, 2)
    with pytest.raises(ConfigurationError, match="two for '0.weight', which is tied to '1.weight'"):
        worker.push({"0.weight": gradient, "1.weight": gradient})
    worker.push({"1.weight": gradient})


def test_a_parameter_that_was_replaced(worker):
    module = worker.pull()
    module[0].weight = nn.Parameter(torch.zeros(2, 3))
    module(torch.ones(1, 3)).sum().backward()
    with pytest.raises(UsageError, match=r"keep its 4 .*1 that were replaced \(0.weight\). Change"):
        worker.push()
    with pytest.raises(UsageError, match="1 that were replaced"):
        worker.pull()


def resized():
    module = nn.Linear(2, 1)
    module.register_buffer("seen", torch.zeros(1))
    return module


def test_a_buffer_that_changed_its_shape():
    worker = PlayedWorker(start(1, resized, sgd)[0], "worker 0")
    module = worker.pull()
    module.seen = torch.zeros(2)
    module(torch.ones(1, 2)).sum().backward()
    with pytest.raises(ConfigurationError, match=r"'seen' to stay \(1,\).*\(2,\).*Register what"):
        worker.push()


def model_of(module):
    return {"model": module.state_dict(), "optimizer": sgd(module.parameters()).state_dict()}


def with_optimizer(make):
    module = two_layers()
    return {**model_of(module), "optimizer": make(module.parameters()).state_dict()}


STATES = [
    (lambda: {"model": two_layers().state_dict()}, r"'model' and 'optimizer', got \['model'\]"),
    (lambda: None, "keys 'model' and 'optimizer', got .*NoneType"),
    (lambda: {**model_of(two_layers()), "model": {}}, "as module_fn makes it: (?s:.*)Missing"),
    (lambda: model_of(nn.Linear(3, 2)), r"with \[4\] parameters in its groups, got one with \[2\]"),
    (lambda: {**model_of(two_layers()), "epoch": 1}, r"got \['epoch', 'model', 'optimizer'\]"),
    (lambda: {**model_of(two_layers()), "optimizer": {}}, "'param_groups' and 'state', got .*Pass"),
    (lambda: {**model_of(two_layers()), "optimizer": None}, "'state', got .*NoneType.*Pass"),
    (lambda: with_optimizer(optim.Adam), r"differs in \['dampening', 'momentum'\].*Load it with"),
]


@pytest.mark.parametrize(("state", "match"), STATES)
def test_states(worker, state, match):
    """And what was there stays."""
    before = worker.pull().state_dict()["0.weight"].clone()
    with pytest.raises(ConfigurationError, match=match):
        worker.load_state_dict(state())
    assert torch.equal(before, worker.pull()[0].weight)


KINDS = [optim.Adam, optim.AdamW, optim.NAdam, optim.RMSprop, optim.Adagrad, sgd]


@pytest.mark.parametrize("one", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_a_state_of_an_optimizer_is_not_taken_by_another(one, other):
    def momentum(parameters):
        return optim.SGD(parameters, lr=1.0, momentum=0.9)

    worker = PlayedWorker(start(1, two_layers, other)[0], "worker 0")
    state = with_optimizer(momentum if one is sgd else one)  # of the same class: other values
    group = state["optimizer"]["param_groups"][0]
    group |= {"initial_lr": 1.0, "max_lr": 2.0}  # as schedulers leave them
    del group["maximize"]  # as an older release did not have it
    state["optimizer"]["param_groups"] = json.loads(json.dumps([group]))  # betas become a list
    if one is other or (one, other) == (optim.NAdam, optim.Adam):  # which knows its settings
        worker.load_state_dict(state)
    else:
        with pytest.raises(ConfigurationError, match="differs in"):
            worker.load_state_dict(state)
    worker.pull()(torch.ones(1, 3)).sum().backward()
    worker.push()


def test_parameters_of_another_strategy(worker):
    worker.pull()
    parameters, servers = start(1, two_layers, sgd)
    servers[0].object._served.clear()
    with pytest.raises(UsageError, match="created on this server.*none of its 0.*strategy that"):
        PlayedWorker(parameters, "worker 0").pull()
