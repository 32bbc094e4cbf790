"""How fast files of each format are read, beside the least code that walks the same bytes.

    python benchmarks/files.py [--quick] [--json] [--rounds 5] [--formats text,jsonl]

The same 100,000 records {id: int64, label: int64, text: 600 to 1400 bytes} lie in 8 uncompressed
files of each format, in the page cache, and are read in batches of 256 with one thread per rank.
The floor hands out the records with the least code (see FLOORS). *Packed* reads with
strings="packed", so that no text becomes a Python object. With two ranks each reads half of the
files. *Shuffled* permutes the list of files, and the records in a buffer of 10,000. *Memory* is
the peak of the process above its state before the first epoch. The best peers of other formats that
we know of, as ratios to the same floors: tf.data 7.7 for TFRecord, datasets 1.5 for Arrow, SPDL
1.06 for tar.
"""

from __future__ import annotations

import argparse
import json
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from formats import WRITERS, write_all
from measuring import (
    OURS,
    Figure,
    command_line,
    figure,
    forget_peak,
    peak_mb,
    ranks_named,
    ratios,
    run,
    take_turns,
)
from torch.utils.data import DataLoader, IterableDataset

import torch_distinput as tdi

BATCH = 256
COUNTS = {"full": 100_000, "quick": 16_000, "tiny": 800}
TARGETS = {
    "text": 1.2, "jsonl": 0.6, "tfrecord": 4.5, "parquet": 1.2, "arrow": 1.5, "tar": 1.1
}  # fmt: skip
PACKED = f"{OURS}, packed"
PACKED_TARGETS = {
    "text": 0.5, "jsonl": 0.5, "tfrecord": 2.0, "parquet": 1.2, "arrow": 1.5, "tar": 0.9
}  # fmt: skip
PEER = "DataLoader, IterableDataset"


# ------------------------------------------------------------------------------ floors


def floor_text(path: str) -> int:
    """One read, one split."""
    lines = Path(path).read_bytes().split(b"\n")
    return sum(len(lines[i : i + BATCH]) for i in range(0, len(lines) - 1, BATCH)) - 1


def floor_jsonl(path: str) -> int:
    """json.loads of every line, columns of numbers as arrays."""
    lines = Path(path).read_bytes().split(b"\n")[:-1]
    for i in range(0, len(lines), BATCH):
        batch = [json.loads(line) for line in lines[i : i + BATCH]]
        np.array([row["id"] for row in batch])
        np.array([row["label"] for row in batch])
        _ = [row["text"] for row in batch]
    return len(lines)


def floor_tfrecord(path: str) -> int:
    """Slices of the payloads; nothing is checked or parsed."""
    content = Path(path).read_bytes()
    view, unpack, position, found = memoryview(content), struct.Struct("<Q").unpack_from, 0, []
    while position < len(content):
        (length,) = unpack(content, position)
        found.append(view[position + 12 : position + 12 + length])
        position += 16 + length
    return len(found)


def _floor_batches(batches: Any) -> int:
    count = 0
    for batch in batches:
        for i in range(0, len(batch), BATCH):
            part = batch.slice(i, BATCH)
            part.column(0).to_numpy()
            part.column(1).to_numpy()
            part.column(2)  # stays an Arrow column: no string is made
            count += len(part)
    return count


def floor_parquet(path: str) -> int:
    """Slices of record batches; texts stay Arrow's."""
    file = pq.ParquetFile(path, memory_map=True)
    return _floor_batches(file.iter_batches(batch_size=10 * BATCH, use_threads=False))


def floor_arrow(path: str) -> int:
    """Slices of a mapped file; texts stay Arrow's."""
    with pa.memory_map(path) as mapped:
        return _floor_batches(pa.ipc.open_stream(mapped))


def floor_tar(path: str) -> int:
    """A walk over the headers, slices of the contents, grouped by key."""
    content = Path(path).read_bytes()
    view, position, rows, last = memoryview(content), 0, [], None
    row: dict[bytes, memoryview] = {}
    while position + 512 <= len(content) and content[position]:
        header = content[position : position + 512]
        size = int(header[124:135].rstrip(b" \0") or b"0", 8)
        if header[156] in (48, 0):
            key, _, suffix = header[:100].rstrip(b"\0").partition(b".")
            if key != last:
                row, last = {}, key
                rows.append(row)
            row[suffix] = view[position + 512 : position + 512 + size]
        position += 512 + ((size + 511) & ~511)
    return len(rows)


FLOORS: dict[str, Callable[[str], int]] = {
    "text": floor_text, "jsonl": floor_jsonl, "tfrecord": floor_tfrecord,
    "parquet": floor_parquet, "arrow": floor_arrow, "tar": floor_tar,
}  # fmt: skip


# ------------------------------------------------------------------------------ a peer


class Records(IterableDataset[Any]):
    """What one writes for files of a format: a generator over this rank's."""

    def __init__(self, files: list[str], read: Callable[[str], Iterator[Any]]) -> None:
        self._files = files
        self._read = read

    def __iter__(self) -> Iterator[Any]:
        for file in self._files:
            yield from self._read(file)


