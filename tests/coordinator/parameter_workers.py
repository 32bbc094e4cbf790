"""What runs in the processes of workers: steps with parameters."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch
from torch import nn, optim

from torch_distinput.coordinator.parameters.identity import set_worker
from torch_distinput.coordinator.parameters.parameters import Parameters, release_all


class Lookup(nn.Module):
    """An embedding and a layer on top of it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(100, 8, sparse=True)
        self.fc = nn.Linear(8, 1)

    def forward(self, rows):
        return self.fc(self.table(rows)).squeeze(1)


def make_adagrad(parameters):
    return optim.Adagrad(parameters, lr=0.1)


class StepWorker:
    """The object in a worker's process."""

    def __init__(self, name: str) -> None:
        set_worker(name)

    def step(self, parameters: Parameters, rows: list[int]) -> dict[str, torch.Tensor]:
        """One step; return the gradients that it has pushed."""
        gradients = self._backward(parameters, rows)
        parameters.push()
        return gradients

    def steps(self, parameters: Parameters, num_steps: int) -> None:
        for step in range(num_steps):
            self.step(parameters, [step % 100, 7])

    def pull(self, parameters: Parameters) -> dict[str, Any]:
        pulled = {name: one.clone() for name, one in parameters.pull().state_dict().items()}
        release_all()
        return pulled

    def pull_and_die(self, parameters: Parameters) -> None:
        self._backward(parameters, [1])
        os.kill(os.getpid(), signal.SIGKILL)

    def pid(self) -> int:
        return os.getpid()

    @staticmethod
    def _backward(parameters: Parameters, rows: list[int]) -> dict[str, torch.Tensor]:
        module = parameters.pull()
        module(torch.tensor(rows)).square().sum().backward()
        found = {name: one.grad for name, one in module.named_parameters()}
        return {
            name: one.to_dense().clone() for name, one in found.items() if one is not None
        }
