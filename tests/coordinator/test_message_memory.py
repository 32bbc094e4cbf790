"""Memory for large messages is used again, when and only when nobody has it."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, optim
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from torch_distinput.coordinator.engines.message_memory import MessageMemory
from torch_distinput.coordinator.parameters.optimizers import (
    changes_only_rows,
    only_reads_gradients,
)
from torch_distinput.coordinator.parameters.payload import (
    SomeRows,
    as_sparse,
    pack_tensors,
    read_tensors,
    unpack_tensors,
)

MANY = 3_000_000


def place_of(arrays):
    return arrays[0].ctypes.data


class TestMemory:
    def test_it_is_used_again_when_nobody_has_it(self):
        memory = MessageMemory()
        first = memory.take([MANY, 5])
        place = place_of(first)
        del first
        assert place == place_of(memory.take([MANY]))

    @pytest.mark.parametrize("index", [0, 1])
    def test_whoever_has_a_part_of_it_keeps_it(self, index):
        memory = MessageMemory()
        parts = memory.take([MANY, MANY])
        place, kept = place_of(parts), torch.from_numpy(parts[index])[3:5]
        kept.fill_(7)
        del parts
        other = memory.take([MANY, MANY])
        assert place != place_of(other)
        other[0][:] = other[1][:] = 0
        assert [7, 7] == kept.tolist()

    def test_so_does_a_value_that_was_unpickled_from_it(self):
        memory = MessageMemory()
        packed = pack_tensors(torch.ones(MANY))
        value = pickle.loads(packed.text, buffers=memory.copy(packed.arrays))
        for array in memory.take([4 * MANY]):
            array[:] = 0
        assert torch.equal(torch.ones(MANY), value)

    def test_much_is_not_kept_for_little(self):
        memory = MessageMemory()
        place = place_of(memory.take([100 * MANY]))
        assert place != place_of(memory.take([MANY]))

    def test_parts_lie_where_any_dtype_may(self):
        parts = MessageMemory().take([1, 3, MANY, 7])
        assert [0, 0, 0, 0] == [one.ctypes.data % 64 - place_of(parts) % 64 for one in parts]
        assert [1, 3, MANY, 7] == list(map(len, parts))

    def test_copies_are_copies(self):
        arrays = [np.arange(5, dtype=np.uint8), np.ones(MANY, dtype=np.uint8)]
        copies = MessageMemory().copy(arrays)
        assert all(map(np.array_equal, arrays, copies))
        assert not any(map(np.shares_memory, arrays, copies))


def read_only(packed):
    for array in packed.arrays:
        array.flags.writeable = False
    return packed


class TestReadOnlyMemory:
    """As that which processes share."""

    def test_it_is_read_in_place_without_a_warning(self):
        packed = read_only(pack_tensors({"x": torch.arange(5), "y": SomeRows(
            indices=torch.arange(2), values=torch.ones(2, 3))}))
        value = read_tensors(packed)
        assert packed.arrays[0].ctypes.data == value["x"].data_ptr()
        assert [0, 1, 2, 3, 4] == value["x"].tolist()
        assert 6 == value["y"].values.sum()

    def test_a_tensor_keeps_it(self):
        whole = np.full(MANY, 7, dtype=np.uint8)
        value = read_tensors(read_only(pack_tensors(whole)))
        del whole
        assert {7} == set(np.unique(value).tolist())

    def test_what_is_unpacked_may_be_written_to(self):
        packed = read_only(pack_tensors(torch.ones(3)))
        unpack_tensors(packed).zero_()
        assert torch.equal(torch.ones(3), read_tensors(packed))


OPTIONS: dict[type[optim.Optimizer], list[dict[str, Any]]] = {
    optim.SGD: [
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        {"momentum": 0.9, "dampening": 0.5, "maximize": True},
    ],
    optim.Adam: [{"amsgrad": True, "weight_decay": 0.1}, {"maximize": True}],
    optim.AdamW: [{"amsgrad": True, "weight_decay": 0.1}, {"maximize": True}],
    optim.Adagrad: [{"lr_decay": 0.1, "weight_decay": 0.1}, {"maximize": True}],
    optim.RMSprop: [{"momentum": 0.9, "centered": True, "weight_decay": 0.1}, {"maximize": True}],
}


@pytest.mark.parametrize(
    ("kind", "options"), [(kind, one) for kind, some in OPTIONS.items() for one in ({}, *some)]
)
def test_optimizers_that_are_said_only_to_read_gradients_do(kind, options):
    parameter = nn.Parameter(torch.ones(4, 3))
    optimizer = kind([parameter], lr=0.1, **options)
    assert only_reads_gradients(optimizer)
    gradient = torch.arange(12.0).view(4, 3) - 5
    for _ in range(3):
        parameter.grad = gradient
        optimizer.step()
        assert torch.equal(torch.arange(12.0).view(4, 3) - 5, gradient)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize(
    ("kind", "options"), [(optim.SGD, {"momentum": 0.9}), (optim.SGD, {}), (optim.Adagrad, {})]
)
def test_they_only_read_rows_too(kind, options):
    parameter = nn.Parameter(torch.ones(4, 3))
    optimizer = kind([parameter], lr=0.1, **options)
    values = torch.ones(2, 3)
    for _ in range(3):
        rows = SomeRows(indices=torch.tensor([0, 2]), values=values)
        parameter.grad = as_sparse(rows, parameter.shape)
        optimizer.step()
    assert torch.equal(torch.ones(2, 3), values)


class Doubling(optim.SGD):
    """Writes to its gradients."""

    def step(self, closure=None):
        self.param_groups[0]["params"][0].grad.mul_(2)
        return super().step(closure)


def hooked(parameters):
    optimizer = optim.SGD(parameters)
    optimizer.register_step_pre_hook(lambda *_: None)
    return optimizer


def replaced(parameters):
    """Has a step of its own."""
    optimizer = optim.SGD(parameters)
    parameters[0].grad = torch.ones(3)
    optimizer.step = parameters[0].grad.zero_
    return optimizer


def trained_decay(parameters):
    """Adds the decay into the gradient."""
    return optim.SGD(parameters, weight_decay=torch.tensor(0.1, requires_grad=True))


def at_once(parameters):
    return optim.SGD(parameters, foreach=True)


@pytest.mark.parametrize(
    "make", [Doubling, hooked, replaced, trained_decay, optim.NAdam, at_once]
)
def test_nothing_is_said_of_others(make):
    assert not only_reads_gradients(make([nn.Parameter(torch.ones(3))]))


@pytest.mark.parametrize(
    "register",
    [register_optimizer_step_pre_hook, register_optimizer_step_post_hook],
)
def test_nothing_is_said_where_all_optimizers_have_a_hook(register):
    """It may write to gradients, and to rows that a push did not name."""
    optimizer = optim.SGD([nn.Parameter(torch.ones(3))])
    assert only_reads_gradients(optimizer)
    assert changes_only_rows(optimizer, optimizer.param_groups[0])
    hook = register(lambda *_: None)
    try:
        assert not only_reads_gradients(optimizer)
        assert not changes_only_rows(optimizer, optimizer.param_groups[0])
    finally:
        hook.remove()
