"""Train on Parquet files in an object store, from any number of ranks.

    python examples/train_parquet_s3.py [--ranks 2]

shows it on this machine: it starts a server that speaks S3 (moto), writes handwritten digits to six
uneven Parquet files there, and runs itself under torchrun. On files of your own with the columns
``pixels`` (64 numbers) and ``label``:

    torchrun --nproc-per-node 8 examples/train_parquet_s3.py --files 's3://bucket/digits-*.parquet'
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import subprocess
import sys

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from moto.server import ThreadedMotoServer
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import torch_distinput as tdi

SIZES = (700, 10, 450, 0, 300, 337)  # 1797 digits


def write_digits(folder: str) -> None:
    """Write the digits to files of uneven sizes, with row groups of 100 rows."""
    digits = load_digits()
    start = 0
    for number, size in enumerate(SIZES):
        part = slice(start, start + size)
        pixels = pa.array(digits.images[part].reshape(-1) / 8 - 1, pa.float32())
        table = pa.table(
            {
                "pixels": pa.FixedSizeListArray.from_arrays(pixels, 64),
                "label": pa.array(digits.target[part]),
            }
        )
        with fsspec.open(f"{folder}/digits-{number}.parquet", "wb") as file:
            pq.write_table(table, file, row_group_size=100)
        start += size


def train(files: str, epochs: int) -> None:
    """Train on every digit once per epoch, whichever rank reads it."""
    tdi.init_distributed()
    strategy = tdi.MultiWorkerMirroredStrategy()
    recipe = tdi.FileDataset(
        files,
        reader=tdi.readers.Parquet(columns=["pixels", "label"]),
        split_files=True,  # row groups are dealt out, so that uneven files do not matter
    ).shuffle(buffer_size=500)
    batches = strategy.distribute_dataset(recipe, global_batch_size=100, shuffle=True, seed=1)

    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    model.to(strategy.device)
    if strategy.num_workers > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    for epoch in range(epochs):
        hits = torch.zeros((), dtype=torch.int64, device=strategy.device)
        with iter(tdi.progress(batches)) as iterator:  # a bar, on rank 0
            for batch in iterator:
                scores = model(batch["pixels"])
                losses = functional.cross_entropy(scores, batch["label"], reduction="none")
                optimizer.zero_grad()
                (tdi.compute_average_loss(losses) * strategy.num_workers).backward()
                optimizer.step()
                hits += (scores.argmax(1) == batch["label"]).sum()
            stats = iterator.stats()
        read = strategy.reduce("sum", torch.tensor(stats.examples))
        right = strategy.reduce("sum", hits)
        if strategy.worker_index == 0:
            print(
                f"epoch {epoch}: {len(batches)} steps, {read} digits read, "
                f"{right / read:.1%} right, {stats.retries} requests repeated"
            )
    del model, optimizer  # DDP must be gone before its process group is
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()


def show(ranks: int, epochs: int) -> None:
    """Serve an object store, fill it, and start the ranks."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it would print each request
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ |= {  # where S3 is; a real one needs none of it
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "example",
        "AWS_SECRET_ACCESS_KEY": "example",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    fsspec.filesystem("s3").mkdir("s3://digits")
    write_digits("s3://digits")
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", str(ranks), __file__,
        "--files", "s3://digits/digits-*.parquet", "--epochs", str(epochs),
    ]  # fmt: skip
    code = subprocess.run(command, check=False).returncode
    server.stop()
    sys.exit(code)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", help="a glob; without it, a store on this machine is made")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=2)
    args = parser.parse_args()
    if args.files:
        train(args.files, args.epochs)
    else:
        show(args.ranks, args.epochs)
