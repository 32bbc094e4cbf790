"""Train an embedding model on parameter servers, and kill one of the workers in the middle.

    python examples/parameter_server.py
    python examples/parameter_server.py --engine ray          # pip install '.[ray]'

Each worker takes the next step as soon as it is free: it pulls the parameters, computes gradients
on a batch of its own data, and pushes them. No worker waits for another. The model reads ten lines
of Python's standard library as a bag of words, and tells which package they are from. The rows of
its embeddings lie on all servers, and only those travel that were changed.

When a worker is killed, another one takes its step, with a batch of its own. The killed worker is
started again, and its data goes on behind the last step that it returned.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sysconfig
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import torch_distinput as tdi
from torch_distinput.coordinator import (
    ClusterCoordinator,
    CoordinatorStats,
    Parameters,
    ParameterServerStrategy,
    RemoteValue,
    Visits,
)

PACKAGES = ("asyncio", "ctypes", "email", "http", "importlib", "logging", "unittest", "xml")
NUM_BUCKETS = 1 << 14  # words are hashed
WORDS = 32  # of an example
BATCH_SIZE = 32
Columns = dict[str, torch.Tensor]


# ---- the data ----------------------------------------------------------------------------------


def read_examples() -> tuple[torch.Tensor, torch.Tensor]:
    """Return words (examples, WORDS) and packages (examples,), both int64."""
    root = Path(sysconfig.get_path("stdlib"))
    words, labels = [], []
    for label, package in enumerate(PACKAGES):
        for path in sorted((root / package).rglob("*.py")):
            lines = path.read_text(encoding="utf-8").splitlines()
            for start in range(0, len(lines), 10):
                found = re.findall(r"[A-Za-z]{3,}", "\n".join(lines[start : start + 10]))
                if len(found) >= WORDS // 4:
                    words.append(to_buckets(found))
                    labels.append(label)
    return torch.tensor(words), torch.tensor(labels)


def to_buckets(words: list[str]) -> list[int]:
    """Hash WORDS words; bucket 0 is where there is none."""
    buckets = [1 + zlib.crc32(word.encode()) % (NUM_BUCKETS - 1) for word in words[:WORDS]]
    return buckets + [0] * (WORDS - len(buckets))


def split() -> tuple[Columns, Columns]:
    """Return the examples to train on, numbered, and every tenth, which is held out."""
    words, labels = read_examples()
    is_held_out = torch.arange(len(labels)) % 10 == 0
    columns = {"words": words, "label": labels}
    train = {name: column[~is_held_out] for name, column in columns.items()}
    held_out = {name: column[is_held_out] for name, column in columns.items()}
    return {**train, "number": torch.arange(len(train["label"]))}, held_out


class Repeated:
    """A worker's data, one epoch after another, with the state of the epoch it is in."""

    def __init__(self, data: tdi.DistributedDataset) -> None:
        self._data = data
        self.state_dict, self.load_state_dict = data.state_dict, data.load_state_dict

    def __iter__(self) -> Iterator[Columns]:
        while True:
            yield from self._data


def make_data(context: tdi.InputContext) -> Repeated:
    """Runs on each worker: every example belongs to one of them, in an order of its own."""
    train, _ = split()
    index, number = context.input_pipeline_id, context.num_input_pipelines
    share = {name: column[index::number] for name, column in train.items()}
    strategy = tdi.get_strategy()  # the worker's own
    return Repeated(
        strategy.distribute_dataset(share, global_batch_size=BATCH_SIZE, shuffle=True, seed=index)
    )


# ---- the model ---------------------------------------------------------------------------------


def make_model() -> nn.Module:
    """A mean of embeddings, and a layer that tells the package."""
    torch.manual_seed(0)
    embed = nn.EmbeddingBag(NUM_BUCKETS, 16, mode="mean", sparse=True, padding_idx=0)
    return nn.Sequential(embed, nn.Linear(16, len(PACKAGES)))


def make_optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """On each server, for what it holds."""
    return torch.optim.Adagrad(parameters, lr=0.3)


# ---- what workers do ---------------------------------------------------------------------------


def train_step(batches: Iterator[Columns], parameters: Parameters) -> float:
    """Take a batch, and push its gradients; return its loss."""
    model = parameters.pull()
    batch = next(batches)
    loss = functional.cross_entropy(model(batch["words"]), batch["label"])
    loss.backward()
    parameters.push()
    return loss.item()


def number_examples(batch: Columns) -> list[int]:
    """Which examples a batch has, for the report."""
    return batch["number"].tolist()


# ---- all together ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Report:
    """What became of a training.

    Attributes:
        num_steps: that were scheduled, all of which have returned.
        accuracy: on the held-out examples.
        num_examples: to train on.
        visits: how often each of them came to a step.
        stats: what became of the closures and of the workers.
    """

    num_steps: int
    accuracy: float
    num_examples: int
    visits: Visits
    stats: CoordinatorStats


def train(strategy: ParameterServerStrategy, num_steps: int) -> Report:
    """Train until each example came; kill a worker after a third of the steps."""
    columns, held_out = split()
    num_examples = len(columns["label"])
    parameters = strategy.create_parameters(make_model, make_optimizer)
    coordinator = ClusterCoordinator(strategy)
    data = coordinator.create_per_worker_dataset(make_data, resume="state", ids=number_examples)
    batches = iter(data)

    def schedule(number: int) -> list[RemoteValue]:
        return [coordinator.schedule(train_step, (batches, parameters)) for _ in range(number)]

    losses = schedule(num_steps // 3)
    victim = coordinator.schedule(os.getpid).fetch()  # of the worker that was free first
    losses += schedule(num_steps - len(losses))
    os.kill(victim, signal.SIGKILL)
    coordinator.join()
    while len(data.visits().counts) < num_examples:  # the killed worker may still be on its way
        losses += schedule(10 * strategy.num_workers)
        coordinator.join()

    model = parameters.pull()
    with torch.no_grad():
        predicted = model(held_out["words"]).argmax(1)
    return Report(
        num_steps=len(coordinator.fetch(losses)),
        accuracy=(predicted == held_out["label"]).float().mean().item(),
        num_examples=num_examples,
        visits=data.visits(),
        stats=coordinator.stats(),
    )


def describe(report: Report, num_workers: int) -> Iterator[str]:
    """Say what became of the steps, of the examples of each worker, and of the model."""
    yield f"{report.num_steps} steps, all of which returned"
    yield (
        f"{report.stats.given_back} given back by a worker that died; "
        f"workers started again: {report.stats.worker_restarts}"
    )
    for index in range(num_workers):
        visits = Counter(
            report.visits.counts.get(number, 0)
            for number in range(index, report.num_examples, num_workers)
        )
        shown = ", ".join(f"{visits[number]} came {times(number)}" for number in sorted(visits))
        yield f"examples of worker {index}: {shown}"
    yield f"held-out examples: {100 * report.accuracy:.1f} % right"


def times(number: int) -> str:
    """Say how often."""
    return "once" if number == 1 else f"{number} times"


def main() -> None:
    """Start workers and servers, train, and print the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engine", choices=("local", "ray"), default="local")
    parser.add_argument("--num-workers", type=int, default=3)
    parser.add_argument("--num-servers", type=int, default=2)
    parser.add_argument("--num-steps", type=int, default=450)
    args = parser.parse_args()
    with ParameterServerStrategy(args.num_workers, args.num_servers, args.engine) as strategy:
        report = train(strategy, args.num_steps)
    print(*describe(report, args.num_workers), sep="\n")


if __name__ == "__main__":
    main()
