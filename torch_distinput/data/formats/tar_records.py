"""From the files of an archive to records: dicts of columns with a row for each key."""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from torch_distinput.data.formats.reader import CHUNK_BYTES
from torch_distinput.data.formats.tar_headers import show_name, split_name
from torch_distinput.data.storage.input_file import InputFile
from torch_distinput.packed_strings import PackedStrings, join_bytes

_log = logging.getLogger(__name__)
KEY = "__key__"
_DAMAGE = b""
"""Stands in a record for what could not be read beside its files; no file has this name."""
_LARGE_CHUNKS = 4
"""Records of so many chunks together are handed out one by one."""


class RecordLayout(NamedTuple):
    """Which files the records of an archive consist of.

    Attributes:
        columns: in the order of the batch.
        optional: those of them that a record may lack.
        is_chosen: by the user, who need not name all; else the first record has them.
    """

    columns: Sequence[bytes]
    optional: frozenset[bytes]
    is_chosen: bool

    def fits(self, names: list[bytes]) -> bool:
        """Whether files with these names are a good record."""
        found, columns = {*names}, {*self.columns}
        # What a record beside damage lacks may have been there.
        required = columns if _DAMAGE in found else columns - self.optional
        return (
            len(found) == len(names)
            and KEY.encode() not in columns
            and found >= required
            and (self.is_chosen or found - {_DAMAGE} <= columns)
        )

    def describe(self) -> str:
        """What a record needs, for messages."""
        required = ", ".join(show_name(n) for n in self.columns if n not in self.optional)
        first = "" if self.is_chosen else ", as in the first record of the archive"
        optional = ", ".join(show_name(n) for n in self.columns if n in self.optional)
        return f"{required or 'none'}{first}{optional and f' and perhaps {optional}'}"


class Files(NamedTuple):
    """The files of records, a list entry each."""

    keys: list[bytes]
    columns: list[bytes]
    contents: list[bytes]


def named_files(file: InputFile, names: list[bytes], contents: list[bytes]) -> Files:
    """Split the names, and leave out files that belong to no record."""
    split = [name.partition(b".") for name in names]
    keys = [key for key, _, _ in split]
    columns = [column.lower() for _, _, column in split]
    plain = (
        b"" not in columns
        and b"/" not in b"".join(columns)
        and b"/\0" not in b"\0".join([*keys, b""])
    )
    if plain and b"" not in keys:
        return Files(keys, columns, contents)
    files = Files([], [], [])
    for name, content in zip(names, contents, strict=True):
        parts = split_name(name)
        if parts is None:
            say_passed_over(file.path, "files without a name of the form key.extension", name)
        else:
            for column, value in zip(files, (*parts, content), strict=True):
                column.append(value)
    return files


def join_files(some: Files, others: Files) -> Files:
    """Some files and those that follow them."""
    return Files(*(first + second for first, second in zip(some, others, strict=True)))


def slice_files(files: Files, start: int, stop: int | None) -> Files:
    """A range of files."""
    return Files(*(column[start:stop] for column in files))


def mark_damage(files: Files, place: int, lost: Sequence[bytes | None]) -> Files:
    """Note in records what could not be read before a file; None may be of those on both sides."""
    keys = {None if name is None else (split_name(name) or (b"",))[0] for name in lost}
    beside = dict.fromkeys(files.keys[max(0, place - 1) : place + 1])
    marked = [key for key in beside if None in keys or key in keys]
    mark = Files(marked, [_DAMAGE] * len(marked), [b""] * len(marked))
    before = join_files(slice_files(files, 0, place), mark)
    return join_files(before, slice_files(files, place, None))


def start_of_last_record(files: Files) -> int:
    """Where the last record begins: it may go on in the next window."""
    keys = files.keys
    first = len(keys)
    while first and keys[first - 1] == keys[-1]:
        first -= 1
    return first


def columns_of_first_record(files: Files) -> list[bytes]:
    """What the first record consists of."""
    return [
        column
        for key, column in zip(files.keys, files.columns, strict=True)
        if key == files.keys[0] and column != _DAMAGE
    ]


