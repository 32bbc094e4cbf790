"""Stop a training job inside an epoch and go on with another number of ranks: 2, then 3, then 1.

    python examples/resume_elastic.py

It starts three *legs*, each of them a job of its own under torchrun. A leg loads what the one
before it saved (the model, the optimizer, the position in the data), trains for some steps and
saves. The last one finishes the epoch, draws who has read what, and checks that every example was
trained on exactly once. By hand, with any numbers of ranks and steps:

    torchrun --standalone --nproc-per-node 2 examples/resume_elastic.py --folder run --steps 30
    torchrun --standalone --nproc-per-node 4 examples/resume_elastic.py --folder run

An example is one line of a file of Python's standard library. The files are dealt out to the ranks
(FILE). Another number of ranks goes on with those that were begun where they were left; those
that nobody has touched are dealt out again.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import sysconfig
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import torch_distinput as tdi

LEGS = [(2, 30), (3, 30), (1, None)]  # ranks and steps; the last one: to the end
NAMES = ["01234567", "abcdefgh", "ABCDEFGH"]  # of the ranks of a leg, in the picture
LINES_PER_CELL = 8
LINE_BYTES = 64  # longer lines are cut, shorter ones padded with zeros


# ---- the data and the model --------------------------------------------------------------------


def find_files() -> dict[Path, int]:
    """Find some files of the standard library, with their numbers of lines."""
    counted = {
        path: len(path.read_bytes().removesuffix(b"\n").split(b"\n"))
        for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    }
    chosen = [path for path, count in counted.items() if 100 < count < 500]
    return {path: counted[path] for path in chosen[:14]}


def to_tensor(line: str) -> torch.Tensor:
    """Turn a line into its bytes: (LINE_BYTES,) int64."""
    content = line.encode()[:LINE_BYTES].ljust(LINE_BYTES, b"\0")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).long()


def losses_of(model: nn.Module, lines: torch.Tensor) -> torch.Tensor:
    """Return how badly each line's bytes are predicted, each from the one before: (rows,)."""
    scores = model(lines[:, :-1]).transpose(1, 2)
    losses = functional.cross_entropy(scores, lines[:, 1:], ignore_index=0, reduction="none")
    return losses.sum(1)


# ---- a leg -------------------------------------------------------------------------------------


def save(path: Path, checkpoint: dict[str, Any]) -> None:
    """Write aside and rename: whatever happens, there is a whole checkpoint."""
    torch.save(checkpoint, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def run_leg(strategy: tdi.Strategy, path: Path, max_steps: int | None) -> str | None:
    """Train from the last checkpoint on; return what is wrong with the epoch, once it is over."""
    files = find_files()
    data = strategy.distribute_dataset(
        tdi.FileDataset(list(files)).map(to_tensor), global_batch_size=32
    )
    model = nn.Embedding(256, 256)  # from a byte to scores for the next one
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    leg, trained_on = 0, torch.empty(0, 4, dtype=torch.int64)
    if path.exists():
        checkpoint = torch.load(path, weights_only=True)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        data.load_state_dict(checkpoint["data"])  # on all ranks; iter() goes on there
        leg, trained_on = checkpoint["leg"], checkpoint["trained_on"]

    parallel = DistributedDataParallel(model) if strategy.num_workers > 1 else model
    steps, ids = iter(data), [torch.empty(0, 2, dtype=torch.int64)]
    loss = torch.zeros(())  # of the last step
    for lines in islice(steps, max_steps):
        loss = tdi.compute_average_loss(losses_of(parallel, lines))
        optimizer.zero_grad()
        (loss * strategy.num_workers).backward()  # DDP divides by the number of workers
        optimizer.step()
        ids.append(torch.as_tensor(steps.last_step.ids))  # file number, line number

    total = strategy.reduce("sum", loss.detach()).item()
    trained_on = torch.cat([trained_on, gather_ids(strategy, torch.cat(ids), leg)])
    if strategy.worker_index == 0:
        print(f"leg {leg}: {strategy.num_workers} rank(s), {len(ids) - 1} steps, loss {total:.1f}")
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        state |= {"data": data.state_dict(), "leg": leg + 1, "trained_on": trained_on}
        save(path, state)
    if len(ids) - 1 == max_steps:
        return None
    if strategy.worker_index == 0:
        print("", *picture(files, trained_on), "", sep="\n")
    return check(files, trained_on)


def gather_ids(strategy: tdi.Strategy, ids: torch.Tensor, leg: int) -> torch.Tensor:
    """Return who trained on what in this leg, on all ranks: leg, rank, file, line."""
    who = torch.tensor([[leg, strategy.worker_index]]).expand(len(ids), 2)
    return strategy.gather(torch.cat([who, ids], 1))


# ---- the report --------------------------------------------------------------------------------


def picture(files: dict[Path, int], trained_on: torch.Tensor) -> list[str]:
    """Draw a line for each file, with a letter for each few lines of it: who read the first."""
    readers = {
        (file, line): NAMES[leg % len(NAMES)][rank % 8]
        for leg, rank, file, line in trained_on.tolist()
    }
    return [
        f"{path.name:>16} "
        + "".join(readers.get((file, line), "?") for line in range(0, count, LINES_PER_CELL))
        for file, (path, count) in enumerate(files.items())
    ]


def check(files: dict[Path, int], trained_on: torch.Tensor) -> str | None:
    """Compare what was trained on with an independent count of the lines."""
    wanted = [[file, line] for file, count in enumerate(files.values()) for line in range(count)]
    got = sorted(trained_on[:, 2:].tolist())
    if got == wanted:
        return None
    return f"expected each of {len(wanted)} lines once, got {len(got)}, other ones or some twice"


# ---- all together ------------------------------------------------------------------------------


def run_legs() -> None:
    """Start the legs one after another."""
    # Everything is on the CPU: there may be fewer devices than ranks.
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        for num_ranks, num_steps in LEGS:
            torchrun = ["torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
            command = [sys.executable, "-m", *torchrun, __file__, f"--folder={folder}"]
            if num_steps:
                command.append(f"--steps={num_steps}")
            subprocess.run(command, check=True, env=environment)
    names = ", then ".join(" ".join(name[:n]) for name, (n, _) in zip(NAMES, LEGS, strict=True))
    print(f"Each line of each file was trained on once, by the ranks {names}.")


def main() -> None:
    """Start the legs; under torchrun, be a rank of one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where the checkpoint is, for a single leg")
    parser.add_argument("--steps", type=int, help="of this leg; to the end of the epoch if not set")
    args = parser.parse_args()
    if args.folder is None:
        run_legs()
        return

    args.folder.mkdir(exist_ok=True)
    torch.set_num_threads(1)  # a thread per rank: the ranks share this machine's cores
    tdi.init_distributed()
    strategy = tdi.MultiWorkerMirroredStrategy(["cpu"])  # a model this small is fastest there
    wrong = run_leg(strategy, args.folder / "checkpoint.pt", args.steps)
    gc.collect()  # DistributedDataParallel must be gone before its process group is
    if dist.is_initialized():
        dist.destroy_process_group()
    if wrong:
        sys.exit(wrong)


if __name__ == "__main__":
    main()
