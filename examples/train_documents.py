"""Train a small transformer on two corpora, on 2 ranks, which are killed, then on 3, then on 1.

    python examples/train_documents.py

The corpora are the functions of Python's standard library and their documentation strings, as
bytes. Each of them is packed into rows of one length, and a schedule mixes the rows: first mostly
code, then as much prose. A step has as many rows as fit a budget of bytes, and its rows are dealt
so that the ranks have nearly the same attention to compute. The loss is the mean over the bytes of
the global step.

The script starts three *legs*, each of them a job of its own under torchrun. All ranks of a leg are
killed in the middle of the epoch, and the next one goes on from the last checkpoint on another
number of ranks. Afterwards one process trains the same from the beginning: the loss of each step
must be the same. By hand, with any numbers of ranks:

    torchrun --standalone --nproc-per-node 2 examples/train_documents.py --folder run --kill-at 20
    torchrun --standalone --nproc-per-node 4 examples/train_documents.py --folder run
"""

from __future__ import annotations

import argparse
import ast
import gc
import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import torch_distinput as tdi

LEGS = [(2, 14), (3, 27), (1, None)]  # ranks, and the step at which they are killed
SAVE_EVERY = 5  # steps: those after the last checkpoint are trained again
LENGTH = 128  # bytes of a row
BUDGET = 3_000  # bytes of documents in a global step
LONGEST = 250  # bytes of a document; the rest of a longer one is cut off
END = 0  # stands before a document and after it; text has no such byte

Row = dict[str, Any]
"""What is written down of a step."""


# ---- the data ----------------------------------------------------------------------------------


def read_corpora(num_files: int) -> dict[str, list[torch.Tensor]]:
    """Return the functions of some modules, and their documentation, as bytes: (length,) int64."""
    corpora: dict[str, list[torch.Tensor]] = {"code": [], "prose": []}
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:num_files]:
        source = path.read_bytes()
        lines = source.splitlines(keepends=True)
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef):
                code, prose = lines[node.lineno - 1 : node.end_lineno], ast.get_docstring(node)
                corpora["code"].append(to_tensor(b"".join(code)))
                corpora["prose"] += [to_tensor(prose.encode())] if prose else []
    return corpora


def to_tensor(text: bytes) -> torch.Tensor:
    """Turn a document into numbers, between two that stand for its ends."""
    return torch.tensor([END, *text[:LONGEST], END])


def count_bytes(row: dict[str, torch.Tensor]) -> int:
    """Those of documents: padding belongs to document 0."""
    return int((row["document_ids"] > 0).sum())


def count_pairs(row: dict[str, torch.Tensor]) -> int:
    """What attention costs: in each document, each byte with each."""
    return int(torch.bincount(row["document_ids"])[1:].square().sum())


def distribute(strategy: tdi.Strategy, num_files: int) -> tdi.DistributedDataset:
    """Mix packed corpora: four rows of functions to each of prose, later as many."""
    corpora = read_corpora(num_files)
    packed = {name: tdi.pack(own, length=LENGTH, tokens=None) for name, own in corpora.items()}
    weights = tdi.schedule({0: (4, 1), 300: (4, 1), 600: (1, 1)})  # by rows
    return strategy.distribute_dataset(
        tdi.mix(packed, weights=weights, stop="first"),
        global_batch_size=tdi.TokenBudget(BUDGET, length=count_bytes),
        balance=count_pairs,
        shuffle=True,
        seed=0,
    )


# ---- the model ---------------------------------------------------------------------------------


