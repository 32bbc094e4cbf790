"""An ordinary training script, and the three lines that change for any number of ranks.

    pip install '.[examples]'
    python examples/train_digits.py
    torchrun --standalone --nproc-per-node 3 examples/train_digits.py
    python examples/train_digits.py --replicas 2

All of them train on the same global batches of 100 handwritten digits, the last of an epoch with 37
of them, and so all of them print the same losses.
"""

from __future__ import annotations

import argparse
import gc
import json
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import torch_distinput as tdi


def load_parts() -> tuple[TensorDataset, TensorDataset]:
    """Return the digits to train on, and every fifth to test with: 8 x 8 images and labels."""
    digits = load_digits()
    images = torch.from_numpy(digits.images).float().flatten(1) / 8 - 1
    labels = torch.from_numpy(digits.target)
    is_test = torch.arange(len(labels)) % 5 == 0
    train, test = (TensorDataset(images[part], labels[part]) for part in (~is_test, is_test))
    return train, test


def train(args: argparse.Namespace) -> None:
    """Train, and print the loss of each epoch and the accuracy on the test digits."""
    strategy = tdi.MultiWorkerMirroredStrategy(["cpu"] * args.replicas if args.replicas else None)
    train_digits, test_digits = load_parts()

    loader = DataLoader(train_digits, batch_size=100, shuffle=True)  # as for one process
    batches = strategy.distribute_dataset(loader, seed=args.seed)  # 1. every replica gets its part

    torch.manual_seed(args.seed)
    model: nn.Module = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    model.to(strategy.device)
    if strategy.num_workers > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        losses = functional.cross_entropy(model(images), labels, reduction="none")
        loss = tdi.compute_average_loss(losses)  # 2. the share in the global batch, not a mean()
        (loss * strategy.num_workers).backward()  # 3. DDP divides by the number of workers
        return loss.detach()

    curve: list[float] = []
    for epoch in range(args.epochs):
        for images, labels in batches:
            optimizer.zero_grad()
            # With one replica a rank, `loss = step(images, labels)` does as well.
            loss = strategy.run(step, (images, labels))
            optimizer.step()
            curve.append(strategy.reduce("sum", loss).item())
        if strategy.worker_index == 0:
            losses = curve[-len(batches) :]
            print(f"epoch {epoch}: loss {sum(losses) / len(losses):.5f}")

    with torch.no_grad():
        images, labels = (column.to(strategy.device) for column in test_digits.tensors)
        accuracy = (model(images).argmax(1) == labels).double().mean().item()
    if strategy.worker_index == 0:
        print(f"accuracy {100 * accuracy:.1f} % of {len(test_digits)} other digits")
        if args.curve:
            args.curve.write_text(json.dumps({"losses": curve, "accuracy": accuracy}))


def main() -> None:
    """Start the ranks' process group if there are ranks, train, and end it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--curve", type=Path, help="write the loss of each step here, as JSON")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--replicas", type=int, help="virtual replicas of each rank, on the CPU")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    tdi.init_distributed()
    train(args)
    gc.collect()  # DistributedDataParallel must be gone before its process group is
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
