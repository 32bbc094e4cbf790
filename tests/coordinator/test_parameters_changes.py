"""What a pull sends: only what changed, and yet all of what changed, here as well as there."""

from __future__ import annotations

import pytest
import torch
from torch import nn, optim

from tests.coordinator.in_process import PlayedWorker, forget_all, start
from torch_distinput.coordinator.parameters.payload import SomeRows, read_tensors

ROWS = 500
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 4, sparse=True)
        self.fc = nn.Linear(4, 2)
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("scratch", torch.zeros(3), persistent=False)

    def forward(self, rows):
        return self.norm(self.fc(self.table(rows)))


class Averaged(nn.Module):
    """Its buffer is replaced, not written to."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 1)
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return self.fc(x - self.mean)


@pytest.fixture(autouse=True)
def _alone():
    forget_all()


@pytest.fixture
def sent(monkeypatch):
    """What each pull brought: per server, names of shards with what came of them."""
    from torch_distinput.coordinator.parameters import client

    found = []

    def unpack(packed):
        value = read_tensors(packed)
        found.append(value)
        return value

    monkeypatch.setattr(client, "read_tensors", unpack)
    return found


def rows_sent(found):
    """By shard: how many rows came, or all."""
    return {
        index: len(one.indices) if isinstance(one, SomeRows) else "all"
        for changes in found
        for index, one in changes.shards.items()
    }


OPTIMIZERS = {
    "sgd": (lambda parameters: optim.SGD(parameters, lr=0.1), True),
    "momentum": (lambda parameters: optim.SGD(parameters, lr=0.1, momentum=0.9), False),
    "decay": (lambda parameters: optim.SGD(parameters, lr=0.1, weight_decay=0.1), False),
    "adam": (optim.Adam, False),
    "adagrad": (optim.Adagrad, True),
}


def hooked(parameters):
    """What runs after each step may change any row."""
    optimizer = optim.SGD(parameters, lr=0.1)
    optimizer.register_step_post_hook(
        lambda one, *_: [p.data.mul_(0.5) for p in one.param_groups[0]["params"]]
    )
    return optimizer


OPTIMIZERS["hooked"] = (hooked, False)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_only_the_rows_of_the_gradient_are_sent_where_no_others_changed(sent, name):
    optimizer_fn, are_rows = OPTIMIZERS[name]
    parameters, _ = start(2, Model, optimizer_fn)
    one, other = (PlayedWorker(parameters, f"worker {number}") for number in (0, 1))
    module = other.pull()
    first = one.pull()
    sent.clear()
    first(torch.tensor([3, 4, 499, 3])).sum().backward()
    one.push()
    assert module is other.pull()
    table = {0: 2, 1: 1} if are_rows else {0: "all", 1: "all"}
    whole = dict.fromkeys(range(2, 6), "all")  # the bias of norm has a gradient, as all
    assert {**table, **whole} == rows_sent(sent)
    expected = {name: one.clone() for name, one in module.state_dict().items()}
    for key, value in parameters.state_dict()["model"].items():
        assert torch.equal(expected[key], value)


def test_one_that_pulls_seldom_gets_all_rows_that_changed_meanwhile(sent):
    """Those of more pushes than the server keeps the rows of one by one."""
    parameters, _ = start(1, Model, lambda parameters: optim.SGD(parameters, lr=0.1))
    one, other = (PlayedWorker(parameters, f"worker {number}") for number in (0, 1))
    module = other.pull()
    for step in range(5):
        one.pull().table(torch.arange(40 * step, 40 * step + 45)).sum().backward()
        one.push()
    sent.clear()
    other.pull()
    assert {0: 205} == rows_sent(sent)
    assert torch.equal(parameters.state_dict()["model"]["table.weight"], module.table.weight)


def test_nothing_is_sent_that_has_not_changed(sent):
    parameters, _ = start(2, Model, lambda parameters: optim.SGD(parameters, lr=0.1))
    worker = PlayedWorker(parameters, "worker 0")
    worker.pull()
    sent.clear()
    worker.pull()
    assert {} == rows_sent(sent)
    assert [{}, {}] == [changes.buffers for changes in sent]


def test_a_server_does_not_send_what_got_no_gradient(sent):
    parameters, _ = start(1, Model, lambda parameters: optim.SGD(parameters, lr=0.1))
    worker = PlayedWorker(parameters, "worker 0")
    worker.pull()
    worker.push({"fc.bias": torch.ones(2)})
    sent.clear()
    worker.pull()
    assert {2: "all"} == rows_sent(sent)


def test_more_than_half_of_the_rows_are_sent_whole(sent):
    parameters, _ = start(1, Model, lambda parameters: optim.SGD(parameters, lr=0.1))
    worker = PlayedWorker(parameters, "worker 0")
    module = worker.pull()
    module.table(torch.arange(ROWS // 2 + 1)).sum().backward()
    worker.push()
    sent.clear()
    worker.pull()
    assert {0: "all"} == rows_sent(sent)


def wreck_in_place(module):
    with torch.no_grad():
        module.fc.weight.add_(1)


def wreck_by_assignment(module):
    module.fc.weight.data = torch.zeros(2, 4)


def wreck_buffers(module):
    module.norm.running_mean.fill_(7)


def wreck_modes(module):
    module.eval()
    module.fc.weight.requires_grad_(False)


@pytest.mark.parametrize(
    "wreck", [wreck_in_place, wreck_by_assignment, wreck_buffers, wreck_modes]
)
def test_a_pull_undoes_what_was_done_to_the_module(wreck):
    parameters, _ = start(2, Model, lambda parameters: optim.SGD(parameters, lr=0.1))
    worker = PlayedWorker(parameters, "worker 0")
    expected = {name: one.clone() for name, one in worker.pull().state_dict().items()}
    wreck(worker.pull())
    module = worker.pull()
    assert all(one.training for one in module.modules())
    assert all(one.requires_grad for one in module.parameters())
    for name, value in module.state_dict().items():
        assert torch.equal(expected[name], value)


def test_buffers_that_changed_go_with_the_push():
    parameters, _ = start(2, Model, lambda parameters: optim.SGD(parameters, lr=0.1))
    one, other = (PlayedWorker(parameters, f"worker {number}") for number in (0, 1))
    module = one.pull()
    module(torch.tensor([1, 2])).sum().backward()
    expected = module.norm.running_mean.clone()
    assert expected.abs().sum() > 0
    one.push()
    assert torch.equal(expected, other.pull().norm.running_mean)
    assert 1 == parameters.state_dict()["model"]["norm.num_batches_tracked"]


def test_buffers_that_changed_without_a_push_are_forgotten():
    parameters, _ = start(1, Model, lambda parameters: optim.SGD(parameters, lr=0.1))
    worker = PlayedWorker(parameters, "worker 0")
    worker.pull()(torch.tensor([1, 2]))
    assert 0 == worker.pull().norm.running_mean.abs().sum()


def test_a_buffer_that_is_replaced_goes_with_the_push_too():
    parameters, _ = start(1, Averaged, lambda parameters: optim.SGD(parameters, lr=0.1))
    one, other = (PlayedWorker(parameters, f"worker {number}") for number in (0, 1))
    for number in (1, 2):
        module = one.pull()
        module(torch.ones(4, 2)).sum().backward()
        one.push()
        mean = 0.1 if number == 1 else 0.19
        assert torch.allclose(torch.full((2,), mean), other.pull().mean)


def test_a_pull_moves_the_module_to_a_device():
    """Torch's device without memory stands for an accelerator."""
    parameters, _ = start(1, Averaged, lambda parameters: optim.SGD(parameters, lr=0.1))
    module = PlayedWorker(parameters, "worker 0").pull(device="meta")
    assert {"meta"} == {one.device.type for one in module.state_dict().values()}


def test_a_pull_puts_the_module_where_the_strategy_of_the_worker_is():
    import torch_distinput as tdi

    parameters, _ = start(1, Averaged, lambda parameters: optim.SGD(parameters, lr=0.1))
    with tdi.OneDeviceStrategy("cpu").scope():
        assert "cpu" == parameters.pull().fc.weight.device.type


def test_modules_that_the_processes_share_are_one_for_each():
    parameters, _ = start(1, Model, lambda parameters: optim.SGD(parameters, lr=0.1))
    one, other = (PlayedWorker(parameters, f"worker {number}") for number in (0, 1))
    assert one.pull() is one.pull()
    assert one.pull() is not other.pull()
