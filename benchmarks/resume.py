"""What it costs to resume inside an epoch: from load_state_dict to the first batch.

    python benchmarks/resume.py [--quick] [--json] [--rounds 5]

A million shuffled examples in batches of 100, of which 0, 50 or 90 % were delivered; one rank,
files in the page cache. The floor is a fresh start of the same dataset in the same run; what a
source must read again is added to that. Peers resume the map-style dataset: by a state where they
have one, otherwise by skipping the batches.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from measuring import OURS, Figure, Turn, command_line, figure, installed, run
from torch.utils.data import DataLoader, Dataset

import torch_distinput as tdi

BATCH = 100
NUM_FILES = 10
COUNTS = {"full": 1_000_000, "quick": 100_000, "tiny": 4000}
TARGETS_MS = {"a tensor": 2.0, "map-style": 2.0}
OTHER_TARGET_MS = 50.0

Source = Callable[[], Any]
Start = Callable[[], float]
"""Makes a first batch and returns how many milliseconds that took."""


class MapStyle(Dataset[int]):
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


def ours(source: Source, num_batches: int) -> tuple[Start, Start]:
    """A start after ``num_batches`` of an epoch are over, and a fresh one."""
    strategy = tdi.OneDeviceStrategy("cpu")

    def dataset() -> tdi.DistributedDataset:
        data = source()
        shuffle = not callable(data)
        return strategy.distribute_dataset(data, global_batch_size=BATCH, shuffle=shuffle)

    played = dataset()
    with iter(played) as iterator:
        for _ in islice(iterator, num_batches):
            pass
        state = iterator.state_dict()
        expected = next(iterator)

    def start(state: dict[str, Any] | None) -> float:
        made = dataset()
        began = time.perf_counter()
        if state is not None:
            made.load_state_dict(state)
        with iter(made) as iterator:
            batch = next(iterator)
            passed = 1e3 * (time.perf_counter() - began)
        if state is not None:
            assert str(batch) == str(expected), "resumed at another place"
        return passed

    return partial(start, state), partial(start, None)


def loader_and_count(count: int) -> DataLoader[Any]:
    """A DataLoader that draws the same order again after the same seed."""
    return DataLoader(MapStyle(count), BATCH, shuffle=True, collate_fn=torch.tensor)


def torch_start(count: int, num_batches: int) -> Start:
    """DataLoader: go through the batches again."""

    def start() -> float:
        torch.manual_seed(0)
        loader = loader_and_count(count)
        began = time.perf_counter()
        next(islice(iter(loader), num_batches, None))
        return 1e3 * (time.perf_counter() - began)

    return start


def accelerate_start(count: int, num_batches: int) -> Start:
    """accelerate: its function passes over lists of indices, and fetches none of them."""
    from accelerate import Accelerator, skip_first_batches

    accelerator = Accelerator(cpu=True)

    def start() -> float:
        torch.manual_seed(0)
        loader = accelerator.prepare_data_loader(loader_and_count(count))
        began = time.perf_counter()
        next(iter(skip_first_batches(loader, num_batches)))
        return 1e3 * (time.perf_counter() - began)

    return start


def stateful_start(count: int, num_batches: int) -> Start:
    """StatefulDataLoader."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    def loader() -> StatefulDataLoader[Any]:
        torch.manual_seed(0)
        return StatefulDataLoader(MapStyle(count), BATCH, shuffle=True, collate_fn=torch.tensor)

    played = loader()
    for _ in islice(iter(played), num_batches):
        pass
    state = played.state_dict()

    def start() -> float:
        made = loader()
        began = time.perf_counter()
        made.load_state_dict(state)
        next(iter(made))
        return 1e3 * (time.perf_counter() - began)

    return start


PEERS: dict[str, Callable[[int, int], Start]] = {
    "DataLoader, islice": torch_start,
    "accelerate, skip_first_batches": accelerate_start,
    "StatefulDataLoader": stateful_start,
}


def our_figure(workload: str, name: str, turns: list[Turn]) -> Figure:
    """The milliseconds of resuming, beside those of a fresh start."""
    return figure(
        workload, OURS, "ms", [resumed for _, resumed in turns],
        floor=statistics.median(fresh for fresh, _ in turns), floor_unit="ms",
        target=TARGETS_MS.get(name, OTHER_TARGET_MS),
    )  # fmt: skip


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """Every source at 90 %; a tensor and a map-style dataset at 0 and 50 % too."""
    count, figures = COUNTS[arguments.size], []
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder), count)
        for name, source in sources(Path(folder), count).items():
            for percent in (0, 50, 90) if name in TARGETS_MS else (90,):
                workload = f"resume at {percent} %, {name}"
                num_batches = count * percent // 100 // BATCH
                resumed, fresh = ours(source, num_batches)
                turns = [(fresh(), resumed()) for _ in range(arguments.rounds)]
                figures.append(our_figure(workload, name, turns))
                peers = installed(PEERS, count, num_batches) if name == "map-style" else {}
                for peer, start in peers.items():
                    values = [start() for _ in range(arguments.rounds)]
                    figures.append(figure(workload, peer, "ms", values))
    return figures


if __name__ == "__main__":
    run(measure, command_line(__doc__).parse_args())
