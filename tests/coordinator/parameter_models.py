"""Modules, optimizers and gradients that the tests of parameters share; and the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn, optim

OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {}


def optimizer_fn(function: Callable[[Any], optim.Optimizer]) -> Callable[[Any], optim.Optimizer]:
    OPTIMIZERS[function.__name__] = function
    return function


@optimizer_fn
def sgd(parameters):
    return optim.SGD(parameters, lr=0.1)


@optimizer_fn
def slowing(parameters):
    """Its learning rate falls with each step, also of parameters that got no gradient."""
    optimizer = optim.SGD(parameters, lr=0.1)
    optimizer.register_step_post_hook(fall)
    return optimizer


def fall(optimizer, *_):
    optimizer.param_groups[0]["lr"] *= 0.9


@optimizer_fn
def momentum(parameters):
    return optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True)


@optimizer_fn
def decayed(parameters):
    return optim.SGD(parameters, lr=0.1, weight_decay=0.01)


@optimizer_fn
def adam(parameters):
    return optim.Adam(parameters, lr=0.01, amsgrad=True)


@optimizer_fn
def adamw(parameters):
    """In two groups."""
    return optim.AdamW(
        [
            {"params": [one for one in parameters if one.ndim > 1]},
            {"params": [one for one in parameters if one.ndim <= 1], "weight_decay": 0.0},
        ],
        lr=0.01,
    )


@optimizer_fn
def adagrad(parameters):
    return optim.Adagrad(parameters, lr=0.1, lr_decay=0.01)


@optimizer_fn
def sparse_adam(parameters):
    return optim.SparseAdam(parameters, lr=0.01)


TAKES_SPARSE = {"sgd", "slowing", "momentum", "adagrad", "sparse_adam"}


class Table(nn.Module):
    """Two embeddings, one of which is the output layer as well, and BatchNorm's buffers."""

    def __init__(self, is_sparse: bool, rows: int = 7) -> None:
        super().__init__()
        self.users = nn.Embedding(rows, 3, sparse=is_sparse)
        self.items = nn.EmbeddingBag(rows - 2, 4, sparse=is_sparse, mode="sum")
        self.fc = nn.Linear(7, 3)
        self.norm = nn.BatchNorm1d(3)
        self.out = nn.Linear(3, rows, bias=False)
        self.out.weight = self.users.weight
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, users, items):
        both = torch.cat([self.users(users), self.items(items)], 1)
        return self.norm(self.fc(both)) * self.scale


def dense_table():
    return Table(is_sparse=False)


def sparse_table():
    return Table(is_sparse=True)


class OnlyEmbeddings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(7, 3, sparse=True)
        self.items = nn.EmbeddingBag(5, 4, sparse=True, mode="sum")


def random_gradient(parameter: torch.Tensor, *, is_sparse: bool, seed: int) -> torch.Tensor:
    """A gradient; if sparse of some rows, with repetitions, as backward leaves it."""
    generator = torch.Generator().manual_seed(seed)
    if not is_sparse:
        return torch.randn(parameter.shape, generator=generator)
    num_rows = int(torch.randint(0, len(parameter) + 1, (), generator=generator))
    rows = torch.randint(0, len(parameter), (1, num_rows), generator=generator)
    values = torch.randn(num_rows, *parameter.shape[1:], generator=generator)
    return torch.sparse_coo_tensor(rows, values, parameter.shape, check_invariants=False)


class OneProcess:
    """The reference: a module and an optimizer in one process."""

    def __init__(self, module: nn.Module, name: str) -> None:
        self.module = module
        self.optimizer = OPTIMIZERS[name](list(module.parameters()))
        self._takes_sparse = name in TAKES_SPARSE

    def step(self, gradients: dict[str, torch.Tensor]) -> None:
        for name, parameter in self.module.named_parameters():
            gradient = gradients.get(name)
            if gradient is not None and gradient.is_sparse:
                gradient = gradient.coalesce() if self._takes_sparse else gradient.to_dense()
            parameter.grad = gradient
        self.optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.module.state_dict(), "optimizer": self.optimizer.state_dict()}


def assert_same(expected: Any, actual: Any, where: str = "") -> None:
    """The same structure, and tensors with the same bits."""
    if isinstance(expected, torch.Tensor):
        assert isinstance(actual, torch.Tensor), where
        assert (expected.layout, expected.dtype) == (actual.layout, actual.dtype), where
        if expected.is_sparse:
            expected, actual = expected.to_dense(), actual.to_dense()
        assert torch.equal(expected, actual), f"{where}: {expected} {actual}"
    elif isinstance(expected, dict):
        assert list(expected) == list(actual) or set(expected) == set(actual), where
        for key in expected:
            assert_same(expected[key], actual[key], f"{where}/{key}")
    elif isinstance(expected, (list, tuple)):
        assert len(expected) == len(actual), where
        for number, one in enumerate(expected):
            assert_same(one, actual[number], f"{where}/{number}")
    else:
        assert expected == actual, where
