"""An Accelerator over the ranks of ``run_ranks``, and a model whose gradients tell what it saw."""

from __future__ import annotations

import gc
import os
from contextlib import contextmanager

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState

COUNT = 22
GLOBAL_BATCH = 4  # 6 steps; the last one has 2 examples


@contextmanager
def launched(strategy):
    """The environment of a launcher, on a rank that has its process group; forgotten at the end."""
    rank, size = str(strategy.worker_index), str(strategy.num_workers)
    before = dict(os.environ)
    os.environ.update(ACCELERATE_USE_CPU="1", OMP_NUM_THREADS="1")
    if strategy.num_workers > 1:
        os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=size, LOCAL_WORLD_SIZE=size)
    try:
        yield
    finally:
        gc.collect()  # models go before the process group does
        forget()
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def accelerator_on(strategy, **arguments):
    with launched(strategy):
        accelerator = Accelerator(cpu=True, **arguments)
        assert strategy.num_workers == accelerator.num_processes
        yield accelerator
        accelerator.free_memory()


def forget():
    """Let the next job of these ranks begin anew: Accelerate keeps its state in classes."""
    AcceleratorState._reset_state(reset_partial_state=True)
    PartialState._reset_state()
    GradientState._reset_state()


def rows(count=COUNT):
    """Examples that have their number, and a target that is no linear function of it."""
    numbers = torch.arange(count, dtype=torch.float64)
    return numbers, torch.sin(numbers)


def make_model():
    torch.manual_seed(0)
    return torch.nn.Linear(2, 1, dtype=torch.float64)


def losses_of(model, numbers, targets):
    """One for each example."""
    features = torch.stack([numbers / COUNT, torch.cos(numbers)], 1)
    return (model(features).flatten(0) - targets) ** 2


def weights_of(model):
    return torch.cat([part.detach().flatten() for part in model.parameters()]).tolist()


def train_alone(groups, *, lr=0.3):
    """The weights after each group of examples trained as one batch in one process."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    numbers, targets = rows()
    for group in groups:
        optimizer.zero_grad()
        losses_of(model, numbers[group], targets[group]).mean().backward()
        optimizer.step()
    return weights_of(model)
