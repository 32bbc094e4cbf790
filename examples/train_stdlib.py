"""Train a small language model on the source of Python's standard library, on all ranks together.

    torchrun --standalone --nproc-per-node 2 examples/train_stdlib.py

An example is one line of a `.py` file. The files are dealt out to the ranks (FILE); they are of
very uneven size, so one rank runs out of lines before the other and gets batches of zero rows until
the end. Afterwards the script proves that every line of every file was delivered exactly once.

Also runs as plain `python`, which is one rank, and with any number of ranks up to that of files.
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
import sysconfig
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import torch_distinput as tdi

LINE_BYTES = 128  # longer lines are cut: a few of 100,000
PADDING = 0
CONTEXT_BYTES = 12  # what the model sees before the byte it predicts
SKIPPED_FOLDERS = {"dist-packages", "site-packages", "test", "tests", "__pycache__"}


# ---- the data ----------------------------------------------------------------------------------


def count_lines(path: Path) -> int | None:
    """Count the lines of a UTF-8 file in plain Python; None for any other file."""
    try:
        path.read_bytes().decode()
    except UnicodeDecodeError:
        return None
    with path.open("rb") as file:
        return sum(1 for _ in file)


def find_files(max_files: int | None) -> tuple[dict[Path, int], int]:
    """Find the files of the standard library with their lines, and how many are not UTF-8."""
    root = Path(sysconfig.get_path("stdlib"))
    found = [
        path
        for path in sorted(root.rglob("*.py"))
        if SKIPPED_FOLDERS.isdisjoint(path.relative_to(root).parts)
    ][:max_files]
    counted = {path: count_lines(path) for path in found}
    readable = {path: count for path, count in counted.items() if count is not None}
    return readable, len(counted) - len(readable)


def to_tensor(line: str) -> torch.Tensor:
    r"""Turn a line into its bytes, ended by `\n` and padded: (LINE_BYTES,) uint8."""
    text = line.encode()[: LINE_BYTES - 1] + b"\n"
    return torch.frombuffer(bytearray(text.ljust(LINE_BYTES, b"\0")), dtype=torch.uint8)


# ---- the model ---------------------------------------------------------------------------------


class NextByte(nn.Module):
    """Predicts each byte of a line from the few before it (Bengio et al., 2003)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, 16)
        self.predict = nn.Sequential(
            nn.Linear(CONTEXT_BYTES * 16, 128), nn.ReLU(), nn.Linear(128, 256)
        )

    def forward(self, lines: torch.Tensor) -> torch.Tensor:
        """Return the negative log likelihood of each line in nats: (rows, LINE_BYTES) to (rows,).

        Only real bytes are computed, so padding costs nothing and zero rows need no special case.
        """
        is_real = lines != PADDING
        padded = functional.pad(lines, (CONTEXT_BYTES, 0), value=PADDING)
        contexts = padded.unfold(1, CONTEXT_BYTES, 1)[:, :-1]  # (rows, LINE_BYTES, CONTEXT_BYTES)
        logits = self.predict(self.embed(contexts[is_real].int()).flatten(1))  # (bytes, 256)
        nats = functional.cross_entropy(logits, lines[is_real].long(), reduction="none")
        row_of_byte = is_real.nonzero()[:, 0]
        return nats.new_zeros(len(lines)).index_add(0, row_of_byte, nats)


# ---- training ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Delivered:
    """What this rank saw of an epoch."""

    ids: torch.Tensor  # (examples, 2): file number, record number
    steps: int
    seconds: float
    wait_seconds: float


