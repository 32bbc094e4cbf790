"""Train with Ray Train while a worker dies and a machine goes away: every example exactly once.

    pip install '.[ray]'
    python examples/train_ray.py

It pretends three machines on this one, and trains two epochs with one worker on each. In the middle
of the first, a worker is killed: Ray Train starts a new group of the same size. In the middle of
the second, a machine is shut down: a group of two goes on. Each group begins at the checkpoint that
was reported last, in the middle of its epoch, and cuts what is left for its own number of workers.

What counts as trained? Steps after the last checkpoint are lost with the model that took them, and
the next group takes them again. So the state of the data and the model go into one checkpoint, and
only the examples of steps that are in a checkpoint are counted.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

# How often Ray Train looks after its workers, and how long it waits for a machine that it believes
# to be there. On real machines, its own 2 and 60 seconds are right.
os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "5")

import ray
import ray.train
import torch
from ray.cluster_utils import Cluster
from ray.train.torch import TorchTrainer
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import torch_distinput as tdi

NUM_EXAMPLES = 1000
GLOBAL_BATCH_SIZE = 32
NUM_EPOCHS = 2
STEPS_PER_CHECKPOINT = 5
MACHINE = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
MISHAPS = {"a worker is killed": (0, 17), "a machine is shut down": (1, 17)}  # epoch and step


# ---- what each worker runs ---------------------------------------------------------------------


def train(config: dict[str, Any]) -> None:
    """Train from the last checkpoint on; Ray Train calls it on each worker of each new group."""
    strategy = tdi.MultiWorkerMirroredStrategy()  # over the process group that Ray Train has made
    data = strategy.distribute_dataset(
        make_columns(), global_batch_size=GLOBAL_BATCH_SIZE, shuffle=True, seed=0
    )
    model = nn.Linear(8, 2).to(strategy.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    committed = Committed(strategy)
    parts = {"model": model, "optimizer": optimizer, "data": data, "committed": committed}
    load(parts)
    parallel = DistributedDataParallel(model) if strategy.num_workers > 1 else model
    criterion = nn.CrossEntropyLoss(reduction="none")

    for epoch in range(data.epoch, NUM_EPOCHS):  # of the checkpoint, which may end with its epoch
        num_steps = len(data)
        for step in data.steps():
            batch = step.batch
            loss = step.average(criterion(parallel(batch["features"]), batch["label"]))
            optimizer.zero_grad()
            (loss * strategy.num_workers).backward()  # DDP divides by the number of workers
            optimizer.step()
            committed.note(epoch, batch["number"])
            if step.index % STEPS_PER_CHECKPOINT == STEPS_PER_CHECKPOINT - 1:
                committed.commit(epoch, step.index)
                report(parts, step.state_dict(), strategy)
            suffer(config, (epoch, step.index))
        committed.commit(epoch, num_steps - 1)
        report(parts, data.state_dict(), strategy)


def make_columns() -> dict[str, torch.Tensor]:
    """Make the data: features, a label, and the number of each example, to count it by."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(NUM_EXAMPLES, 8, generator=generator)
    labels = (features.sum(1) > 0).long()
    return {"features": features, "label": labels, "number": torch.arange(NUM_EXAMPLES)}


