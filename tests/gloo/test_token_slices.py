"""Losses by token of slices of sequences: divided by the tokens of all slices of all workers."""

from __future__ import annotations

import gc
from functools import partial

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import torch_distinput as tdi
from torch_distinput.testing import run_ranks

IGNORED = -100
LENGTHS = (8, 1, 5, 3, 7)  # of 8 tokens: the slices of a document have other numbers of labels
SIZE = 2  # the last of three steps has one document: a worker without rows


def make_columns():
    generator = torch.Generator().manual_seed(4)
    read = torch.randint(0, 9, (len(LENGTHS), 9), generator=generator)
    is_padding = torch.arange(8) >= torch.tensor(LENGTHS)[:, None]
    labels = read[:, 1:].masked_fill(is_padding, IGNORED)
    return {"input_ids": read[:, :-1].contiguous(), "labels": labels}


def make_model():
    torch.manual_seed(5)
    return nn.Embedding(9, 9)


def losses_of(model, batch):
    logits, labels = model(batch["input_ids"]).mT, batch["labels"]
    return functional.cross_entropy(logits, labels, reduction="none", ignore_index=IGNORED)


def is_counted(batch):
    return batch["labels"] != IGNORED


def reference(num_steps):
    """The gradients of one process, of the mean over the tokens of each group of steps."""
    model, found, columns = make_model(), [], make_columns()
    for start in range(0, len(LENGTHS), SIZE * num_steps):
        batch = {name: part[start : start + SIZE * num_steps] for name, part in columns.items()}
        loss = losses_of(model, batch).sum() / is_counted(batch).sum()
        found += torch.autograd.grad(loss, [model.weight])
    return found


def distribute(how):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    strategy = tdi.MultiWorkerMirroredStrategy(["cpu"], device_mesh=mesh, replicate_input=how)
    options = tdi.InputOptions(cp_dim="cp")
    dataset = strategy.distribute_dataset(make_columns(), global_batch_size=SIZE, options=options)
    return strategy, dataset


def gradient(model, loss):
    loss.backward()
    found, model.module.weight.grad = model.module.weight.grad, None
    return found


def train(how, _):
    """The largest difference of all gradients from those of one process."""
    strategy, dataset = distribute(how)
    model, found = DistributedDataParallel(make_model()), []
    scale = strategy.num_workers * 2  # DDP averages over all ranks

    for step in dataset.steps():
        loss = step.average(losses_of(model, step.batch), weights=is_counted(step.batch))
        found.append(gradient(model, loss * scale))
    for batch in dataset:
        loss = tdi.compute_average_loss(losses_of(model, batch), weights=is_counted(batch))
        found.append(gradient(model, loss * scale))
    for group in tdi.accumulate(dataset.steps(), 2, weights=is_counted):
        parts = []
        for step in group:
            loss = step.average(losses_of(model, step.batch), per="token")
            parts.append(gradient(model, loss * scale))
        found.append(sum(parts))
    expected = [*reference(1), *reference(1), *reference(2)]
    worst = max((a - b).abs().max().item() for a, b in zip(expected, found, strict=True))
    del model
    gc.collect()
    return worst


@pytest.mark.slow
@pytest.mark.parametrize("how", ["read", "broadcast"])
def test_gradients_are_those_of_one_process(how):
    assert [pytest.approx(0, abs=1e-6)] * 4 == run_ranks(partial(train, how), 4)


def refused(_):
    """What each rank says to a negative weight of the slice of rank 3."""
    strategy, dataset = distribute("read")
    step = next(dataset.steps())
    is_wrong = strategy.worker_index == 1 and torch.distributed.get_rank() == 3
    weights = is_counted(step.batch).float() - 1.0 * is_wrong
    try:
        step.average(losses_of(make_model(), step.batch), weights=weights)
    except (ValueError, tdi.PeerFailedError) as error:
        return str(error)


def test_wrong_weights_of_a_slice_are_refused_on_all_ranks():
    *others, own = run_ranks(refused, 4)
    assert own.startswith("Expected weights of 0 or more, got ")
    told = f"Expected weights from every worker, but worker 1 failed: ValueError: {own}"
    assert [told] * 3 == others
