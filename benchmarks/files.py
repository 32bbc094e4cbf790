"""How fast files of each format are read, as a ratio to a floor measured in the same run.

    python benchmarks/files.py [--records 100000] [--rounds 5] [--formats text,jsonl]

The same records {id: int64, label: int64, text: 600 to 1400 bytes} in 8 uncompressed files of each
format, in the page cache, read in batches of 256 with one thread per rank. The floor walks the
same bytes with the least code that hands out the records (see FLOORS); a ratio is the median over
rounds in which floor and street take turns. With two ranks each reads half of the files, and the
slower one counts. Peak memory is what the process holds above its state before the first epoch.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import resource
import statistics
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist

import torch_distinput as tdi

BATCH = 256
NUM_FILES = 8
TARGETS = {
    "text": 1.2, "jsonl": 0.6, "tfrecord": 4.5, "parquet": 1.2, "arrow": 1.5, "tar": 1.1
}  # fmt: skip
PEERS = {
    "text": "torch IterableDataset 1.4", "jsonl": "torch, webdataset 1.0",
    "tfrecord": "tf.data 7.7", "parquet": "datasets 1.3", "arrow": "datasets 1.5",
    "tar": "SPDL 1.06, webdataset 12",
}  # fmt: skip


def records(count: int) -> Iterator[dict[str, Any]]:
    """The records; the same in every run."""
    source = random.Random(0)
    pool = "".join(source.choices("abcdefghijklmnopqrstuvwxyz     ", k=1 << 20))
    for number in range(count):
        start, length = source.randrange((1 << 20) - 1500), source.randrange(600, 1400)
        yield {"id": number, "label": number % 10, "text": pool[start : start + length]}


# ------------------------------------------------------------------------------ writers


def _masked_crc(content: bytes) -> bytes:
    crc = google_crc32c.value(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _field(number: int, content: bytes) -> bytes:
    size, length = len(content), bytearray()
    while size >= 128:
        length.append(size & 127 | 128)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + content


def _varint_field(number: int, value: int) -> bytes:
    packed = bytearray()
    while value >= 128:
        packed.append(value & 127 | 128)
        value >>= 7
    return _field(number, bytes([*packed, value]))


def _example(row: dict[str, Any]) -> bytes:
    features = b""
    for name, value in row.items():
        packed = _varint_field(1, value) if name != "text" else b""
        kind = _field(3, packed) if packed else _field(1, _field(1, value.encode()))
        features += _field(1, _field(1, name.encode()) + _field(2, kind))
    return _field(1, features)


def write_tfrecord(path: Path, rows: list[dict[str, Any]]) -> None:
    """Frames of tf.train.Examples."""
    with path.open("wb") as file:
        for row in rows:
            payload = _example(row)
            length = struct.pack("<Q", len(payload))
            file.write(length + _masked_crc(length) + payload + _masked_crc(payload))


def write_tar(path: Path, rows: list[dict[str, Any]]) -> None:
    """WebDataset's layout."""
    with tarfile.open(path, "w") as archive:
        for row in rows:
            for suffix, content in (("cls", str(row["label"])), ("txt", row["text"])):
                info = tarfile.TarInfo(f"{row['id']:08}.{suffix}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content.encode()))


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    """Row groups of 2,500 rows, without compression."""
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, path, compression="none", row_group_size=2500, use_dictionary=False)


def write_arrow(path: Path, rows: list[dict[str, Any]]) -> None:
    """An IPC stream, as datasets writes it."""
    table = pa.Table.from_pylist(rows)
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)


