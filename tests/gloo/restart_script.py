"""Training that saves as it goes, and breaks where the test says so: see test_restarts.py.

Each rank notes what a step trains on *before* the step's all-reduce: a step that a checkpoint holds
was noted by all ranks, and of any later one it does not matter who has noted it.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torch_distinput as tdi

EPOCHS = 2
SAVE_EVERY = 3
NUM_EXAMPLES = 83
GLOBAL_BATCH_SIZE = 8


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a run does.

    Attributes:
        folder: where data, checkpoint and notes are.
        run: the number of the run: one call of torchrun.
        source: "files" or "indexed".
        num_workers: loader processes.
        victim: the rank that breaks in the first attempt; None: none.
        step: in which step.
        moment: "before" the all-reduce, "after" it, while "saving"; or its "loader" process breaks.
    """

    folder: str
    run: int = 0
    source: str = "files"
    num_workers: int = 0
    victim: int | None = None
    step: int = 0
    moment: str = "before"


class Parser:
    """Reads the number in a line; from one line on it only waits to be killed.

    A loader process reads ahead, and would have ended its epoch before the step it is killed in.
    """

    def __init__(self, last_line: int | None) -> None:
        self._last_line = last_line
        self._num_lines = 0

    def __call__(self, line: str) -> int:
        self._num_lines += 1
        while self._num_lines == self._last_line:
            signal.pause()
        return int(line)


def distributed(
    job: Job, strategy: tdi.Strategy, saboteur: Saboteur | None = None
) -> tdi.DistributedDataset:
    """The numbers below NUM_EXAMPLES, from files of uneven size or from a tensor."""
    source: Any = torch.arange(NUM_EXAMPLES)
    if job.source == "files":
        last_line = saboteur.last_line_to_read() if saboteur else None
        source = tdi.FileDataset(f"{job.folder}/data-*.txt").map(Parser(last_line))
    return strategy.distribute_dataset(
        source,
        global_batch_size=GLOBAL_BATCH_SIZE,
        shuffle=True,
        seed=1,
        num_workers=job.num_workers,
    )


def new_model() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """The same on all ranks; momentum is a state that has to be saved as well."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def losses_of(model: torch.nn.Module, numbers: torch.Tensor) -> torch.Tensor:
    """One loss for each number."""
    angles = numbers.double().unsqueeze(1) * torch.tensor([0.1, 0.2, 0.3])
    return (model(angles.sin()).squeeze(1) - numbers.double() / NUM_EXAMPLES) ** 2


class Saboteur:
    """Breaks a rank, once."""

    def __init__(self, job: Job, rank: int, attempt: int) -> None:
        self._job = job
        self._armed = attempt == 0 and rank == job.victim

    def is_due(self, step: int, moment: str) -> bool:
        """Whether to break now."""
        return self._armed and (step, moment) == (self._job.step, self._job.moment)

    def come_by(self, step: int, moment: str) -> None:
        """Kill this process if its time has come."""
        if self.is_due(step, moment):
            os.kill(os.getpid(), signal.SIGKILL)

    def last_line_to_read(self) -> int | None:
        """The line at which a loader process waits that is to be killed: two steps after that."""
        is_loader = self._armed and self._job.moment == "loader"
        return (self._job.step + 2) * GLOBAL_BATCH_SIZE // 2 if is_loader else None

    def kill_loader(self, step: int) -> None:
        """Kill this rank's loader process if its time has come."""
        if self.is_due(step, "loader"):
            (loader,) = multiprocessing.active_children()
            assert loader.pid is not None
            os.kill(loader.pid, signal.SIGKILL)


def save(job: Job, saboteur: Saboteur, checkpoint: dict[str, Any]) -> None:
    """Write aside and rename; a saboteur leaves half a file."""
    path = Path(job.folder, "checkpoint.pt")
    aside = path.with_suffix(".new")
    torch.save(checkpoint, aside)
    if saboteur.is_due(checkpoint["step"], "saving"):
        os.truncate(aside, aside.stat().st_size // 2)
        saboteur.come_by(checkpoint["step"], "saving")
    aside.replace(path)


def train(job: Job, strategy: tdi.Strategy, attempt: int) -> None:
    """Train from the last checkpoint to the end of the last epoch."""
    rank, folder = strategy.worker_index, Path(job.folder)
    saboteur = Saboteur(job, rank, attempt)
    data, step = distributed(job, strategy, saboteur), 0
    model, optimizer = new_model()
    if (folder / "checkpoint.pt").exists():
        checkpoint = torch.load(folder / "checkpoint.pt", weights_only=True)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        data.load_state_dict(checkpoint["data"])
        step = checkpoint["step"]
    parallel = DistributedDataParallel(model) if strategy.num_workers > 1 else model
    with (folder / f"notes-{job.run}-{attempt}-{rank}.jsonl").open("w") as notes:
        print(json.dumps(step), file=notes, flush=True)
        for epoch in range(data.epoch, EPOCHS):
            for numbers in data:
                step += 1
                print(json.dumps([step, epoch, numbers.tolist()]), file=notes, flush=True)
                saboteur.kill_loader(step)
                saboteur.come_by(step, "before")
                loss = tdi.compute_average_loss(losses_of(parallel, numbers))
                optimizer.zero_grad()
                (loss * strategy.num_workers).backward()
                optimizer.step()
                saboteur.come_by(step, "after")
                if rank == 0 and step % SAVE_EVERY == 0:
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    save(job, saboteur, {**state, "data": data.state_dict(), "step": step})
    if rank == 0:
        weights = torch.cat([each.detach().flatten() for each in model.parameters()])
        (folder / "weights.json").write_text(json.dumps(weights.tolist()))


def be_rank(job: Job) -> None:
    """Train as a script would that torchrun has started."""
    tdi.init_distributed(60)
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    train(job, tdi.MultiWorkerMirroredStrategy(["cpu"]), attempt)
    gc.collect()  # DistributedDataParallel must be gone before its process group is
    dist.destroy_process_group()
