"""Whatever is pulled and pushed in whatever order: the same bits as in one process."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import LONG
from tests.coordinator.in_process import PlayedWorker, forget_all, start
from tests.coordinator.parameter_models import (
    OPTIMIZERS,
    OneProcess,
    OnlyEmbeddings,
    assert_same,
    dense_table,
    random_gradient,
    sparse_table,
)

# torch's own Adagrad builds sparse tensors without saying whether they are to be checked.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")


@dataclass(frozen=True, kw_only=True)
class Move:
    """A worker pulls, and perhaps pushes before another one does something."""

    worker: int
    is_push: bool
    seed: int
    missing: frozenset[str] = frozenset()


NAMES = ("users.weight", "items.weight", "fc.weight", "norm.bias", "scale")
MOVES = st.lists(
    st.builds(
        Move,
        worker=st.integers(0, 2),
        is_push=st.booleans(),
        seed=st.integers(0, 99),
        missing=st.frozensets(st.sampled_from(NAMES), max_size=3),
    ),
    max_size=12,
)

pytestmark = pytest.mark.with_frameworks  # with each engine
FEWER = 120 if LONG else 10
"""For each module with each optimizer."""
MODULES = {"dense": dense_table, "sparse": sparse_table, "only": OnlyEmbeddings}
KINDS = [
    (module, name)
    for module in MODULES
    for name in OPTIMIZERS
    if (module == "only") == (name == "sparse_adam")
]


def into_rows(name, shape, dtype, num_servers):
    """More row shards than there are servers, also of what is no embedding."""
    return min(shape[0], 3) if shape else 1


def gradients_of(module, move, is_sparse):
    sparse = {"users.weight", "items.weight"} if is_sparse else set()
    return {
        name: random_gradient(parameter, is_sparse=name in sparse, seed=move.seed + number)
        for number, (name, parameter) in enumerate(module.named_parameters())
        if name not in move.missing and parameter.requires_grad
    }


class Game:
    """Servers with three workers, beside a module and an optimizer in one process."""

    def __init__(self, module_name, optimizer_name, num_servers, partitioner):
        torch.manual_seed(1)
        self.is_sparse = module_name != "dense"
        self.parameters, self.servers = start(
            num_servers,
            MODULES[module_name],
            OPTIMIZERS[optimizer_name],
            partitioner=partitioner,
        )
        self.reference = OneProcess(copy.deepcopy(self.parameters.pull()), optimizer_name)
        self.workers = [PlayedWorker(self.parameters, f"worker {one}") for one in range(3)]
        self.waiting = set()

    def play(self, move):
        worker = self.workers[move.worker]
        if not move.is_push or move.worker not in self.waiting:
            module = worker.pull()
            assert_same(self.reference.module.state_dict(), module.state_dict())
            assert all(one.grad is None for one in module.parameters())
            self.waiting.add(move.worker)
            return
        gradients = gradients_of(self.reference.module, move, self.is_sparse)
        if gradients:
            worker.push(gradients)
            self.reference.step(gradients)
            self.waiting.discard(move.worker)


@pytest.mark.parametrize(("module_name", "optimizer_name"), KINDS)
@settings(max_examples=FEWER)
@given(moves=MOVES, num_servers=st.integers(1, 3), is_cut=st.booleans())
def test_servers_hold_what_one_process_would(
    module_name, optimizer_name, moves, num_servers, is_cut
):
    """After each pull the module, and at the end the whole state."""
    forget_all()
    game = Game(module_name, optimizer_name, num_servers, into_rows if is_cut else None)
    for move in moves:
        game.play(move)
    assert_same(game.reference.state_dict(), game.parameters.state_dict())
    for worker in game.workers:
        assert_same(game.reference.module.state_dict(), worker.pull().state_dict())


@pytest.mark.parametrize(("module_name", "optimizer_name"), KINDS)
@settings(max_examples=FEWER)
@given(before=MOVES, after=MOVES, sizes=st.tuples(st.integers(1, 3), st.integers(1, 3)))
def test_a_state_goes_on_with_another_number_of_servers(
    module_name, optimizer_name, before, after, sizes
):
    forget_all()
    old = Game(module_name, optimizer_name, sizes[0], None)
    for move in before:
        old.play(move)
    state = old.parameters.state_dict()
    old.waiting.clear()
    new = Game(module_name, optimizer_name, sizes[1], into_rows)
    for worker in new.workers:
        worker.pull()
    new.parameters.load_state_dict(state)
    new.reference.module.load_state_dict(state["model"])
    new.reference.optimizer.load_state_dict(state["optimizer"])
    for move in after:
        old.play(move)
        new.play(move)
    assert_same(old.reference.state_dict(), new.reference.state_dict())
    assert_same(old.reference.state_dict(), new.parameters.state_dict())


def small():
    return torch.nn.Linear(3, 2)


def test_a_server_without_a_gradient_steps_too():
    """The weight is on one server, the bias on the other; the learning rate falls on both."""
    forget_all()
    parameters, _ = start(2, small, OPTIMIZERS["slowing"])
    reference = OneProcess(copy.deepcopy(parameters.pull()), "slowing")
    worker = PlayedWorker(parameters, "worker 0")
    for name in ("weight", "bias", "bias", "weight"):
        gradients = {name: torch.ones_like(worker.pull().get_parameter(name))}
        worker.push(gradients)
        reference.step(gradients)
    assert_same(reference.state_dict(), parameters.state_dict())


class Odd(torch.nn.Module):
    """Dtypes, layouts and shapes that are rare."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(4, 3, 2)
        self.conv.weight.data = self.conv.weight.data.to(memory_format=torch.channels_last)
        self.halves = torch.nn.Parameter(torch.randn(5, 2, dtype=torch.bfloat16))
        self.doubles = torch.nn.Parameter(torch.randn(3, dtype=torch.float64))
        self.turned = torch.nn.Parameter(torch.randn(3, 4).t())
        self.empty = torch.nn.Parameter(torch.randn(0, 4))
        self.quantized = torch.nn.Parameter(torch.ones(4, dtype=torch.int8), requires_grad=False)
        self.register_buffer("angle", torch.randn(2, dtype=torch.complex64))
        self.register_buffer("mask", torch.tensor([True, False]))


@pytest.mark.parametrize("num_servers", [1, 2, 3])
@pytest.mark.parametrize("optimizer_name", ["momentum", "adamw", "adagrad"])
def test_dtypes_and_layouts_of_all_kinds(optimizer_name, num_servers):
    forget_all()
    parameters, _ = start(
        num_servers, Odd, OPTIMIZERS[optimizer_name], partitioner=cut_where_possible
    )
    reference = OneProcess(copy.deepcopy(parameters.pull()), optimizer_name)
    worker = PlayedWorker(parameters, "worker 0")
    for step in range(3):
        assert_same(reference.module.state_dict(), worker.pull().state_dict())
        gradients = {
            name: torch.full_like(one, step + 0.3)
            for name, one in reference.module.named_parameters()
            if one.requires_grad
        }
        worker.push(gradients)
        reference.step(gradients)
    state = parameters.state_dict()
    assert_same(reference.state_dict(), state)
    parameters.load_state_dict(state)
    assert_same(reference.state_dict(), parameters.state_dict())


def cut_where_possible(name, shape, dtype, num_servers):
    return max(1, min(shape[0], num_servers))