class Committed:
    """How often each example was trained on in steps that are in a checkpoint.

    Attributes:
        counts: int64 (epochs, examples), of all workers of all groups.
        groups: of each group its number of workers, and the epoch and step of its last checkpoint.
    """

    def __init__(self, strategy: tdi.Strategy) -> None:
        """Begin with nothing."""
        self._strategy = strategy
        self.counts = torch.zeros(NUM_EPOCHS, NUM_EXAMPLES, dtype=torch.int64)
        self.groups: list[list[int]] = [[]]
        self._uncommitted = torch.zeros_like(self.counts)  # on this worker

    def note(self, epoch: int, numbers: torch.Tensor) -> None:
        """Note the examples of a step that is not in a checkpoint yet."""
        self._uncommitted[epoch] += torch.bincount(numbers.cpu(), minlength=NUM_EXAMPLES)

    def commit(self, epoch: int, step: int) -> None:
        """Count what was noted, as it goes into a checkpoint now; on all workers."""
        self.counts += self._strategy.reduce("sum", self._uncommitted)
        self._uncommitted.zero_()
        self.groups[-1] = [self._strategy.num_workers, epoch, step]

    def state_dict(self) -> dict[str, Any]:
        """Return what a new group goes on from."""
        return {"counts": self.counts, "groups": self.groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what earlier groups have counted."""
        self.counts, self.groups = state["counts"], [*state["groups"], []]


# ---- checkpoints -------------------------------------------------------------------------------


def load(parts: dict[str, Any]) -> None:
    """Put all parts back to where the last checkpoint was taken, if there is one."""
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        for name, state in read(checkpoint).items():
            parts[name].load_state_dict(state)


def report(parts: dict[str, Any], position: dict[str, Any], strategy: tdi.Strategy) -> None:
    """Report a checkpoint; on all workers, since Ray Train waits for as many reports of each.

    The model and the position in the data belong together, so they are saved together.
    """
    states = {name: part.state_dict() for name, part in parts.items()} | {"data": position}
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if strategy.worker_index == 0:  # it is the same on all workers
            torch.save(states, Path(folder) / "states.pt")
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({"workers": strategy.num_workers}, checkpoint=checkpoint)


def read(checkpoint: ray.train.Checkpoint) -> dict[str, Any]:
    """Return the states of a checkpoint."""
    with checkpoint.as_directory() as folder:
        return torch.load(Path(folder) / "states.pt", weights_only=True)


# ---- what happens to machines ------------------------------------------------------------------


def suffer(config: dict[str, Any], now: tuple[int, int]) -> None:
    """Let each mishap happen once, at its step, on the machine that it is about."""
    if ray.get_runtime_context().get_node_id() != config["unlucky_machine"]:
        return
    for name, time in MISHAPS.items():
        happened = Path(config["folder"]) / name
        if time == now and not happened.exists():
            happened.touch()
            if name == "a machine is shut down":
                os.kill(os.getppid(), signal.SIGTERM)  # the process that is Ray's machine
            os.kill(os.getpid(), signal.SIGKILL)


def start_machines(number: int) -> tuple[Cluster, str]:
    """Pretend a cluster; return the id of the machine without the driver that came last."""
    cluster = Cluster(initialize_head=True, head_node_args=MACHINE)
    others = [cluster.add_node(**MACHINE, wait=False) for _ in range(number - 1)]
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False)
    return cluster, others[-1].node_id


# ---- all together ------------------------------------------------------------------------------


def fit(folder: Path, unlucky_machine: str) -> dict[str, Any]:
    """Train on one to three workers, as there are machines; return what was committed."""
    trainer = TorchTrainer(
        train,
        train_loop_config={"folder": str(folder), "unlucky_machine": unlucky_machine},
        scaling_config=ray.train.ScalingConfig(num_workers=(1, 3)),
        run_config=ray.train.RunConfig(
            name="train_ray",
            storage_path=str(folder),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
            failure_config=ray.train.FailureConfig(max_failures=len(MISHAPS)),
        ),
    )
    return read(trainer.fit().checkpoint)["committed"]


def describe(committed: dict[str, Any]) -> list[str]:
    """Say how far each group came, and how often each example was trained on."""
    lines = [
        f"group {number}: {workers} workers, up to step {step} of epoch {epoch}"
        for number, (workers, epoch, step) in enumerate(committed["groups"])
    ]
    for epoch, counts in enumerate(committed["counts"]):
        once, lost, repeated = (counts == 1).sum(), (counts == 0).sum(), (counts > 1).sum()
        lines.append(f"epoch {epoch}: {once} examples once, {lost} lost, {repeated} repeated")
    return lines


def main() -> None:
    """Start the machines, train, and say what became of the examples."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where the checkpoints go")
    chosen = parser.parse_args().folder
    cluster, unlucky_machine = start_machines(3)
    try:
        with tempfile.TemporaryDirectory() as folder:
            committed = fit((chosen or Path(folder)).resolve(), unlucky_machine)
    finally:
        ray.shutdown()
        cluster.shutdown()
    print(*describe(committed), sep="\n")
    if not (committed["counts"] == 1).all():
        raise SystemExit("Expected each example once in each epoch.")


if __name__ == "__main__":
    main()