def train_epoch(
    model: nn.Module,
    strategy: tdi.Strategy,
    data: tdi.DistributedDataset,
    *,
    num_lines: int,
    args: argparse.Namespace,
) -> Delivered:
    """Train on every line once and keep the ids of the examples that came."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    num_steps = math.ceil(num_lines / args.global_batch_size)  # more where files are uneven
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=num_steps)
    ids = [np.empty((0, 2), dtype=np.int64)]

    started = time.perf_counter()
    steps = iter(tdi.progress(data, total=num_steps))  # a bar, on rank 0
    for lines in steps:
        loss = tdi.compute_average_loss(model(lines))  # nats per line of the global batch
        optimizer.zero_grad()
        (loss * strategy.num_workers).backward()  # DDP divides by the number of workers
        optimizer.step()
        schedule.step()
        ids.append(steps.last_step.ids)
    seconds = time.perf_counter() - started

    return Delivered(
        ids=torch.from_numpy(np.concatenate(ids)),
        steps=steps.stats().steps,
        seconds=seconds,
        wait_seconds=steps.stats().wait_seconds,
    )


@torch.no_grad()
def evaluate(
    model: nn.Module, strategy: tdi.Strategy, data: tdi.DistributedDataset
) -> tuple[float, float]:
    """Return the model's loss and the unigram entropy of the same bytes, in bits per byte.

    The entropy is that of the evaluated bytes' own frequencies: what the best model would reach
    that does not look at the bytes before.
    """
    nats = torch.zeros((), dtype=torch.float64)
    counts = torch.zeros(256, dtype=torch.int64)
    for lines in data:
        nats += model(lines).sum().cpu()
        counts += torch.bincount(lines[lines != PADDING].cpu(), minlength=256)
    nats, counts = strategy.reduce("sum", (nats, counts))
    num_bytes = counts.sum().item()
    entropy = torch.special.entr(counts.double() / num_bytes).sum().item()
    return nats.item() / num_bytes / math.log(2), entropy / math.log(2)


# ---- the report --------------------------------------------------------------------------------


def report(strategy: tdi.Strategy, delivered: Delivered, expected: dict[Path, int]) -> list[str]:
    """Print on rank 0 what all ranks got together; return what is wrong with it, on all ranks.

    The ids that came are compared, as a multiset, with an independent count of each file's lines.
    """
    paths, counts = list(expected), list(expected.values())
    came = Counter(map(tuple, strategy.gather(delivered.ids).tolist()))
    should = Counter((file, line) for file, count in enumerate(counts) for line in range(count))
    steps = strategy.gather(torch.tensor([delivered.steps])).tolist()
    times = torch.tensor([delivered.wait_seconds, delivered.seconds], dtype=torch.float64)
    waited, trained = strategy.reduce("sum", times).tolist()
    if strategy.worker_index == 0:
        print(f"delivered {came.total()} of {should.total()} examples")
        print("steps on every rank:", " = ".join(map(str, steps)))
        print(f"waiting for input: {100 * waited / trained:.1f} %", flush=True)

    wrong = [
        f"{paths[file]}, line {line + 1}: expected {should[file, line]} time(s), "
        f"delivered {came[file, line]}"
        for file, line in sorted((should - came) + (came - should))
    ]
    if len(set(steps)) > 1:
        wrong.append(f"the ranks made different numbers of steps: {steps}")
    return wrong


# ---- all together ------------------------------------------------------------------------------


def run(args: argparse.Namespace) -> list[str]:
    """Train for one epoch, evaluate and report; return what is wrong."""
    # A model this small is fastest on the CPU; without devices= it is each rank's accelerator.
    strategy = tdi.MultiWorkerMirroredStrategy(["cpu"])
    files, num_left_out = find_files(args.max_files)
    held_out = list(files)[::10]
    train_files = {path: count for path, count in files.items() if path not in held_out}
    if strategy.worker_index == 0:
        print(
            f"{len(train_files)} files to train on with {sum(train_files.values())} lines, "
            f"{len(held_out)} held out, {num_left_out} left out because they are not UTF-8"
        )

    train_data = strategy.distribute_dataset(
        tdi.FileDataset(list(train_files))
        .interleave(16, block_length=8)
        .shuffle(4096)
        .map(to_tensor),
        global_batch_size=args.global_batch_size,
        shuffle=True,  # the list of files, before it is dealt out
        seed=args.seed,
        options=tdi.InputOptions(auto_shard_policy="file"),
    )
    held_out_data = strategy.distribute_dataset(
        tdi.FileDataset(held_out).map(to_tensor),
        global_batch_size=args.global_batch_size,
        options=tdi.InputOptions(auto_shard_policy="data"),  # may be fewer files than ranks
    )
    torch.manual_seed(args.seed)
    model: nn.Module = NextByte().to(strategy.device)
    if strategy.num_workers > 1:
        model = DistributedDataParallel(model)
    num_lines = sum(train_files.values())
    delivered = train_epoch(model, strategy, train_data, num_lines=num_lines, args=args)
    loss, entropy = evaluate(model, strategy, held_out_data)
    if strategy.worker_index == 0:
        print(f"held-out files: {loss:.3f} bits per byte, unigram entropy {entropy:.3f}")
    return report(strategy, delivered, train_files)


def main() -> None:
    """Start the ranks' process group, train, and leave with an error if data went astray."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--global-batch-size", type=int, default=256, help="lines per step")
    parser.add_argument("--learning-rate", type=float, default=4e-3)
    parser.add_argument("--max-files", type=int, help="only the first files, for a short run")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.set_num_threads(1)  # a thread per rank: the ranks share this machine's cores
    tdi.init_distributed()
    wrong = run(args)
    gc.collect()  # DistributedDataParallel must be gone before its process group is
    if dist.is_initialized():
        dist.destroy_process_group()
    if wrong:
        sys.exit("\n".join([f"{len(wrong)} findings:", *wrong[:20]]))


if __name__ == "__main__":
    main()