def record_chunks(
    file: InputFile, layout: RecordLayout, files: Files
) -> Iterator[dict[str, list[Any]]]:
    """Yield records whose files are complete."""
    if not files.keys:
        return
    small = sum(map(len, files.contents)) <= _LARGE_CHUNKS * CHUNK_BYTES
    chunk = _regular_chunk(layout, files) if small else None
    if chunk is not None:
        yield chunk
        return
    rows: list[list[Any]] = []
    for first, stop in _records(files.keys):
        row = _row(file, layout, slice_files(files, first, stop))
        if row is not None:
            rows.append(row)
        if rows and not small:
            yield _chunk(layout, rows)
            rows = []
    if rows:
        yield _chunk(layout, rows)


def _records(keys: list[bytes]) -> Iterator[tuple[int, int]]:
    first = 0
    for place in range(1, len(keys) + 1):
        if place == len(keys) or keys[place] != keys[first]:
            yield first, place
            first = place


def _regular_chunk(layout: RecordLayout, files: Files) -> dict[str, list[Any]] | None:
    """All records at once, if each has the same files in the same order; else None."""
    names = columns_of_first_record(files)
    step = len(names)
    count, rest = divmod(len(files.keys), step)
    keys = files.keys[::step]
    regular = (
        not rest
        and files.columns == names * count
        and all(files.keys[number::step] == keys for number in range(1, step))
        and all(map(operator.ne, keys, keys[1:]))
        and layout.fits(names)
    )
    if not regular:
        return None
    try:
        chunk: dict[str, list[Any]] = {KEY: [key.decode() for key in keys]}
    except UnicodeDecodeError:
        return None
    for name in layout.columns:
        there = name in names
        column = files.contents[names.index(name) :: step] if there else [None] * count
        chunk[show_name(name)] = column
    return chunk


def _row(file: InputFile, layout: RecordLayout, files: Files) -> list[Any] | None:
    """The key and the contents of one record in the order of the columns; None if it is bad."""
    where = f"record {show_name(files.keys[0])!r}"
    if not layout.fits(files.columns):
        got = ", ".join(show_name(n) or "what is damaged" for n in sorted(files.columns))
        reason = (
            f"expected files {layout.describe()}, each once, got {got}. readers.Tar(columns=) says "
            "which files you need, optional= which of them a record may lack"
        )
        file.bad(where, reason)
        return None
    try:
        key = files.keys[0].decode()
    except UnicodeDecodeError as error:
        file.bad(where, f"expected a name in UTF-8, got one with {error}")
        return None
    contents = dict(zip(files.columns, files.contents, strict=True))
    return [key, *map(contents.get, layout.columns)]


def _chunk(layout: RecordLayout, rows: list[list[Any]]) -> dict[str, list[Any]]:
    names = [KEY, *map(show_name, layout.columns)]
    return {name: [row[number] for row in rows] for number, name in enumerate(names)}


def pack_chunk(chunk: dict[str, list[Any]]) -> dict[str, PackedStrings]:
    """The same with packed columns."""
    return {name: _pack(name, column) for name, column in chunk.items()}


def _pack(name: str, column: list[Any]) -> PackedStrings:
    if name == KEY:
        return PackedStrings.from_list(column, str)
    absent = [content is None for content in column]
    if not any(absent):
        return PackedStrings(*join_bytes(column), dtype=bytes)
    data, offsets = join_bytes([b"" if content is None else content for content in column])
    return PackedStrings(data, offsets, torch.tensor(absent, device="cpu"), bytes)


_said: set[tuple[str, str]] = set()
"""Of which archives it has been said that something is passed over, and what."""


def say_passed_over(path: str, what: str, name: bytes) -> None:
    """Say it once for each archive."""
    if (path, what) in _said:
        return
    _said.add((path, what))
    _log.warning("%s: %s, such as %r, are skipped.", path, what, show_name(name))
