"""The records that ``files.py`` reads, in files of each format."""

from __future__ import annotations

import io
import json
import random
import struct
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq

NUM_FILES = 8


def records(count: int) -> Iterator[dict[str, Any]]:
    """The records; the same in every run."""
    source = random.Random(0)
    pool = "".join(source.choices("abcdefghijklmnopqrstuvwxyz     ", k=1 << 20))
    for number in range(count):
        start, length = source.randrange((1 << 20) - 1500), source.randrange(600, 1400)
        yield {"id": number, "label": number % 10, "text": pool[start : start + length]}


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


def write_all(folder: Path, names: list[str], count: int) -> None:
    """A folder for each format, with all records in its files."""
    rows = list(records(count))
    size = -(-count // NUM_FILES)
    for name in names:
        Path(folder, name).mkdir()
        for number in range(NUM_FILES):
            WRITERS[name](Path(folder, name, f"{number}"), rows[number * size :][:size])
