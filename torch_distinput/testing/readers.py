"""Does a reader keep what the protocol promises? For those who write one."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import IO, Any

import numpy as np

from torch_distinput.data.batch import rows
from torch_distinput.data.batch.fingerprint import Digest, Print
from torch_distinput.data.batch.tree import Batch, flatten
from torch_distinput.data.files.work_units import join_file_parts
from torch_distinput.data.formats.reader import CHUNK_BYTES, Part, Reader
from torch_distinput.data.storage import filesystem
from torch_distinput.data.storage.input_file import InputFile
from torch_distinput.data.storage.retries import Retries
from torch_distinput.errors import SourceError

_LARGEST_CHUNK = 8 * CHUNK_BYTES


def check_reader(reader: Reader, path: str, *, num_records: int) -> list[Any]:
    """Check a reader against the protocol on one good file; return the decoded records.

    Reads the file whole, in parts, each part alone and from its end on, from a stream that cannot
    seek, and damaged in many places.

    Args:
        reader: the reader.
        path: a file of its format; make it larger than one chunk, and of many records.
        num_records: how many records the file has.

    Raises:
        AssertionError: says which promise is broken.
    """
    reader = pickle.loads(pickle.dumps(reader))  # noqa: S301 - our own bytes
    file = _open(path)
    parts = list(reader.parts(file))
    by_part = [_records(reader, file, part) for part in parts]
    records = [record for part in by_part for record in part]
    _promise(len(records) == num_records, f"{num_records} records, got {len(records)}")
    _check_parts(parts, [len(part) for part in by_part])
    if len(parts) > 1:
        together = _records(reader, file, join_file_parts(parts))
        _promise(_equal(together, records), "neighbouring parts to be the same when read as one")
    for number in reversed(range(len(parts))):
        again = _records(reader, file, parts[number])
        _promise(_equal(again, by_part[number]), f"part {number} to be the same when read alone")
    _check_decode(reader, file, parts)
    if reader.addressable:
        _check_addresses(reader, file, parts, by_part)
    _check_stream(reader, file, records)
    _check_damage(reader, file, sum(rows.num_bytes([record]) for record in records))
    return records


def _open(path: str) -> InputFile:
    (info,) = filesystem.list_files([path], {})
    return filesystem.open_file(info, {}, bad=_raise, retries=Retries())


def _raise(where: str, reason: object) -> None:
    msg = f"{where}: {reason}"
    raise SourceError(msg)


def _skip(where: str, reason: object) -> None:
    """Go on, as on_error="skip" does."""


def _promise(kept: bool, what: str) -> None:
    if not kept:
        msg = f"Expected {what}."
        raise AssertionError(msg)


def _records(reader: Reader, file: InputFile, part: Part) -> list[Any]:
    return [record for chunk in _chunks(reader, file, part) for record in rows.iterate_rows(chunk)]


def _chunks(reader: Reader, file: InputFile, part: Part) -> Iterator[Batch]:
    """Decoded chunks."""
    for chunk in reader.read(file, part):
        count = rows.num_rows(chunk)
        size = rows.num_bytes(chunk)
        _promise(count == 1 or size <= _LARGEST_CHUNK, f"chunks of about 1 MiB, got {size} bytes")
        batch = reader.decode(chunk)
        _promise(rows.num_rows(batch) == count, f"{count} rows after decode()")
        yield batch


def _check_parts(parts: list[Part], counts: list[int]) -> None:
    for number, (part, count) in enumerate(zip(parts, counts, strict=True)):
        known = part.num_records
        _promise(known in (None, count), f"part {number} to have num_records={count}, got {known}")
        following = parts[number + 1].first_record if number + 1 < len(parts) else None
        reached = part.first_record + count
        _promise(
            following is None or reached <= following,
            f"first_record of part {number + 1} to be at least {reached}, got {following}",
        )


def _check_decode(reader: Reader, file: InputFile, parts: list[Part]) -> None:
    """A row must not depend on the rows that are decoded with it."""
    chunk = next((chunk for part in parts for chunk in reader.read(file, part)), None)
    if chunk is None:
        return
    whole = list(rows.iterate_rows(reader.decode(chunk)))
    order = np.random.default_rng(0).permutation(len(whole))[:100]
    some = list(rows.iterate_rows(reader.decode(rows.take_rows(chunk, order))))
    _promise(_equal(some, [whole[i] for i in order]), "decode() to treat each row for itself")


def _check_addresses(
    reader: Reader, file: InputFile, parts: list[Part], by_part: list[list[Any]]
) -> None:
    for part, records in zip(parts, by_part, strict=True):
        for start in {1, len(records) // 2, len(records) - 1} & set(range(len(records))):
            shifted = replace(
                part,
                start=part.start + start,
                first_record=part.first_record + start,
                num_records=len(records) - start,
            )
            again = _records(reader, file, shifted)
            _promise(_equal(again, records[start:]), f"records from {part.start + start} on")


class _Stream(io.BufferedReader):
    """A file that only goes forward, as decompressed ones do."""

    def seekable(self) -> bool:
        return False

    def seek(self, offset: int, whence: int = 0) -> int:
        raise io.UnsupportedOperation(f"seek({offset}, {whence}) in a file without a size")


def _check_stream(reader: Reader, file: InputFile, records: list[Any]) -> None:
    def forward_only() -> IO[bytes]:
        with file.open() as opened:
            return _Stream(io.BytesIO(opened.read()))

    stream = replace(file, size=None, local_path=None, open=forward_only)
    parts = reader.parts(stream)
    read = [record for part in parts for record in _records(reader, stream, part)]
    _promise(_equal(read, records), "the same records from a file that cannot seek")


def _check_damage(reader: Reader, file: InputFile, num_bytes: int) -> None:
    """Cut and flipped files end in an error or in reported records, and do not go on for ever."""
    with file.open() as opened:
        content = opened.read()
    random = np.random.default_rng(0)
    for place in random.integers(0, len(content), 20).tolist():
        flipped = bytearray(content)
        flipped[place] ^= 1 << int(random.integers(8))
        for damaged in (content[:place], bytes(flipped)):
            for bad in (_raise, _skip):
                _read_damaged(reader, file, damaged, bad, limit=10 * (num_bytes + 1000))


def _read_damaged(
    reader: Reader, file: InputFile, damaged: bytes, bad: Any, *, limit: int
) -> None:
    broken = replace(
        file,
        path=f"{file.path}.damaged",  # a reader may keep an index beside it
        size=len(damaged),
        local_path=None,
        open=lambda: io.BytesIO(damaged),
        bad=bad,
    )
    read = 0
    try:
        for part in reader.parts(broken):
            for chunk in reader.read(broken, part):
                read += rows.num_bytes(reader.decode(chunk))
                _promise(read < limit, "a damaged file to end")
    except AssertionError:
        raise
    except Exception:  # noqa: BLE001 - any error will do; what must not happen is not ending
        return


def _equal(some: Any, others: Any) -> bool:
    """Compare records: trees of tensors, arrays and plain values."""
    if isinstance(some, list) and isinstance(others, list) and len(some) != len(others):
        return False
    left, structure = flatten(some)
    right, other_structure = flatten(others)
    return structure == other_structure and all(map(_same, left, right))


def _same(left: Any, right: Any) -> bool:
    """Also NaN is the same as itself, and 1 is neither 1.0 nor True."""
    found = _look_into(left)
    return found == _look_into(right) and (not found.unchecked or bool(left == right))


def _look_into(value: Any) -> Print:
    digest = Digest()
    digest.add(value)
    return digest.taken()
