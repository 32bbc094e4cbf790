"""Train with Accelerate, stop in the middle of an epoch, and go on; count every example.

torchrun --nproc-per-node 2 examples/train_accelerate.py
"""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn

import torch_distinput as tdi
from torch_distinput.integrations import accelerate as tdi_accelerate

NUM_EXAMPLES, NUM_EPOCHS = 1000, 2
ON_CPU = not torch.accelerator.is_available()  # Accelerate must be told


def make_columns() -> dict[str, torch.Tensor]:
    """Make examples that a line separates, with their numbers."""
    numbers = torch.arange(NUM_EXAMPLES)
    features = torch.stack([torch.sin(numbers * 0.01), torch.cos(numbers * 0.02)], 1)
    return {"number": numbers, "features": features, "label": (features.sum(1) > 0).long()}


def train(folder: Path, stop_after: int | None = None) -> torch.Tensor:
    """Train from what the folder holds; how often each example was trained in each epoch."""
    accelerator = Accelerator(cpu=ON_CPU, gradient_accumulation_steps=4)
    strategy = tdi.MultiWorkerMirroredStrategy([accelerator.device])
    data = strategy.distribute_dataset(make_columns(), global_batch_size=64, shuffle=True, seed=0)
    loader = tdi_accelerate.prepare(data, accelerator)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.register_for_checkpointing(loader)
    if folder.exists():
        accelerator.load_state(folder)
    criterion = nn.CrossEntropyLoss(reduction="none")
    counts = torch.zeros(NUM_EPOCHS, NUM_EXAMPLES, device=accelerator.device)
    for epoch in range(loader.epoch, NUM_EPOCHS):
        for batch in loader:
            with accelerator.accumulate(model):
                losses = criterion(model(batch["features"]), batch["label"])  # one per example
                accelerator.backward(loader.average_loss(losses))
                optimizer.step()
                optimizer.zero_grad()
            counts[epoch, batch["number"]] += 1
            if loader.step.index + 1 == stop_after:
                accelerator.save_state(folder)
                return accelerator.reduce(counts).int()
    return accelerator.reduce(counts).int()


def main() -> None:
    """Train, go on from the checkpoint, and tell the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", default="trained_linear", type=Path, help="for checkpoints")
    folder = parser.parse_args().folder
    accelerator = Accelerator(cpu=ON_CPU)
    counts = train(folder, stop_after=8) + train(folder)
    for epoch, found in enumerate(counts):
        once, lost = int((found == 1).sum()), int((found == 0).sum())
        repeated = int((found > 1).sum())
        accelerator.print(f"epoch {epoch}: {once} once, {lost} lost, {repeated} repeated")
    accelerator.end_training()


if __name__ == "__main__":
    main()
