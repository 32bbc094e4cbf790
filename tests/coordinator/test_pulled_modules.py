"""What a closure does to the module that it pulled stays in that closure."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn, optim

from torch_distinput.coordinator import ClusterCoordinator, ParameterServerStrategy
from torch_distinput.errors import ConfigurationError

START = 0.3


def make_model():
    seed_all(0)
    model = nn.Linear(3, 2)
    nn.init.constant_(model.weight, START)
    return model


def seed_all(seed):
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def sgd(parameters):
    return optim.SGD(parameters, lr=0.1)


def draw_around_a_pull(parameters):
    """What is drawn does not depend on whether the module was made here meanwhile."""
    seed_all(123)
    parameters.pull()
    return draw_all()


def draw_all():
    return torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()


def evaluate(parameters, dtype):
    with torch.inference_mode():
        return parameters.pull().to(dtype).weight.dtype


def value(parameters):
    return parameters.pull().weight.detach().clone()


def push_ones(parameters, dtype, layout):
    weight = parameters.pull().to(dtype).weight
    gradient = torch.ones_like(weight, layout=torch.strided).detach()
    parameters.push({"weight": gradient.to_sparse_csr() if layout == "csr" else gradient})


@pytest.fixture(scope="module")
def strategy():
    with ParameterServerStrategy(1, 2) as made:
        yield made


@pytest.fixture
def coordinator(strategy):
    return ClusterCoordinator(strategy)


@pytest.fixture
def call(coordinator):
    return lambda function, *args: coordinator.schedule(function, args=args).fetch()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_its_dtype_is_put_back(strategy, call, dtype):
    parameters = strategy.create_parameters(make_model, sgd)
    assert call(evaluate, parameters, dtype) is dtype
    assert torch.equal(call(value, parameters), torch.full((2, 3), START))


def test_a_checkpoint_is_not_rounded(strategy, call):
    parameters = strategy.create_parameters(make_model, sgd)
    saved = parameters.state_dict()
    parameters.pull().bfloat16()
    found = parameters.state_dict()["model"]["weight"]
    assert torch.equal(found, torch.full((2, 3), START))
    parameters.pull().bfloat16()
    parameters.load_state_dict(saved)
    assert torch.equal(call(value, parameters), torch.full((2, 3), START))


@pytest.mark.parametrize(
    ("dtype", "layout", "match"),
    [(torch.bfloat16, "strided", "bfloat16"), (torch.float32, "csr", "sparse_csr")],
)
def test_a_gradient_that_the_servers_cannot_take_fails_its_closure_only(
    strategy, coordinator, call, dtype, layout, match
):
    parameters = strategy.create_parameters(make_model, sgd)
    coordinator.schedule(push_ones, args=(parameters, dtype, layout))
    with pytest.raises(ConfigurationError, match=match):
        coordinator.join()
    call(push_ones, parameters, torch.float32, "strided")
    expected = torch.full((2, 3), START) - 0.1
    assert torch.allclose(parameters.state_dict()["model"]["weight"], expected)


def test_its_seed_is_not_that_of_the_closure(strategy, call):
    parameters = strategy.create_parameters(make_model, sgd)
    seed_all(123)
    assert call(draw_around_a_pull, parameters) == draw_all()
