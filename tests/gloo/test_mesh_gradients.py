"""C5 on meshes: FSDP2, HSDP and tensor parallelism train as one process does."""

from __future__ import annotations

import gc
from functools import partial

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional

import torch_distinput as tdi
from torch_distinput.testing import run_ranks

COUNT, SIZE = 9, 4  # the last global batch has one example: workers without rows


def make_model():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 5))


def make_data():
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(COUNT, 3, generator=generator)
    return features, torch.randint(0, 5, (COUNT,), generator=generator)


def train_alone():
    """Parameters after one epoch of plain single-process SGD."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for features, labels in zip(*(column.split(SIZE) for column in make_data()), strict=True):
        optimizer.zero_grad()
        functional.cross_entropy(model(features), labels).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def train(shape, names, how, _):
    """The same epoch on a mesh; the largest difference."""
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    strategy = tdi.MultiWorkerMirroredStrategy(["cpu"], device_mesh=mesh, replicate_input=how)
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(make_model(), mesh["tp"], plan)
    fully_shard(model, mesh=mesh[tuple(name for name in names if name != "tp")])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dataset = strategy.distribute_dataset(make_data(), global_batch_size=SIZE)
    for step in dataset.steps():
        features, labels = step.batch
        losses = functional.cross_entropy(model(features), labels, reduction="none")
        by_weight = step.average(losses.detach(), weights=torch.ones_like(losses))
        torch.testing.assert_close(by_weight, step.average(losses.detach()))
        optimizer.zero_grad()
        (step.average(losses) * strategy.num_workers).backward()
        optimizer.step()
    found = [parameter.full_tensor().detach() for parameter in model.parameters()]
    worst = max((a - b).abs().max().item() for a, b in zip(train_alone(), found, strict=True))
    del model, optimizer, found
    gc.collect()
    return worst


@pytest.mark.slow
@pytest.mark.parametrize("how", ["read", "broadcast"])
@pytest.mark.parametrize(
    ("shape", "names"),
    [((2, 2), ("dp_shard", "tp")), ((2, 2, 2), ("dp_replicate", "dp_shard", "tp"))],
    ids=["FSDP2 x TP", "HSDP x TP"],
)
def test_training_on_a_mesh_equals_one_process(shape, names, how):
    """The last step leaves a worker, or three, without rows."""
    num_ranks = torch.Size(shape).numel()
    for worst in run_ranks(partial(train, shape, names, how), num_ranks, timeout=100):
        assert worst < 1e-6
