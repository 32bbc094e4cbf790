"""Train with Lightning, stop in the middle of an epoch, and go on with other ranks and batches.

    pip install '.[lightning]'
    torchrun --nproc-per-node 2 examples/train_lightning.py --stop-after 12
    python examples/train_lightning.py --resume --global-batch-size 100

The first command trains 12 steps of the first epoch on two ranks, and saves. The second one goes on
where that stopped, in one process and with larger batches, up to the end of the second epoch. Each
rank notes which examples it has trained; at the end they are counted.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn
from torch.nn import functional

from torch_distinput.integrations.lightning import DataModule

NUM_EXAMPLES = 1000
NUM_EPOCHS = 2


class Classifier(pl.LightningModule):
    """A small model; the loss of a step is the mean over all ranks' examples."""

    def __init__(self, notes: Path) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 2)
        self.notes = notes

    def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
        """Return the loss of a step, and note the examples of this rank."""
        losses = functional.cross_entropy(
            self.layer(batch["features"]), batch["label"], reduction="none"
        )
        self.note(batch["number"])
        return self.trainer.datamodule.average_loss(losses)

    def validation_step(self, batch: dict[str, torch.Tensor], _: int) -> None:
        """Log how many are right: the mean over all examples, on whatever ranks."""
        is_right = self.layer(batch["features"]).argmax(1) == batch["label"]
        data = self.trainer.datamodule
        count = data.step.num_examples
        self.log("right", data.average(is_right.float()), batch_size=count, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=0.05)

    def note(self, numbers: torch.Tensor) -> None:
        """Add a step to this rank's notes."""
        with (self.notes / f"rank-{self.global_rank}.txt").open("a") as file:
            file.writelines(f"{self.current_epoch} {number}\n" for number in numbers.tolist())


def main() -> None:
    """Train, and count where it was not stopped."""
    arguments = parse_arguments()
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    if not arguments.resume and os.environ.get("RANK", "0") == "0":
        for notes in folder.glob("rank-*.txt"):  # of another time
            notes.unlink()
    columns = make_columns()
    size = arguments.global_batch_size
    data = DataModule(columns, val=columns, global_batch_size=size, shuffle=True)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        max_epochs=NUM_EPOCHS,
        max_steps=arguments.stop_after,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    checkpoint = folder / "last.ckpt"
    resumed = checkpoint if arguments.resume else None
    trainer.fit(Classifier(folder), datamodule=data, ckpt_path=resumed)
    trainer.save_checkpoint(checkpoint)
    if trainer.is_global_zero:
        report(trainer, folder)


def make_columns() -> dict[str, torch.Tensor]:
    """A table with a row for each example: features, label and number."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(NUM_EXAMPLES, 8, generator=generator)
    label = (features.sum(1) > 0).long()
    return {"features": features, "label": label, "number": torch.arange(NUM_EXAMPLES)}


def report(trainer: Any, folder: Path) -> None:
    """Print what became of the examples, by all ranks of all runs."""
    lines = [line for path in folder.glob("rank-*.txt") for line in path.read_text().splitlines()]
    counts = Counter(tuple(map(int, line.split())) for line in lines)
    print(f"{trainer.world_size} rank(s), up to step {trainer.global_step}")
    for epoch in sorted({epoch for epoch, _ in counts}):
        times = Counter(counts[epoch, number] for number in range(NUM_EXAMPLES))
        repeated = sum(many for often, many in times.items() if often > 1)
        print(f"epoch {epoch}: {times[1]} examples once, {times[0]} to come, {repeated} repeated")


def parse_arguments() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    default = Path(tempfile.gettempdir()) / "train_lightning"
    parser.add_argument("--folder", type=Path, default=default, help="checkpoint and notes")
    parser.add_argument("--global-batch-size", type=int, default=32)
    parser.add_argument("--stop-after", type=int, default=-1, help="steps; default: no stop")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    return parser.parse_args()


if __name__ == "__main__":
    main()
