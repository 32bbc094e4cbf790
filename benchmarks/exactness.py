"""What becomes of 1,000 examples on three ranks: the first table of the README.

    python benchmarks/exactness.py

Real libraries, each as its documentation says. One epoch in global batches of 96, shuffled; an
evaluation; and an epoch that is left after 4 steps and goes on, on 3 ranks and on 2 of 48 rows
each, so that the global batch stays as it was.

- DistributedSampler: ``set_epoch`` is called. A DataLoader has no position: the epoch begins again.
- StatefulDataLoader: torchdata's, with its StatefulDistributedSampler; each rank loads its state.
- Accelerate: ``prepare`` with the seedable sampler, ``skip_first_batches``, ``gather_for_metrics``.
  Its default ``even_batches=True`` fills the last step up; False ends the ranks at different steps.
- Lightning: ``fit`` and ``validate`` of a DataLoader, resumed from a ModelCheckpoint. With a loader
  that has a state it would go on from that, if it ran on as many ranks.
- torch_distinput: ``distribute_dataset`` and ``step.state_dict()``.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

import torch_distinput as tdi

COUNT = 1000
GLOBAL_BATCH = 96
LEFT_AFTER = 4  # steps
NUM_RANKS, FEWER_RANKS = 3, 2
HEAD = (
    "1,000 examples, 3 ranks", "trained once", "repeated", "never", "steps of each rank",
    "counted in evaluation", "left and resumed on 3 ranks", "resumed on 2 ranks",
)  # fmt: skip

Steps = list[list[int]]
"""The examples of each step of a rank."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Where this process stands, and what it goes on from."""

    folder: Path
    rank: int
    world: int
    state: Any = None
    max_steps: int | None = None

    @property
    def rows(self) -> int:
        """The batch size of a rank."""
        return GLOBAL_BATCH // self.world


class Numbers(Dataset[int]):
    """The examples: their numbers."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> int:
        return index


def take(loader: Iterable[Any], max_steps: int | None) -> Steps:
    """Play a loader."""
    return [batch.tolist() for batch in islice(loader, max_steps)]


# ---- the systems: each trains for some steps and returns its state, and evaluates --------------


class Sampler:
    """torch's DataLoader with a DistributedSampler."""

    title = "`DistributedSampler`"

    def train(self, job: Job) -> tuple[Steps, Any]:
        """Without a position: whatever the state, from the beginning."""
        sampler: DistributedSampler[int]
        sampler = DistributedSampler(Numbers(), job.world, job.rank, shuffle=True)
        sampler.set_epoch(0)
        loader = DataLoader(Numbers(), batch_size=job.rows, sampler=sampler)
        return take(loader, job.max_steps), None

    def evaluate(self, job: Job) -> int:
        """Add up over ranks what each has counted."""
        sampler: DistributedSampler[int]
        sampler = DistributedSampler(Numbers(), job.world, job.rank, shuffle=False)
        loader = DataLoader(Numbers(), batch_size=job.rows, sampler=sampler)
        return total(take(loader, None))


class Stateful:
    """torchdata's StatefulDataLoader."""

    title = "torchdata `StatefulDataLoader`"

    def train(self, job: Job) -> tuple[Steps, Any]:
        """By the state of the rank."""
        sampler = StatefulDistributedSampler(Numbers(), job.world, job.rank, shuffle=True)
        sampler.set_epoch(0)
        loader = StatefulDataLoader(Numbers(), batch_size=job.rows, sampler=sampler)
        if job.state is not None:
            loader.load_state_dict(job.state)
        return take(loader, job.max_steps), loader.state_dict()

    evaluate = Sampler.evaluate


class Accelerate:
    """Hugging Face Accelerate."""

    title = "Accelerate"

    def __init__(self) -> None:
        """Join the ranks."""
        from accelerate import Accelerator, DataLoaderConfiguration

        config = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=0)
        self.accelerator = Accelerator(cpu=True, dataloader_config=config)

    def train(self, job: Job) -> tuple[Steps, Any]:
        """By the number of batches that are skipped."""
        loader = self._prepare(job, shuffle=True)
        if job.state is not None:
            loader = self.accelerator.skip_first_batches(loader, job.state)
        steps = take(loader, job.max_steps)
        return steps, len(steps)

    def evaluate(self, job: Job) -> int:
        """Gather, which leaves out what filled the last step up."""
        loader = self._prepare(job, shuffle=False)
        return sum(len(self.accelerator.gather_for_metrics(batch)) for batch in loader)

    def _prepare(self, job: Job, *, shuffle: bool) -> Any:
        loader = DataLoader(Numbers(), batch_size=job.rows, shuffle=shuffle)
        return self.accelerator.prepare(loader)


class Lightning:
    """PyTorch Lightning's Trainer."""

    title = "Lightning, default"

    def train(self, job: Job) -> tuple[Steps, Any]:
        """By a checkpoint of the Trainer's own."""
        from lightning.pytorch.callbacks import ModelCheckpoint

        saved = ModelCheckpoint(dirpath=job.folder, every_n_train_steps=LEFT_AFTER, save_top_k=-1)
        options = {"callbacks": [saved], "max_steps": job.max_steps} if job.max_steps else {}
        trainer, module = self._trainer(job, **options), counting_module()
        loader = DataLoader(Numbers(), batch_size=job.rows, shuffle=True)
        trainer.fit(module, loader, ckpt_path=job.state, weights_only=False)
        return module.steps, saved.best_model_path

    def evaluate(self, job: Job) -> int:
        """Count what ``validation_step`` gets."""
        trainer, module = self._trainer(job), counting_module()
        loader = DataLoader(Numbers(), batch_size=job.rows)
        trainer.validate(module, loader, verbose=False)
        return total(module.steps)

    def _trainer(self, job: Job, **options: Any) -> Any:
        from lightning.pytorch import Trainer

        return Trainer(
            accelerator="cpu",
            devices=job.world,
            strategy="ddp",
            max_epochs=1,
            default_root_dir=job.folder,
            logger=False,
            enable_checkpointing=bool(options),
            enable_progress_bar=False,
            enable_model_summary=False,
            **options,
        )


