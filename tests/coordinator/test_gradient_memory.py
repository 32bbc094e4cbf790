"""Gradients are read where they arrive: what lies there afterwards changes no result."""

from __future__ import annotations

import gc
import inspect
import pickle
import weakref
from functools import partial
from typing import Any

import pytest
import torch
from torch import optim

from tests.coordinator.parameter_models import assert_same
from torch_distinput.coordinator.engines import message_memory
from torch_distinput.coordinator.engines.engine import Lent
from torch_distinput.coordinator.engines.message_memory import MessageMemory
from torch_distinput.coordinator.parameters.held import ServerPart
from torch_distinput.coordinator.parameters.payload import (
    Packed,
    SomeRows,
    pack_tensors,
    read_tensors,
)
from torch_distinput.coordinator.parameters.placement import ParameterShard
from torch_distinput.coordinator.parameters.server import ParameterServer

# torch's own Adagrad builds sparse tensors without saying whether they are to be checked.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")

ROWS = 40
KEY = "parameters"


class Keeping(optim.Optimizer):
    """Its state begins as the very gradient, which each step writes to."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            gradient = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
            state = self.state[parameter]
            mean = state.setdefault("mean", gradient)
            with torch.no_grad():
                mean.mul_(0.9).add_(gradient, alpha=0.1)
                parameter.sub_(mean, alpha=self.param_groups[0]["lr"])


OF_TORCH = [
    one
    for one in vars(optim).values()
    if inspect.isclass(one) and issubclass(one, optim.Optimizer)
    and one not in {optim.Optimizer, optim.LBFGS}
]  # fmt: skip
MORE: dict[type[optim.Optimizer], list[dict[str, Any]]] = {
    optim.SGD: [{"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"maximize": True}],
    optim.Adam: [{"amsgrad": True}, {"foreach": True}, {"weight_decay": 0.1}],
    optim.RMSprop: [{"momentum": 0.9, "centered": True}],
    optim.ASGD: [{"weight_decay": 0.1}],
}
MAKERS = [
    partial(kind, lr=0.1, **options)
    for kind in (*OF_TORCH, Keeping)
    for options in ({}, *MORE.get(kind, []))
]


def words(make):
    return f"{make.func.__name__}-{'-'.join(make.keywords)}"


def served(make):
    shard = ParameterShard(name="weight", start=0, stop=ROWS, server=0, is_whole=True)
    part = ServerPart(
        shards={0: shard},
        values={0: torch.linspace(-1, 1, ROWS * 3).view(ROWS, 3)},
        frozen=frozenset(),
        groups=((0,),),
        buffers={},
    )
    server = ParameterServer()
    server.create(KEY, pack_tensors(part), pickle.dumps(make))
    return server


def gradient(step, is_sparse):
    generator = torch.Generator().manual_seed(step)
    if not is_sparse:
        return torch.randn(ROWS, 3, generator=generator)
    rows = torch.randperm(ROWS, generator=generator)[:7].sort().values
    return SomeRows(indices=rows, values=torch.randn(7, 3, generator=generator))


class Copied:
    """Each message has memory of its own, which stays as it is."""

    def push(self, server, update):
        packed = pack_tensors(({0: update}, {}))
        self.apply(server, packed, [array.copy() for array in packed.arrays])

    @staticmethod
    def apply(server, packed, arrays):
        server.stage(KEY, "token", Packed(text=packed.text, arrays=tuple(arrays)))
        server.apply(KEY, "token", is_staged=True)


class Shared(Copied):
    """Messages come in memory that may only be read, and is written anew after each."""

    def push(self, server, update):
        packed = pack_tensors(({0: update}, {}))
        own = [array.copy() for array in packed.arrays]
        before = [array.tobytes() for array in own]
        views = [array[:] for array in own]
        for view in views:
            view.flags.writeable = False
        self.apply(server, packed, views)
        assert before == [array.tobytes() for array in own], "memory of others was written to"
        for array in own:
            array[:] = 0x47


class Recycled(Copied):
    """Messages come in memory that the next ones use again."""

    def __init__(self) -> None:
        self.memory = MessageMemory()

    def push(self, server, update):
        packed = pack_tensors(({0: update}, {}))
        self.apply(server, packed, self.memory.copy(packed.arrays))
        for array in self.memory.take([array.nbytes for array in packed.arrays]):
            array[:] = 0x47


def state_after(make, is_sparse, messages):
    server = served(make)
    for step in range(3):
        messages.push(server, gradient(step, is_sparse))
    with server.state(KEY).opened as packed:
        return pickle.loads(packed.text, buffers=[array.copy() for array in packed.arrays])


@pytest.mark.parametrize("is_sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("messages", [Shared, Recycled])
@pytest.mark.parametrize("make", MAKERS, ids=words)
def test_memory_that_is_used_again_changes_no_result(monkeypatch, make, messages, is_sparse):
    if make.func is optim.SparseAdam and not is_sparse:
        pytest.skip("it takes no dense gradients")
    monkeypatch.setattr(message_memory, "_SMALL_BYTES", 0)
    expected = state_after(make, is_sparse, Copied())
    actual = state_after(make, is_sparse, messages())
    assert_same(expected.values, actual.values)
    assert_same(expected.states, actual.states)


def test_a_server_does_not_keep_the_message_that_made_it():
    """Its values are copies: with the message, all parameters would be there twice."""
    part = ServerPart(
        shards={0: ParameterShard(name="weight", start=0, stop=ROWS, server=0, is_whole=True)},
        values={0: torch.ones(ROWS, 3)},
        frozen=frozenset(),
        groups=((0,),),
        buffers={"mean": torch.ones(3)},
    )
    packed = pack_tensors(part)
    arrays = [array.copy() for array in packed.arrays]
    alive = [weakref.ref(array) for array in arrays]
    packed = Packed(text=packed.text, arrays=tuple(arrays))
    server = ParameterServer()
    server.create(KEY, packed, pickle.dumps(partial(optim.SGD, lr=0.1)))
    del packed, arrays
    gc.collect()
    assert [True, True] == [one() is None for one in alive]
    with server.state(KEY).opened as state:
        assert torch.equal(torch.ones(3), read_tensors(state).buffers["mean"])


def test_rows_are_not_lent_as_they_are_copies():
    """What is lent is copied once more, and with Ray costs one more call."""
    server = served(partial(optim.SGD, lr=0.1))
    Copied().push(server, gradient(0, is_sparse=True))
    version, packed = server.pull(KEY, 0, ())
    before = read_tensors(packed).shards[0].values.clone()
    Copied().push(server, gradient(0, is_sparse=True))
    assert -1 == version
    assert torch.equal(before, read_tensors(packed).shards[0].values)


@pytest.mark.parametrize("pulled", [(-1, ()), (0, (0,))])
def test_whole_values_are_lent(pulled):
    server = served(partial(optim.SGD, lr=0.1))
    Copied().push(server, gradient(0, is_sparse=True))
    assert isinstance(server.pull(KEY, *pulled), Lent)
