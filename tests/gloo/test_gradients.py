"""C5: one SGD step over any split equals the single-process step on the same global batch."""

from __future__ import annotations

import copy
import gc
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_distinput as tdi
from tests.conftest import LONG
from tests.fast_paths import NAMES, switched
from torch_distinput.testing import run_ranks

COUNT, SIZE = 11, 4  # the last global batch has 3 examples: short and empty replicas


def make_model():
    """Convolution, norms, and layers that see zero rows."""
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(),
        nn.Linear(64, 10), nn.LayerNorm(10), nn.Linear(10, 5),
    )  # fmt: skip


def make_data():
    """Images and labels."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(COUNT, 1, 4, 4, generator=generator)
    return images, torch.randint(0, 5, (COUNT,), generator=generator)


def reference():
    """Parameters after one epoch of plain single-process SGD."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images, labels = make_data()
    for start in range(0, COUNT, SIZE):
        optimizer.zero_grad()
        batch = slice(start, start + SIZE)
        F.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def train(wrap, strategy, *, naive=False, paths=NAMES[0]):
    """The same epoch, distributed; returns the largest difference to the reference."""
    with switched(paths):
        return trained(wrap, strategy, naive=naive)


def trained(wrap, strategy, *, naive):
    """See above."""
    model = wrap(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dataset = strategy.distribute_dataset(make_data(), global_batch_size=SIZE)
    for images, labels in dataset:
        losses = F.cross_entropy(model(images), labels, reduction="none")
        loss = losses.mean() if naive else tdi.compute_average_loss(losses) * strategy.num_workers
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = [getattr(p, "full_tensor", lambda p=p: p)().detach() for p in model.parameters()]
    worst = max((a - b).abs().max().item() for a, b in zip(reference(), found, strict=True))
    del model, optimizer, found
    gc.collect()
    return worst


def wrap_ddp(model):
    """Replicate."""
    return nn.parallel.DistributedDataParallel(model)


def wrap_fsdp(model):
    """Shard a layer and the rest."""
    from torch.distributed.fsdp import fully_shard

    fully_shard(model[4])
    return fully_shard(model)


@pytest.mark.slow
@pytest.mark.parametrize("paths", NAMES if LONG else NAMES[:1])  # no path changes a step
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("wrap", [wrap_ddp, wrap_fsdp])
def test_training_equals_one_process(wrap, ranks, paths):
    """Float32, three steps, the last one partial with an empty rank."""
    for worst in run_ranks(partial(train, wrap, paths=paths), ranks):
        assert worst < 1e-6


def test_the_mean_of_local_means_is_wrong():
    """The recipe that this package replaces fails the same test."""
    worst = run_ranks(partial(train, wrap_ddp, naive=True), 2)
    assert not min(worst) < 1e-3  # NaN from the empty rank, or plainly wrong


@pytest.mark.parametrize("num_replicas", [1, 2, 3, 5])
def test_local_replicas_equal_one_process(num_replicas):
    """The same with virtual replicas, whose gradients add up in one set of parameters."""
    strategy = tdi.MirroredStrategy(["cpu"] * num_replicas)
    model = strategy.replicate(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(images, labels):
        losses = F.cross_entropy(model(images), labels, reduction="none")
        tdi.compute_average_loss(losses).backward()

    for batch in strategy.distribute_dataset(make_data(), global_batch_size=SIZE):
        optimizer.zero_grad()
        strategy.run(step, args=batch)
        optimizer.step()
    for expected, parameter in zip(reference(), model.parameters(), strict=True):
        assert torch.allclose(expected, parameter, atol=1e-6, rtol=0)


def test_replicated_buffers_are_those_of_replica_0():
    """BatchNorm statistics are updated once per step, by the first replica."""
    strategy = tdi.MirroredStrategy(["cpu"] * 2)
    plain = nn.BatchNorm1d(3)
    model = strategy.replicate(copy.deepcopy(plain))
    data = torch.randn(8, 3)
    (batch,) = strategy.distribute_dataset(data, global_batch_size=8)
    strategy.run(model, args=(batch,))
    plain(data[:4])
    assert torch.equal(plain.running_mean, model.module.running_mean)
    assert 1 == model.module.num_batches_tracked
