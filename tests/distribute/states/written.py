"""The files that states were recorded with. Never change one: a state names its files by size."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tests.formats import example
from tests.tfrecords import frame
from torch_distinput import readers

LENGTHS = (5, 3, 0, 7, 2, 6)
"""Records of each file: the numbers from 10 times the file's number on."""
WIDTH = 4
BAD = 2**32 - 1


def _text(numbers: list[int]) -> bytes:
    return "".join(f"{number}\n" for number in numbers).encode()


def _jsonl(numbers: list[int]) -> bytes:
    return "".join(json.dumps({"n": number}) + "\n" for number in numbers).encode()


def _csv(numbers: list[int]) -> bytes:
    return b"n\n" + _text(numbers)


def _npy(numbers: list[int]) -> bytes:
    out = io.BytesIO()
    np.save(out, np.array(numbers, dtype=np.int64))
    return out.getvalue()


def _tfrecord(numbers: list[int]) -> bytes:
    return b"".join(frame(example({"n": number})) for number in numbers)


def _numbers(numbers: list[int]) -> bytes:
    return np.array(numbers, dtype="<u4").tobytes()


def _damaged(numbers: list[int]) -> bytes:
    return _numbers([BAD if number in (1, 32, 54) else number for number in numbers])


def parquet(numbers: list[int]) -> bytes:
    """As the recording keeps it: its size depends on the version of pyarrow."""
    import pyarrow as pa
    import pyarrow.parquet

    out = io.BytesIO()
    table = pa.table({"n": pa.array(numbers, pa.int64())})
    pa.parquet.write_table(
        table, out, row_group_size=3, compression="none", use_dictionary=False,
        write_statistics=False, store_schema=False,
    )  # fmt: skip
    return out.getvalue()


_WRITERS: dict[str, Callable[[list[int]], bytes]] = {
    "txt": _text,
    "jsonl": _jsonl,
    "csv": _csv,
    "npy": _npy,
    "tfrecord": _tfrecord,
    "bin": _numbers,
    "bad": _damaged,
}


def numbers_of(file: int) -> list[int]:
    """What a file holds."""
    return list(range(10 * file, 10 * file + LENGTHS[file]))


def write_all(folder: Path, parquets: list[str]) -> None:
    """Write the files of each format; those of Parquet from base64."""
    for file in range(len(LENGTHS)):
        for suffix, write in _WRITERS.items():
            (folder / f"{file}.{suffix}").write_bytes(write(numbers_of(file)))
        (folder / f"{file}.parquet").write_bytes(base64.b64decode(parquets[file]))


@dataclass(frozen=True)
class Numbers(readers.Reader):
    """Files of unsigned integers, in chunks of two; the largest one is a bad record.

    ``late``: what it reads is decoded by itself, perhaps after the cut.
    """

    counted: bool = False
    addressable: bool = False
    late: bool = False

    def parts(self, file: readers.InputFile) -> list[readers.Part]:
        """Three records each."""
        records = (file.size or 0) // WIDTH
        known = self.counted or self.addressable
        return [
            readers.Part(
                start=start,
                stop=min(records, start + 3),
                first_record=start,
                num_records=min(records, start + 3) - start if known else None,
            )
            for start in range(0, records, 3)
        ]

    def read(self, file: readers.InputFile, part: readers.Part) -> Iterator[torch.Tensor]:
        """Positions count records."""
        with file.open() as opened:
            opened.seek(part.start * WIDTH)
            left = 1 << 30 if part.stop is None else part.stop - part.start
            while content := opened.read(min(left, 2) * WIDTH):
                values = np.frombuffer(content, dtype="<u4").astype(np.int64)
                left -= len(values)
                yield torch.from_numpy(values) if self.late else _checked(values)

    def decode(self, records: torch.Tensor) -> torch.Tensor:
        """Refuse bad ones."""
        return _checked(records.numpy()) if self.late else records


def _checked(values: np.ndarray) -> torch.Tensor:
    if (values == BAD).any():
        msg = "the largest number"
        raise ValueError(msg)
    return torch.from_numpy(values)