class Block(nn.Module):
    """Attention to the bytes before, and a layer for each byte by itself."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.project = nn.Linear(width, 3 * width)
        self.join = nn.Linear(width, width)
        self.think = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Shape (rows, length, width), in and out; the mask (rows, 1, length, length)."""
        parts = self.project(self.norms[0](x)).unflatten(-1, (3, self.num_heads, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # each (rows, heads, length, width of one)
        found = functional.scaled_dot_product_attention(query, key, value, mask)
        x = x + self.join(found.transpose(1, 2).flatten(2))
        return x + self.think(self.norms[1](x))


class Transformer(nn.Module):
    """Predicts each byte of a document from those before it."""

    def __init__(self, width: int = 32, num_blocks: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.place = nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList([Block(width, num_heads=4) for _ in range(num_blocks)])
        self.predict = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 256))

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the loss of each byte: (rows, length), 0 where there is no label."""
        documents = batch["document_ids"]
        mask = (documents[:, :, None] == documents[:, None, :]).tril()[:, None]
        x = self.embed(batch["input_ids"]) + self.place(batch["position_ids"])
        for block in self.blocks:
            x = block(x, mask)
        scores = self.predict(x).transpose(1, 2)
        return functional.cross_entropy(scores, batch["labels"], reduction="none")


# ---- a leg -------------------------------------------------------------------------------------


def train(strategy: tdi.Strategy, folder: Path, args: argparse.Namespace) -> None:
    """Train from the last checkpoint on; the last leg writes down what was trained."""
    data = distribute(strategy, args.num_files)
    torch.manual_seed(0)
    model: nn.Module = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    path, rows = folder / "checkpoint.pt", []
    if path.exists():
        checkpoint = torch.load(path, weights_only=True)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        data.load_state_dict(checkpoint["data"])  # on all ranks; steps() goes on there
        rows = checkpoint["rows"]
    first = len(rows)

    parallel = DistributedDataParallel(model) if strategy.num_workers > 1 else model
    for step in tdi.progress(data).steps():  # a bar, on rank 0
        loss = step.average(parallel(step.batch), weights=step.batch["loss_mask"])
        optimizer.zero_grad()
        (loss * strategy.num_workers).backward()  # DDP divides by the number of workers
        optimizer.step()
        rows.append(describe(strategy, step, loss))
        if strategy.worker_index == 0 and len(rows) % SAVE_EVERY == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save(path, {**state, "data": step.state_dict(), "rows": rows})
        if step.index == args.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    if strategy.worker_index == 0:
        (folder / "rows.json").write_text(json.dumps(rows))
        print(f"{strategy.num_workers} rank(s) trained steps {first} to {len(rows) - 1}")


def describe(strategy: tdi.Strategy, step: tdi.Step, loss: torch.Tensor) -> Row:
    """Write down a step, alike on all ranks: what they have computed together."""
    documents = step.batch["document_ids"]
    pairs = sum(count_pairs({"document_ids": own}) for own in documents)
    counts = torch.tensor([[(documents > 0).sum(), documents.numel(), pairs]])
    together = strategy.gather(counts)  # (ranks, 3)
    tokens, places, _ = together.sum(0).tolist()
    return {
        "loss": strategy.reduce("sum", loss.detach()).item(),
        "sources": dict(step.sources or {}),
        "tokens": tokens,
        "places": places,
        "pairs": together[:, 2].tolist(),  # of each rank
    }


def save(path: Path, checkpoint: dict[str, Any]) -> None:
    """Write aside and rename: whenever a rank is killed, there is a whole checkpoint."""
    torch.save(checkpoint, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


# ---- the report --------------------------------------------------------------------------------


def report(rows: list[Row], alone: list[Row]) -> float:
    """Print what was trained, and return the largest difference to the losses of one process."""
    shares: Counter[str] = Counter()
    for row in rows:
        shares.update(row["sources"])
    waste = 1 - sum(row["tokens"] for row in rows) / sum(row["places"] for row in rows)
    pairs = [row["pairs"] for row in rows]
    most = sum(map(max, pairs)) / sum(sum(own) / len(own) for own in pairs)
    worst = max(abs(one["loss"] - two["loss"]) for one, two in zip(rows, alone, strict=True))
    listed = ", ".join(f"{n / shares.total():.1%} {name}" for name, n in sorted(shares.items()))
    print(f"loss {rows[0]['loss']:.3f} -> {rows[-1]['loss']:.3f} in {len(rows)} steps")
    print(f"shares: {listed}")
    print(f"waste: {waste:.1%} of the places in rows are padding")
    print(f"balance: the slowest rank attends to {most:.2f} times as many pairs as the mean")
    print(f"largest difference to the losses of one process: {worst:.1e}")
    return worst


# ---- all together ------------------------------------------------------------------------------


def run_legs(num_files: int) -> None:
    """Start the legs one after another, and then one process that does the same alone."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        for name, num_ranks, kill_at in [("legs", *leg) for leg in LEGS] + [("alone", 1, None)]:
            torchrun = ["torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
            command = [sys.executable, "-m", *torchrun, __file__, f"--folder={folder}/{name}"]
            command += [f"--num-files={num_files}"]
            command += [] if kill_at is None else [f"--kill-at={kill_at}"]
            # torchrun says at length that its ranks were killed; nothing else may have ended them.
            done = subprocess.run(
                command, check=False, env=environment, stderr=subprocess.PIPE, text=True
            )
            was_killed = "SIGKILL" in done.stderr
            if was_killed is (kill_at is None) or (done.returncode and not was_killed):
                sys.exit(done.stderr)
            if kill_at is not None:
                print(f"{num_ranks} rank(s) were killed at step {kill_at}", flush=True)
        legs, alone = (
            json.loads((Path(folder) / name / "rows.json").read_text())
            for name in ("legs", "alone")
        )
    if report(legs, alone) > 1e-5:
        sys.exit("expected the losses of one process, got others")


def main() -> None:
    """Start the legs; under torchrun, be a rank of one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where the checkpoint is, for a single leg")
    parser.add_argument("--kill-at", type=int, help="after which step of the epoch all ranks die")
    parser.add_argument("--num-files", type=int, default=30, help="modules that are read")
    args = parser.parse_args()
    if args.folder is None:
        run_legs(args.num_files)
        return

    args.folder.mkdir(exist_ok=True)
    torch.set_num_threads(1)  # a thread per rank: the ranks share this machine's cores
    tdi.init_distributed()
    train(tdi.MultiWorkerMirroredStrategy(["cpu"]), args.folder, args)
    gc.collect()  # DistributedDataParallel must be gone before its process group is
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
