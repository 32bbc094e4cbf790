"""Threads that fetch, where the work releases the interpreter lock or waits.

    python benchmarks/threads.py [--quick] [--json] [--rounds 5]

There are two workloads, of map-style examples in batches of 32. *compressed images*: zlib and
NumPy decode 3 x 128 x 128 bytes to float32; both release the lock. *a slow store*: the bytes of an
example come from a file system of fsspec that answers after 2 ms. The floor is a plain loop over
the examples in one thread, with torch's default_collate.

All contenders have two threads or two loader processes, started in each epoch, which is short.
"""

from __future__ import annotations

import argparse
import time
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import fsspec
import numpy as np
import torch
from measuring import OURS, Figure, command_line, installed, ratios, run, take_turns
from torch.utils.data import DataLoader, Dataset, default_collate

import torch_distinput as tdi

BATCH, PARALLEL, SHAPE = 32, 2, (3, 128, 128)
WAIT_SECONDS = 0.002
COUNTS = {
    "compressed images": {"full": 6000, "quick": 1500, "tiny": 64},
    "a slow store": {"full": 1000, "quick": 400, "tiny": 64},
}
TARGETS = {"compressed images": 0.6, "a slow store": 0.55}


class Images(Dataset[Any]):
    """Compressed in memory."""

    def __init__(self, count: int) -> None:
        source = np.random.default_rng(0)
        pixels = (source.integers(0, 30, SHAPE, np.uint8).tobytes() for _ in range(20))
        few = [zlib.compress(content, 1) for content in pixels]
        self._compressed = [few[number % len(few)] for number in range(count)]

    def __len__(self) -> int:
        return len(self._compressed)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        pixels = np.frombuffer(zlib.decompress(self._compressed[index]), np.uint8)
        return torch.from_numpy(pixels.reshape(SHAPE).astype(np.float32)), index


class Stored(Dataset[Any]):
    """One file for each example, in a store that is far away."""

    def __init__(self, count: int) -> None:
        self._files = fsspec.filesystem("memory")
        for number in range(count):
            self._files.pipe_file(f"/{number}", number.to_bytes(8, "little"))
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(WAIT_SECONDS)
        content = bytearray(self._files.cat_file(f"/{index}"))
        return torch.frombuffer(content, dtype=torch.int64), index


SOURCES: dict[str, Callable[[int], Dataset[Any]]] = {
    "compressed images": Images,
    "a slow store": Stored,
}


def floor(data: Any) -> Callable[[], int]:
    """A loop."""

    def epoch() -> int:
        starts = range(0, len(data), BATCH)
        ends = (range(start, min(start + BATCH, len(data))) for start in starts)
        return sum(len(default_collate([data[index] for index in some])[1]) for some in ends)

    return epoch


def count(batches: Any, expected: int) -> Callable[[], None]:
    """Play an epoch; nobody is fast by leaving examples out."""

    def epoch() -> None:
        found = sum(len(labels) for _, labels in batches)
        if found != expected:
            raise SystemExit(f"{found} examples were delivered instead of {expected}")

    return epoch


def ours(data: Any, **parallel: Any) -> Callable[[], None]:
    """What a user writes."""
    strategy = tdi.OneDeviceStrategy("cpu")
    return count(strategy.distribute_dataset(data, global_batch_size=BATCH, **parallel), len(data))


def torchs(data: Any) -> Callable[[], None]:
    """DataLoader."""
    return count(DataLoader(data, BATCH, num_workers=PARALLEL), len(data))


def nodes(data: Any) -> Callable[[], None]:
    """Nodes of torchdata."""
    from torch.utils.data import SequentialSampler
    from torchdata import nodes

    indices = nodes.Batcher(nodes.SamplerWrapper(SequentialSampler(data)), BATCH, drop_last=False)
    fetched = nodes.ParallelMapper(
        indices,
        lambda some: default_collate([data[index] for index in some]),
        num_workers=PARALLEL,
        method="thread",
    )
    return count(nodes.Loader(fetched), len(data))


CASES: dict[str, Callable[[Any], Callable[[], None]]] = {
    OURS: partial(ours, num_threads=PARALLEL),
    "loader processes": partial(ours, num_workers=PARALLEL),
    "DataLoader": torchs,
    "torchdata nodes, threads": nodes,
}


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """Both workloads."""
    figures: list[Figure] = []
    for name, make in SOURCES.items():
        data = make(COUNTS[name][arguments.size])
        turns = take_turns(floor(data), installed(CASES, data), arguments.rounds)
        figures += ratios(name, turns, target=TARGETS[name], count=COUNTS[name][arguments.size])
    return figures


if __name__ == "__main__":
    run(measure, command_line(__doc__).parse_args())
