"""What ranks are told to do in these tests: functions that other processes can import."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset


class OddError(Exception):
    """Does not survive pickle: its constructor takes other arguments than `args` holds."""

    def __init__(self, number: int, *, reason: str) -> None:
        super().__init__(f"{number}: {reason}")


def place(strategy) -> tuple[int, int, int]:
    return strategy.worker_index, strategy.num_workers, len(strategy.devices)


def total(strategy, scale: float = 1.0) -> torch.Tensor:
    value = torch.full((2,), scale * (dist.get_rank() + 1))
    dist.all_reduce(value)
    return value


def pid(strategy) -> int:
    return os.getpid()


def circumstances(strategy) -> tuple[str | None, str, float, int]:
    return os.environ.get("MARK"), str(Path.cwd()), random.random(), torch.get_num_threads()


def train(strategy) -> list[float]:
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
    model(torch.full((1, 2), dist.get_rank() + 1.0)).sum().backward()
    return model.module.weight.grad.flatten().tolist()


def load(strategy) -> list[int]:
    loader = DataLoader(TensorDataset(torch.arange(6)), batch_size=3, num_workers=1)
    return [int(batch.sum()) for (batch,) in loader]


def on_worker(worker: int, action: Callable[[], object], strategy) -> None:
    """Act on one worker; the others wait for it."""
    if dist.get_rank() == worker:
        action()
    dist.barrier()


def raise_value_error() -> None:
    raise ValueError("one example too many")


def raise_odd_error() -> None:
    raise OddError(3, reason="just so")


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_nothing() -> None:
    threading.Event().wait()


def hang_when_leaving(strategy) -> None:
    class Stubborn:
        def __init__(self) -> None:
            self.itself = self  # found by the collection that precedes leaving the group

        def __del__(self) -> None:
            wait_for_nothing()

    Stubborn()


def unpicklable(strategy) -> object:
    return threading.Lock()


def hang_on_worker_1(strategy) -> int:
    if strategy.worker_index == 1:
        wait_for_nothing()
    return strategy.worker_index
