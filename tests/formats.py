"""Every format that can be read, as the tests write it: records with an id, a label and a text."""

from __future__ import annotations

import csv
import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import torch

from tests.tfrecords import frame, message, varint
from torch_distinput import readers


@dataclass(frozen=True)
class Format:
    """How to write records with these ids, what reads them, and where the ids are in a batch."""

    reader: readers.Reader
    suffix: str
    write: Callable[[list[int]], bytes]
    ids: Callable[[Any], list[int]]


def text_of(number: int) -> str:
    """A text whose length depends on the number."""
    return f"{number} " + 'ä,"x" ' * (number % 7)


def _lines(numbers):
    return "".join(f"{text_of(n)}\n" for n in numbers).encode()


def _jsonl(numbers):
    rows = ({"id": n, "label": n % 10, "text": text_of(n)} for n in numbers)
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _csv(numbers):
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["id", "label", "text"])
    writer.writerows([n, n % 10, f"{text_of(n)}\n{n}"] for n in numbers)
    return out.getvalue().encode()


def example(features: dict[str, bytes | int]) -> bytes:
    """A ``tf.train.Example``."""
    entries = b""
    for name, value in features.items():
        if isinstance(value, bytes):
            feature = message(1, message(1, value))
        else:
            feature = message(3, message(1, varint(value)))
        entries += message(1, message(1, name.encode()) + message(2, feature))
    return message(1, entries)


def _tfrecord(numbers):
    rows = ({"id": n, "label": n % 10, "text": text_of(n).encode()} for n in numbers)
    return b"".join(frame(example(row)) for row in rows)


def _table(numbers):
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "label": pa.array([n % 10 for n in numbers], pa.int32()),
            "text": pa.array(map(text_of, numbers), pa.string()),
        }
    )


def _parquet(numbers):
    out = io.BytesIO()
    pa.parquet.write_table(_table(numbers), out, row_group_size=7, write_page_checksum=True)
    return out.getvalue()


def _arrow(numbers, new=pa.ipc.new_file):
    out = io.BytesIO()
    table = _table(numbers)
    with new(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    return out.getvalue()


def _arrow_stream(numbers):
    return _arrow(numbers, pa.ipc.new_stream)


def _tar(numbers):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for number in numbers:
            for suffix, content in (("cls", f"{number % 10}"), ("txt", text_of(number))):
                info = tarfile.TarInfo(f"{number:06}.{suffix}")
                info.size = len(content.encode())
                archive.addfile(info, io.BytesIO(content.encode()))
    return out.getvalue()


def _npy(numbers):
    out = io.BytesIO()
    np.save(out, np.array([(n, n % 10) for n in numbers], dtype=np.float32).reshape(-1, 2))
    return out.getvalue()


def _npz(numbers):
    out = io.BytesIO()
    ids = np.array(numbers, dtype=np.int64)
    np.savez_compressed(out, id=ids, label=ids % 10)
    return out.getvalue()


def _of_column(batch):
    return batch["id"].tolist()


FEATURES = {"id": torch.int64, "label": torch.int64, "text": bytes}
FORMATS = {
    "text": Format(readers.Text(), "txt", _lines, lambda b: [int(t.split()[0]) for t in b]),
    "jsonl": Format(readers.JSONL(), "jsonl", _jsonl, _of_column),
    "csv": Format(readers.CSV(), "csv", _csv, _of_column),
    "tfrecord": Format(readers.TFRecord(FEATURES), "tfrecord", _tfrecord, _of_column),
    "parquet": Format(readers.Parquet(), "parquet", _parquet, _of_column),
    "arrow": Format(readers.Arrow(), "arrow", _arrow, _of_column),
    "arrow_stream": Format(readers.Arrow(), "arrow", _arrow_stream, _of_column),
    "tar": Format(readers.Tar(), "tar", _tar, lambda b: [int(k) for k in b["__key__"]]),
    "npy": Format(readers.Npy(), "npy", _npy, lambda b: b[:, 0].int().tolist()),
    "npz": Format(readers.Npz(), "npz", _npz, _of_column),
}
