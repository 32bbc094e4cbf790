"""Train an embedding model on parameter servers, and kill one of the workers in the middle.

    python examples/parameter_server.py
    python examples/parameter_server.py --engine ray          # pip install '.[ray]'

Each worker takes any step that is free: pulls the parameters, computes gradients on a batch of its
own data, pushes them. Nobody waits for anybody. The model reads ten lines of Python's standard
library as a bag of words, and tells which package they are from. Its embeddings lie row by row on
all servers, and only the rows of a batch travel.

What becomes of the step of the worker that is killed? Another worker takes it, with a batch of its
own. The killed worker is started again, and its data goes on behind the last step that it returned.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sysconfig
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import torch_distinput as tdi
from torch_distinput.coordinator import ClusterCoordinator, Parameters, ParameterServerStrategy

PACKAGES = ("asyncio", "email", "http", "importlib", "logging", "multiprocessing", "unittest", "xml")
NUM_BUCKETS = 1 << 14  # words are hashed
WORDS = 32  # of an example
BATCH_SIZE = 32


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


def split() -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The examples to train on, numbered, and every tenth, which is held out."""
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

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        while True:
            yield from self._data


def make_data(context: tdi.InputContext) -> Repeated:
    """Runs on each worker: its share of the examples, in an order of its own."""
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


def train_step(batches: Iterator[dict[str, torch.Tensor]], parameters: Parameters) -> float:
    """Take a batch, and push its gradients; return its loss."""
    model = parameters.pull()
    batch = next(batches)
    loss = functional.cross_entropy(model(batch["words"]), batch["label"])
    loss.backward()
    parameters.push()
    return loss.item()


def number_examples(batch: dict[str, torch.Tensor]) -> list[int]:
    """Which examples a batch has, for the report."""
    return batch["number"].tolist()  # type: ignore[no-any-return]


# ---- all together ------------------------------------------------------------------------------


def train(strategy: ParameterServerStrategy, num_steps: int) -> dict[str, Any]:
    """Train with a worker killed after a third of the steps, and say what became of it all."""
    train_columns, held_out = split()
    parameters = strategy.create_parameters(make_model, make_optimizer)
    coordinator = ClusterCoordinator(strategy)
    data = coordinator.create_per_worker_dataset(make_data, resume="state", ids=number_examples)
    batches = iter(data)

    first = [coordinator.schedule(train_step, (batches, parameters)) for _ in range(num_steps // 3)]
    victim = coordinator.fetch(coordinator.schedule(os.getpid))
    rest = [
        coordinator.schedule(train_step, (batches, parameters))
        for _ in range(num_steps - num_steps // 3)
    ]
    os.kill(victim, signal.SIGKILL)
    coordinator.join()

    losses = coordinator.fetch([*first, *rest])
    model = parameters.pull()
    with torch.no_grad():
        predicted = model(held_out["words"]).argmax(1)
    visits = data.visits()
    return {
        "steps": len(losses),
        "accuracy": (predicted == held_out["label"]).float().mean().item(),
        "visits": visits,
        "examples": len(train_columns["label"]),
        "stats": coordinator.stats(),
    }


def main() -> None:
    """Start workers and servers, train, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", choices=("local", "ray"), default="local")
    parser.add_argument("--num-workers", type=int, default=3)
    parser.add_argument("--num-servers", type=int, default=2)
    parser.add_argument("--num-steps", type=int, default=450)
    args = parser.parse_args()
    with ParameterServerStrategy(args.num_workers, args.num_servers, engine=args.engine) as strategy:
        report = train(strategy, args.num_steps)
    print(report)


if __name__ == "__main__":
    main()
