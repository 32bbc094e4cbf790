"""What it costs to go on inside an epoch: from iter() to the first batch, after a load and fresh.

    python benchmarks/resume.py [--examples 1000000] [--percent 90] [--rounds 5] [--json]

One rank, batches of 100, files in the page cache. The floor is a fresh start of the same dataset in
the same run; what a source must read again to get to its place comes on top of that.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import torch_distinput as tdi

BATCH = 100
NUM_FILES = 10
TARGETS = {"a tensor": 2.0, "map-style": 2.0}  # milliseconds
OTHER_TARGET = 50.0

Source = Callable[[], Any]


class MapStyle:
    """Examples by index, made one by one."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> int:
        return index


def write_files(folder: Path, count: int) -> None:
    """The numbers below ``count`` in files of three formats."""
    for number, values in enumerate(np.array_split(np.arange(count), NUM_FILES)):
        np.save(folder / f"{number}.npy", values)
        pq.write_table(pa.table({"x": values}), folder / f"{number}.parquet", row_group_size=10_000)
        (folder / f"{number}.txt").write_text("".join(f"{value}\n" for value in values))


def sources(folder: Path, count: int) -> dict[str, Source]:
    """One of each kind."""

    def files(suffix: str, **keywords: Any) -> tdi.FileDataset:
        reader = "text" if suffix == "txt" else suffix
        return tdi.FileDataset(str(folder / f"*.{suffix}"), reader=reader, **keywords)

    def numbers() -> Iterator[int]:
        yield from range(count)

    return {
        "a tensor": lambda: torch.arange(count),
        "map-style": lambda: MapStyle(count),
        "npy": lambda: files("npy"),
        "npy, shuffle(10000)": lambda: files("npy").shuffle(10_000),
        "npy, interleave(4, 16)": lambda: files("npy").interleave(4, 16),
        "parquet": lambda: files("parquet"),
        "text": lambda: files("txt"),
        "text, split, filter": lambda: files("txt", split_files=True).filter(lambda line: True),  # noqa: ARG005
        "a generator": lambda: numbers,
    }


def measure(source: Source, count: int, percent: int, rounds: int) -> tuple[float, float]:
    """Median milliseconds to the first batch: resumed, and fresh."""
    strategy = tdi.OneDeviceStrategy("cpu")

    def dataset() -> tdi.DistributedDataset:
        data = source()
        shuffle = not callable(data)
        return strategy.distribute_dataset(data, global_batch_size=BATCH, shuffle=shuffle)

    def first_batch(state: dict[str, Any] | None) -> float:
        made = dataset()
        started = time.perf_counter()
        if state is not None:
            made.load_state_dict(state)
        with iter(made) as iterator:
            next(iterator)
            return 1e3 * (time.perf_counter() - started)

    played = dataset()
    for _ in islice(played, count * percent // 100 // BATCH):
        pass
    state = played.state_dict()
    turns = [(first_batch(state), first_batch(None)) for _ in range(rounds)]
    resumed, fresh = (statistics.median(times) for times in zip(*turns, strict=True))
    return resumed, fresh


def main() -> None:
    """Measure every source."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--examples", type=int, default=1_000_000)
    parser.add_argument("--percent", type=int, default=90, help="of the epoch that is over")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print the figures alone")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder), args.examples)
        for name, source in sources(Path(folder), args.examples).items():
            resumed, fresh = measure(source, args.examples, args.percent, args.rounds)
            rows.append({"source": name, "resumed_ms": resumed, "fresh_ms": fresh})
    if args.json:
        print(json.dumps(rows))
        return
    print(f"{args.examples} examples, {args.percent} % over; milliseconds to the first batch")
    print(f"{'source':24}{'resumed':>9}{'fresh':>9}{'target':>9}")
    for row in rows:
        target = TARGETS.get(row["source"], OTHER_TARGET)
        print(f"{row['source']:24}{row['resumed_ms']:9.2f}{row['fresh_ms']:9.2f}{target:9.0f}")


if __name__ == "__main__":
    main()
