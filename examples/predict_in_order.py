"""Predict on all ranks, and get the predictions back in the order of the data.

    pip install '.[examples]'
    torchrun --standalone --nproc-per-node 3 examples/predict_in_order.py

Each rank predicts its part of every batch, the last one uneven. The ids of a step say which
examples a rank had, and `gather_in_order` sorts the rows of all ranks by them, so that row i of the
result belongs to example i. The script compares them with the predictions of a single process.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn

import torch_distinput as tdi


def nearest_mean(images: torch.Tensor, labels: torch.Tensor) -> nn.Linear:
    """Return a model whose highest score is the class with the nearest mean image."""
    means = torch.stack([images[labels == label].mean(0) for label in range(10)])
    model = nn.Linear(64, 10)
    model.weight.data.copy_(means)
    model.bias.data.copy_(-(means**2).sum(1) / 2)
    return model


@torch.no_grad()
def predict(model: nn.Module, strategy: tdi.Strategy, images: torch.Tensor) -> torch.Tensor:
    """Return the scores of all images, on every rank, in the order of the images."""
    steps = iter(strategy.distribute_dataset(images, global_batch_size=128))
    indices, scores = [], []
    for batch in steps:  # a batch of zero rows gives scores of zero rows
        scores.append(model(batch))
        indices.append(steps.last_step.ids)  # of this rank's only replica
    index = torch.from_numpy(np.concatenate(indices))
    return strategy.gather_in_order(index, torch.cat(scores).cpu())


def run() -> bool:
    """Predict, report on rank 0, and return whether the order is right."""
    strategy = tdi.MultiWorkerMirroredStrategy()
    digits = load_digits()
    images = torch.from_numpy(digits.images).float().flatten(1) / 16
    labels = torch.from_numpy(digits.target)
    model = nearest_mean(images, labels)

    expected = model(images).detach()  # all of it in this process
    scores = predict(model.to(strategy.device), strategy, images)
    in_order = torch.allclose(scores, expected, atol=1e-5)
    if strategy.worker_index == 0:
        accuracy = (scores.argmax(1) == labels).double().mean().item()
        print(f"{len(scores)} predictions by {strategy.num_workers} rank(s), in order: {in_order}")
        print(f"accuracy {100 * accuracy:.1f} %")
    return in_order


def main() -> None:
    """Start the ranks' process group if there are ranks, predict, and end it."""
    tdi.init_distributed()
    in_order = run()
    if dist.is_initialized():
        dist.destroy_process_group()
    if not in_order:
        sys.exit("the predictions are not those of a single process, in the order of the images")


if __name__ == "__main__":
    main()
