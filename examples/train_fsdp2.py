"""FSDP2 over a device mesh, saved in the middle of an epoch and resumed on other ranks.

    pip install '.[examples]'
    torchrun --standalone --nproc-per-node 2 examples/train_fsdp2.py --folder run --steps 30
    torchrun --standalone --nproc-per-node 4 examples/train_fsdp2.py --folder run

The first line trains for 30 steps on a mesh of 2 ranks that shard the model, and saves model,
optimizer and dataset with torch.distributed.checkpoint. The second one finds the checkpoint and
goes on in the middle of the second epoch, now on 2 x 2 ranks, tensor parallel in pairs (--tp 1: on
4 that shard). Any other numbers do as well: what a checkpoint holds depends on no mesh.

The data is finite, and its end uneven: 1437 handwritten digits in batches of 64. At the end the
script checks that each of them was trained on once in every epoch, over all runs.
"""

from __future__ import annotations

import argparse
import gc
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional

import torch_distinput as tdi


def load_parts() -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Return the digits to train on, and every fifth to test with: 8 x 8 images and labels."""
    digits = load_digits()
    columns = torch.from_numpy(digits.images).float().flatten(1) / 8 - 1, digits.target
    is_test = torch.arange(len(digits.target)) % 5 == 0
    train, test = (
        tuple(torch.as_tensor(column)[part] for column in columns) for part in (~is_test, is_test)
    )
    return train, test


def make_mesh(num_tensor_parallel: int | None) -> DeviceMesh:
    """Lay the ranks out: tensor parallel in pairs, if there are enough of them."""
    num_ranks = dist.get_world_size()
    width = num_tensor_parallel or (2 if num_ranks >= 4 and num_ranks % 2 == 0 else 1)
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    names = ("dp_shard", "tp")
    return init_device_mesh(device.type, (num_ranks // width, width), mesh_dim_names=names)


def make_model(mesh: DeviceMesh) -> nn.Module:
    """Make the model on every rank alike, and cut it up."""
    torch.manual_seed(0)
    layers = nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 10), nn.LogSoftmax(1)
    model = nn.Sequential(*layers).to(mesh.device_type)
    if mesh["tp"].size() > 1:
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return fully_shard(model, mesh=mesh["dp_shard"])


class Training:
    """The model with its optimizer, as a checkpoint takes them: whole, whatever the mesh."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Take both."""
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        """Return what to save."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load it into this mesh's parts."""
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )


def run(args: argparse.Namespace) -> str | None:
    """Train from the last checkpoint on; return what is wrong with the data, once it is over."""
    mesh = make_mesh(args.tp)
    # Ranks of one tensor parallel group get the same data: dp_shard alone divides it, which the
    # names tell. With replicate_input="broadcast" one rank of each group would read for all.
    strategy = tdi.MultiWorkerMirroredStrategy(device_mesh=mesh, replicate_input=args.replicate)
    train, test = load_parts()
    indices = torch.arange(len(train[1]))
    data = strategy.distribute_dataset((*train, indices), global_batch_size=64, shuffle=True)
    model = make_model(mesh)
    training = Training(model, torch.optim.AdamW(model.parameters(), lr=0.005))

    times = torch.zeros(len(indices), dtype=torch.int64)  # how often each digit was trained on
    checkpoint = {"training": training, "data": data, "times": times}
    saved = sorted(path.parent for path in args.folder.glob("*/.metadata"))  # written last
    if saved:
        dcp.load(checkpoint, checkpoint_id=saved[-1])  # iter() goes on where the data was left
    losses = train_steps(strategy, training, data, times, args)
    dcp.save(checkpoint, checkpoint_id=args.folder / f"part-{len(saved):03}")

    is_over = len(losses) != args.steps
    with torch.no_grad():  # on all ranks, for parts of the model are on all of them
        images, labels = (column.to(strategy.device) for column in test)
        right = (model(images).argmax(1) == labels).double().mean().item()
    if dist.get_rank() == 0:
        shape = " x ".join(f"{name} {mesh[name].size()}" for name in ("dp_shard", "tp"))
        print(f"{dist.get_world_size()} ranks, {shape}: {len(losses)} steps")
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; {100 * right:.1f} % of others right")
        print(f"trained on {int(times.sum())} digits of {args.epochs} x {len(times)}")
    wrong = int((times != args.epochs).sum())
    if is_over and wrong:
        return f"expected each digit {args.epochs} times, but {wrong} came more or less often"
    return None


def train_steps(
    strategy: tdi.Strategy,
    training: Training,
    data: tdi.DistributedDataset,
    times: torch.Tensor,
    args: argparse.Namespace,
) -> list[float]:
    """Train to the end, or for some steps; note who was trained on, and return the losses."""
    losses: list[float] = []
    for _ in range(data.epoch, args.epochs):
        for step in data.steps():
            images, labels, indices = step.batch
            each = functional.nll_loss(training.model(images), labels, reduction="none")
            loss = step.average(each)  # summed over the workers: the mean of the global batch
            training.optimizer.zero_grad()
            (loss * strategy.num_workers).backward()  # FSDP divides by the number of workers
            training.optimizer.step()

            losses.append(strategy.reduce("sum", loss.detach()).item())
            times += torch.bincount(strategy.gather(indices).cpu(), minlength=len(times))
            if len(losses) == args.steps:
                return losses
    return losses


def main() -> None:
    """Join the ranks, or be the only one; train; say what went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--folder", type=Path, required=True, help="where the checkpoint is")
    parser.add_argument("--replicate", default="read", choices=["read", "broadcast"])
    parser.add_argument("--steps", type=int, help="stop after so many")
    parser.add_argument("--tp", type=int, help="ranks that share one example")
    args = parser.parse_args()

    tdi.init_distributed()
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    error = run(args)
    gc.collect()  # the model must be gone before its process group is
    dist.destroy_process_group()
    if error:
        raise SystemExit(error)


if __name__ == "__main__":
    main()