def lines(path: str) -> Iterator[str]:
    """Lines of text."""
    with Path(path).open() as file:
        for line in file:
            yield line.rstrip("\n")


def objects(path: str) -> Iterator[dict[str, Any]]:
    """JSON lines."""
    return map(json.loads, lines(path))


def record_batches(path: str) -> Iterator[dict[str, Any]]:
    """Batches of Parquet, with the texts as Python strings."""
    for batch in pq.ParquetFile(path, memory_map=True).iter_batches(BATCH, use_threads=False):
        ids, labels, texts = batch.columns
        numbers = {"id": torch.tensor(ids.to_numpy()), "label": torch.tensor(labels.to_numpy())}
        yield {**numbers, "text": texts.to_pylist()}


def columns(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A batch of objects."""
    numbers = {name: torch.tensor([row[name] for row in rows]) for name in ("id", "label")}
    return {**numbers, "text": [row["text"] for row in rows]}


def peer(name: str, files: list[str]) -> DataLoader[Any] | None:
    """A DataLoader over the files; None for formats that torch users have a package for."""
    if name == "text":
        return DataLoader(Records(files, lines), BATCH, collate_fn=list)
    if name == "jsonl":
        return DataLoader(Records(files, objects), BATCH, collate_fn=columns)
    if name == "parquet":
        return DataLoader(Records(files, record_batches), batch_size=None)
    return None


# ------------------------------------------------------------------------------ measuring


def reader(name: str) -> Any:
    """Our reader of a format."""
    if name == "tfrecord":
        features = {"id": torch.int64, "label": torch.int64, "text": bytes}
        return tdi.readers.TFRecord(features)
    return name


def count_rows(batch: Any) -> int:
    """Rows of a batch."""
    return len(next(iter(batch.values())) if isinstance(batch, dict) else batch)


def distribute(
    name: str, files: list[str], strategy: tdi.Strategy, strings: Any, *, shuffled: bool
) -> tdi.DistributedDataset:
    """Our way to read a format."""
    recipe = tdi.FileDataset(
        files, reader=reader(name), strings=strings, shuffle_files=shuffled
    )
    if shuffled:
        recipe = recipe.shuffle(10_000)
    return strategy.distribute_dataset(recipe, global_batch_size=BATCH * strategy.num_workers)


def measure_format(
    name: str, files: list[str], arguments: argparse.Namespace, *, shuffled: bool
) -> list[Figure]:
    """Floor and cases in turns, on this rank's share."""
    strategy = tdi.MultiWorkerMirroredStrategy(["cpu"])
    dataset = distribute(name, files, strategy, "list", shuffled=shuffled)
    mine = files[strategy.worker_index :: strategy.num_workers]
    before = forget_peak()
    count = sum(count_rows(batch) for batch in dataset)
    memory = peak_mb() - before
    total = int(strategy.reduce("sum", torch.tensor(count)))
    cases = {OURS: lambda: sum(count_rows(batch) for batch in dataset)}
    packed = distribute(name, files, strategy, "packed", shuffled=shuffled)
    cases[PACKED] = lambda: sum(count_rows(batch) for batch in packed)
    loader = None if shuffled else peer(name, mine)
    if loader is not None:
        cases[PEER] = lambda: sum(count_rows(batch) for batch in loader)
    turns = take_turns(lambda: [FLOORS[name](file) for file in mine], cases, arguments.rounds)
    order = "shuffled" if shuffled else "sequential"
    workload = f"{name}, {order}, {ranks_named()}"
    targets = {OURS: TARGETS[name], PACKED: PACKED_TARGETS[name], PEER: None}
    figures = [
        one
        for case, target in targets.items()
        if case in turns
        for one in ratios(
            workload, {case: turns[case]}, target=target, count=total, per="record"
        )
    ]
    if shuffled:
        figures.append(figure(f"{workload}: memory", OURS, "MB", [memory]))
    return figures


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """All formats, in both orders."""
    figures = []
    for name in arguments.formats.split(","):
        files = sorted(str(path) for path in Path(arguments.folder, name).iterdir())
        for shuffled in (False, True):
            figures += measure_format(name, files, arguments, shuffled=shuffled)
    return figures


def main() -> None:
    """Write the files, then read them with one rank and two."""
    parser = command_line(__doc__)
    parser.add_argument("--formats", default=",".join(WRITERS))
    parser.add_argument("--folder", help=argparse.SUPPRESS)  # where a rank finds the files
    arguments = parser.parse_args()
    if arguments.folder is not None:
        run(measure, arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        write_all(Path(folder), arguments.formats.split(","), COUNTS[arguments.size])
        arguments.folder = folder
        num_ranks = (1,) if arguments.size == "tiny" else (1, 2)
        run(measure, arguments, num_ranks=num_ranks, options=("--folder", folder))


if __name__ == "__main__":
    main()
