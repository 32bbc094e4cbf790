"""What coordinator.py compares with: actors of Ray and nothing else."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import nn

# ------------------------------------------------------------------------------ the work


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """A model of one parameter, its optimizer, and gradients to push."""

    shape: tuple[int, int]
    batch_rows: int | None
    times: int

    @property
    def num_bytes(self) -> int:
        """Of all pulls, and of all pushes."""
        rows = self.batch_rows or self.shape[0]
        return 4 * rows * self.shape[1] * self.times

    def make_model(self) -> Any:
        """Its parameter is ``weight``."""
        if self.batch_rows:
            return nn.Embedding(*self.shape, sparse=True)
        return nn.Linear(self.shape[1], self.shape[0], bias=False)

    @staticmethod
    def make_optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """One that takes rows, and does little."""
        return torch.optim.SGD(parameters, lr=1e-3)

    def gradients(self) -> Iterator[torch.Tensor]:
        """Made before they are asked for."""
        if not self.batch_rows:
            return iter([torch.ones(self.shape)] * self.times)
        made = []
        for turn in range(self.times):
            torch.manual_seed(turn)
            rows = torch.randperm(self.shape[0])[: self.batch_rows].sort().values
            values = torch.ones(self.batch_rows, self.shape[1])
            made.append(
                torch.sparse_coo_tensor(
                    rows[None], values, self.shape, is_coalesced=True, check_invariants=False
                )
            )
        return iter(made)


# ------------------------------------------------------------------------------ actors


class BareServer:
    """An actor that holds the parameter."""

    def __init__(self, work: Exchange) -> None:
        """Make it, and its optimizer."""
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        self._weight = work.make_model().weight
        self._optimizer = work.make_optimizer([self._weight])

    def whole(self) -> Any:
        """All of it."""
        return self._weight.detach().numpy()

    def rows(self, rows: Any) -> Any:
        """Some rows of it."""
        return self._weight.detach()[torch.from_numpy(rows)].numpy()

    def push(self, gradient: Any) -> None:
        """A step."""
        self._weight.grad = torch.from_numpy(gradient)
        self._optimizer.step()

    def push_rows(self, rows: Any, values: Any) -> None:
        """A step with some rows."""
        self._weight.grad = torch.sparse_coo_tensor(
            torch.from_numpy(rows)[None], torch.from_numpy(values), self._weight.shape,
            is_coalesced=True, check_invariants=False,
        )  # fmt: skip
        self._optimizer.step()


class BareWorker:
    """An actor that runs functions, and computes with a copy of the server's parameter."""

    def __init__(self) -> None:
        """Begin without a model."""
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        self._ray = import_module("ray")

    def call(self, fn: Callable[[int], int], number: int) -> int:
        """What a closure is."""
        return fn(number)

    def exchange(self, server: Any, work: Exchange) -> tuple[float, float]:
        """Seconds of pulls and of pushes."""
        weight = work.make_model().weight.detach()
        pulling = pushing = 0.0
        for gradient in work.gradients():
            start = time.perf_counter()
            if gradient.is_sparse:
                rows, values = gradient.indices()[0], gradient.values().numpy()
                weight[rows] = torch.from_numpy(self._ray.get(server.rows.remote(rows.numpy())))
                middle = time.perf_counter()
                self._ray.get(server.push_rows.remote(rows.numpy(), values))
            else:
                weight.copy_(torch.from_numpy(self._ray.get(server.whole.remote())))
                middle = time.perf_counter()
                self._ray.get(server.push.remote(gradient.numpy()))
            pulling += middle - start
            pushing += time.perf_counter() - middle
        return pulling, pushing


# ------------------------------------------------------------------------------ calls


def one_at_a_time(
    ray: Any, actors: Sequence[Any], fn: Callable[[int], int], number: int
) -> list[int]:
    """Give each actor a call when it has answered the one before."""
    free, results = list(actors), []
    running: dict[Any, Any] = {}
    for value in range(number):
        if not free:
            (answered,), _ = ray.wait(list(running))
            results.append(ray.get(answered))
            free.append(running.pop(answered))
        actor = free.pop()
        running[actor.call.remote(fn, value)] = actor
    return results + [ray.get(answered) for answered in running]


def pooled(ray: Any, actors: Sequence[Any], fn: Callable[[int], int], number: int) -> list[int]:
    """What Ray offers for it."""
    pool = ray.util.ActorPool(actors)
    return [*pool.map_unordered(lambda actor, value: actor.call.remote(fn, value), range(number))]


def sent_ahead(
    ray: Any, actors: Sequence[Any], fn: Callable[[int], int], number: int
) -> list[int]:
    """Nobody waits, and nobody knows who is free."""
    calls = [actors[value % len(actors)].call.remote(fn, value) for value in range(number)]
    results: list[int] = ray.get(calls)
    return results


@contextmanager
def started(ray: Any, kind: type, number: int, *arguments: Any) -> Iterator[list[Any]]:
    """Actors that are there."""
    make = ray.remote(num_cpus=0)(kind)
    actors = [make.remote(*arguments) for _ in range(number)]
    ray.get([actor.__ray_ready__.remote() for actor in actors])
    yield actors
    for actor in actors:
        ray.kill(actor)