def counting_module() -> Any:
    """Make a LightningModule that notes the examples of each of its steps."""
    from lightning.pytorch import LightningModule

    class Counting(LightningModule):  # type: ignore[misc] # it has no types here
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.steps: Steps = []

        def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
            self.steps.append(batch.tolist())
            return torch.as_tensor(self.layer(batch[:, None].float()).mean())

        def validation_step(self, batch: torch.Tensor, _: int) -> None:
            self.steps.append(batch.tolist())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    return Counting()


class Ours:
    """This package."""

    title = "**torch_distinput**"

    def train(self, job: Job) -> tuple[Steps, Any]:
        """By the state of the last step."""
        dataset = self._distribute(shuffle=True)
        if job.state is not None:
            dataset.load_state_dict(job.state)
        steps = list(islice(dataset.steps(), job.max_steps))
        return [step.batch.tolist() for step in steps], steps[-1].state_dict()

    def evaluate(self, _: Job) -> int:
        """Add up over ranks what each has counted."""
        dataset = self._distribute(shuffle=False)
        return total(take(dataset, None))

    def _distribute(self, *, shuffle: bool) -> tdi.DistributedDataset:
        strategy = tdi.MultiWorkerMirroredStrategy(["cpu"])
        return strategy.distribute_dataset(
            torch.arange(COUNT), global_batch_size=GLOBAL_BATCH, shuffle=shuffle
        )


SYSTEMS: tuple[Callable[[], Any], ...] = (Sampler, Stateful, Accelerate, Lightning, Ours)


# ---- on the ranks ------------------------------------------------------------------------------


def total(steps: Steps) -> int:
    """Count the examples of all ranks."""
    count = torch.tensor(sum(map(len, steps)))
    dist.all_reduce(count)
    return int(count)


def on_all_ranks(steps: Steps) -> list[Steps]:
    """Return what each rank got."""
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, steps)
    return gathered


def play(system: Any, job: Job) -> dict[str, Any]:
    """Play all that is asked of this number of ranks."""
    kept = job.folder / f"{system.title}-{job.rank}.pt".replace(" ", "-")
    new = partial(Job, folder=job.folder, rank=job.rank, world=job.world)
    played: dict[str, Any] = {}
    if job.world == NUM_RANKS:
        played["epoch"] = on_all_ranks(system.train(new())[0])
        played["evaluated"] = system.evaluate(new())
        steps, state = system.train(new(max_steps=LEFT_AFTER))
        played["begun"] = on_all_ranks(steps)
        torch.save(state, kept)
    state = torch.load(kept, weights_only=False)
    played["resumed"] = on_all_ranks(system.train(new(state=state))[0])
    return played


def run_rank(folder: Path) -> None:
    """Play all systems as one of the ranks; the first of them writes what came out."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    job = Job(folder=folder, rank=rank, world=world)
    found = {}
    for make in SYSTEMS:
        system = make()
        found[system.title] = play(system, job)
    if rank == 0:
        (folder / f"{world}.json").write_text(json.dumps(found))
    gc.collect()  # models go before their process group
    dist.destroy_process_group()


# ---- the table ---------------------------------------------------------------------------------


def run_ranks(folder: Path, world: int) -> dict[str, Any]:
    """Start the ranks and return what they found."""
    torchrun = ("torch.distributed.run", "--standalone", f"--nproc-per-node={world}")
    command = [sys.executable, "-m", *torchrun, __file__, f"--folder={folder}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found: dict[str, Any] = json.loads((folder / f"{world}.json").read_text())
    return found


def tally(*parts: list[Steps]) -> tuple[int, int, int]:
    """Count the examples that came once, the surplus, and those that never came."""
    steps = [step for ranks in parts for own in ranks for step in own]
    counts = Counter(example for step in steps for example in step)
    once = sum(count == 1 for count in counts.values())
    return once, counts.total() - len(counts), COUNT - len(counts)


def row(title: str, three: dict[str, Any], two: dict[str, Any]) -> str:
    """Return a line of the table."""
    cells = [title, *map(str, tally(three["epoch"]))]
    cells += [", ".join(str(len(steps)) for steps in three["epoch"]), str(three["evaluated"])]
    for resumed in (three["resumed"], two["resumed"]):
        _, repeated, lost = tally(three["begun"], resumed)
        cells.append(f"{lost} lost, {repeated} repeated" if lost or repeated else "each once")
    return "| " + " | ".join(cells) + " |"


def table() -> list[str]:
    """Return the lines of the table."""
    with tempfile.TemporaryDirectory() as name:
        three, two = (run_ranks(Path(name), world) for world in (NUM_RANKS, FEWER_RANKS))
    lines = ["| " + " | ".join(HEAD) + " |", "|---|" + "---|" * (len(HEAD) - 1)]
    return lines + [row(title, three[title], two[title]) for title in three]


def main() -> None:
    """Print the table; under torchrun, be a rank."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, help="of a rank: where states and results go")
    folder = parser.parse_args().folder
    if folder is not None:
        run_rank(folder)
        return
    print(*table(), sep="\n")


if __name__ == "__main__":
    main()