def write_text(path: Path, rows: list[dict[str, Any]]) -> None:
    """Lines."""
    path.write_text("".join(f"{row['text']}\n" for row in rows))


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    """Objects."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


WRITERS: dict[str, Callable[[Path, list[dict[str, Any]]], None]] = {
    "text": write_text, "jsonl": write_jsonl, "tfrecord": write_tfrecord,
    "parquet": write_parquet, "arrow": write_arrow, "tar": write_tar,
}  # fmt: skip


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
    view, position, rows, row, last = memoryview(content), 0, [], {}, None
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


# ------------------------------------------------------------------------------ measuring


def reader(name: str) -> Any:
    """Our reader of a format."""
    if name == "tfrecord":
        features = {"id": torch.int64, "label": torch.int64, "text": bytes}
        return tdi.readers.TFRecord(features)
    return name


def count_rows(batch: Any) -> int:
    """Rows of a batch."""
    return len(batch if isinstance(batch, list) else next(iter(batch.values())))


def measure(name: str, files: list[str], rounds: int, *, shuffled: bool) -> dict[str, Any]:
    """Floor and street in turns on this rank's share."""
    strategy = tdi.MultiWorkerMirroredStrategy(["cpu"])
    recipe = tdi.FileDataset(files, reader=reader(name), shuffle_files=shuffled)
    if shuffled:
        recipe = recipe.shuffle(10_000)
    dataset = strategy.distribute_dataset(recipe, global_batch_size=BATCH * strategy.num_workers)
    mine = files[strategy.worker_index :: strategy.num_workers]
    before = _peak_bytes()
    count = sum(count_rows(batch) for batch in dataset)
    peak = _peak_bytes() - before
    times: list[tuple[float, float]] = []
    for _ in range(rounds):
        floor = _slowest(strategy, lambda: sum(FLOORS[name](file) for file in mine))
        street = _slowest(strategy, lambda: sum(count_rows(batch) for batch in dataset))
        times.append((floor, street))
    total = int(strategy.reduce("sum", torch.tensor(count)))
    floor = statistics.median(f for f, _ in times) / total * 1e6
    street = statistics.median(s for _, s in times) / total * 1e6
    ratio = statistics.median(s / f for f, s in times)
    return {"ratio": ratio, "floor": floor, "street": street, "peak": peak, "count": total}


def _slowest(strategy: tdi.Strategy, work: Callable[[], object]) -> float:
    """Seconds of the slower rank."""
    if strategy.num_workers > 1:
        dist.barrier()
    start = time.perf_counter()
    work()
    seconds = torch.tensor(time.perf_counter() - start)
    if strategy.num_workers > 1:
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return float(seconds)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def rank_main(folder: str, formats: list[str], rounds: int) -> None:
    """What each rank does."""
    torch.set_num_threads(1)
    tdi.init_distributed()
    for name in formats:
        files = sorted(str(path) for path in Path(folder, name).iterdir())
        for shuffled in (False, True):
            found = measure(name, files, rounds, shuffled=shuffled)
            if int(os.environ.get("RANK", "0")) == 0:
                order = "shuffled" if shuffled else "sequential"
                world = os.environ.get("WORLD_SIZE", "1")
                print(
                    f"| {name} | {order} | {world} | {found['floor']:.2f} | {found['street']:.2f} "
                    f"| {found['ratio']:.2f} | {TARGETS[name]} | {PEERS[name]} "
                    f"| {found['peak'] / 2**20:.0f} |",
                    flush=True,
                )
    if dist.is_initialized():
        dist.destroy_process_group()


def main() -> None:
    """Write the files, then start one and two ranks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--formats", default=",".join(WRITERS))
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    formats = arguments.formats.split(",")
    if arguments.folder:
        rank_main(arguments.folder, formats, arguments.rounds)
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = list(records(arguments.records))
        for name in formats:
            Path(folder, name).mkdir()
            for k in range(NUM_FILES):
                size = -(-len(rows) // NUM_FILES)
                WRITERS[name](Path(folder, name, f"{k}"), rows[k * size : (k + 1) * size])
        del rows
        print("| format | order | ranks | floor us | ours us | ratio | target | peers | peak MiB |")
        print("|---|---|---|---|---|---|---|---|---|", flush=True)
        for world in (1, 2):
            command = [
                sys.executable, "-m", "torch.distributed.run", "--standalone",
                "--nproc-per-node", str(world), __file__, "--folder", folder,
                "--rounds", str(arguments.rounds), "--formats", arguments.formats,
            ]  # fmt: skip
            subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


if __name__ == "__main__":
    main()
