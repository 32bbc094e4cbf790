"""Tar archives in WebDataset's layout: the files of one record lie one after another."""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch_distinput.data.formats import sidecar_index
from torch_distinput.data.formats.framing import walk
from torch_distinput.data.formats.reader import CHUNK_BYTES, Part, Reader
from torch_distinput.data.formats.tar_headers import Headers, show_name
from torch_distinput.data.storage.input_file import InputFile
from torch_distinput.packed_strings import PackedStrings, join_bytes

_log = logging.getLogger(__name__)
_KEY = "__key__"
_LARGE_MEMBER = 1 << 12
_LARGE_CHUNKS = 4
"""Records of so many chunks together are handed out one by one."""


@dataclass(frozen=True, slots=True)
class Tar(Reader):
    """Records of several files each (``webdataset.WebDataset``): a batch is a dict of lists.

    Files that follow each other with the same key, the path up to the first dot of its last
    component, are one record: ``{"__key__": list[str], "jpg": list[bytes], "cls": list[bytes]}``.
    What follows that dot, in lower case, is the name of the column. Files without such a name
    (``README``, ``.hidden``) are passed over, as are directories and links; that is logged once.
    Sparse files (``tar --sparse``) and members of other types are bad.

    The first record of an archive says which columns all of its records have: one that lacks
    one, or has another, is bad. After a damaged header reading goes on at the next good one.

    Attributes:
        index: where to keep the places of the records, so that the next run need not walk over
            all headers to find them: ``"memory"``, not at all; ``"beside"``, next to each archive
            as ``<file>.index.npz``; or the path or URL of a folder.
        packed: columns are packed strings; see :class:`FileDataset`.
    """

    index: str = "memory"
    packed: bool = False

    def __post_init__(self) -> None:
        """Refuse an index that is no place."""
        sidecar_index.check_index(self.index)

    def with_packed_strings(self) -> Tar:
        """The same, handing text over packed."""
        return replace(self, packed=True)

    @property
    def counted(self) -> bool:  # type: ignore[override]  # read-only, as the class is frozen
        """With a kept index."""
        return self.index != "memory"

    def parts(self, file: InputFile) -> Sequence[Part]:
        """Cut between keys, 4 MiB each at most."""
        return sidecar_index.index_parts(file, self.index, "tar", _cuts)

    def read(self, file: InputFile, part: Part) -> Iterator[dict[str, Any]]:
        """Yield columns."""
        chunks = self._read(file, part)
        yield from map(_pack, chunks) if self.packed else chunks

    def _read(self, file: InputFile, part: Part) -> Iterator[dict[str, list[Any]]]:
        columns = _columns_of_first(file) if part.start else []
        headers = Headers()

        def report(where: str, reason: object) -> None:
            headers.ended = True  # what is missing at the end has been told then
            file.bad(where, reason)

        pending = _Files([], [], [])
        with file.open() as opened:
            walked = walk(opened, headers, start=part.start, stop=part.stop, report=report)
            for window, _, members in walked:
                spans = zip(members.starts, members.stops, strict=True)
                whole: Any = window
                if self.packed and len(window) > _LARGE_MEMBER * len(members.starts):
                    whole = memoryview(window)  # large contents are copied once, to be joined
                contents = [whole[start:stop] for start, stop in spans]
                files = _join(pending, _named(file, members.names, contents))
                complete = _last_key(files.keys)
                pending = _between(files, complete, None)
                files = _between(files, 0, complete)
                columns = columns or _columns(files)
                yield from _chunks(file, columns, files)
        yield from _chunks(file, columns or _columns(pending), pending)
        if headers.link is not None:
            _say_passed_over(file.path, "links", headers.link)
        if part.stop in (None, file.size) and not headers.ended:
            reason = "expected the blocks of zeros with which archives end: it was cut off"
            file.bad("the end", reason)


def _pack(chunk: dict[str, list[Any]]) -> dict[str, PackedStrings]:
    return {
        name: PackedStrings.from_list(column, str)
        if name == _KEY
        else PackedStrings(*join_bytes(column), dtype=bytes)
        for name, column in chunk.items()
    }


class _Files(NamedTuple):
    """The files of records, a list entry each."""

    keys: list[bytes]
    columns: list[bytes]
    contents: list[bytes]


def _named(file: InputFile, names: list[bytes], contents: list[bytes]) -> _Files:
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
        return _Files(keys, columns, contents)
    files = _Files([], [], [])
    for name, content in zip(names, contents, strict=True):
        parts = _split(name)
        if parts is None:
            _say_passed_over(file.path, "files without a name of the form key.extension", name)
        else:
            for column, value in zip(files, (*parts, content), strict=True):
                column.append(value)
    return files


def _split(name: bytes) -> tuple[bytes, bytes] | None:
    """Key and column of a file; None if its name has no such parts."""
    base = name.rfind(b"/") + 1
    dot = name.find(b".", base)
    return (name[:dot], name[dot + 1 :].lower()) if base < dot < len(name) - 1 else None


def _join(some: _Files, others: _Files) -> _Files:
    return _Files(*(first + second for first, second in zip(some, others, strict=True)))


def _between(files: _Files, start: int, stop: int | None) -> _Files:
    return _Files(*(column[start:stop] for column in files))


def _last_key(keys: list[bytes]) -> int:
    """Where the last record begins: it may go on in the next window."""
    first = len(keys)
    while first and keys[first - 1] == keys[-1]:
        first -= 1
    return first


def _columns(files: _Files) -> list[bytes]:
    """What the first record consists of."""
    return [
        column
        for key, column in zip(files.keys, files.columns, strict=True)
        if key == files.keys[0]
    ]


def _chunks(file: InputFile, columns: list[bytes], files: _Files) -> Iterator[dict[str, list[Any]]]:
    """Yield records whose files are complete."""
    if not files.keys:
        return
    small = sum(map(len, files.contents)) <= _LARGE_CHUNKS * CHUNK_BYTES
    chunk = _regular_chunk(columns, files) if small else None
    if chunk is not None:
        yield chunk
        return
    rows: list[list[Any]] = []
    for first, stop in _records(files.keys):
        row = _row(file, columns, _between(files, first, stop))
        if row is not None:
            rows.append(row)
        if rows and not small:
            yield _chunk(columns, rows)
            rows = []
    if rows:
        yield _chunk(columns, rows)


def _records(keys: list[bytes]) -> Iterator[tuple[int, int]]:
    first = 0
    for place in range(1, len(keys) + 1):
        if place == len(keys) or keys[place] != keys[first]:
            yield first, place
            first = place


def _regular_chunk(columns: list[bytes], files: _Files) -> dict[str, list[Any]] | None:
    """All records at once, if each has the same files in the same order; else None."""
    step = len(columns)
    count, rest = divmod(len(files.keys), step)
    keys = files.keys[::step]
    regular = (
        not rest
        and files.columns == columns * count
        and all(files.keys[number::step] == keys for number in range(1, step))
        and all(map(operator.ne, keys, keys[1:]))
        and len(set(columns)) == step
    )
    if not regular:
        return None
    try:
        chunk: dict[str, list[Any]] = {_KEY: [key.decode() for key in keys]}
    except UnicodeDecodeError:
        return None
    chunk.update((show_name(name), files.contents[i::step]) for i, name in enumerate(columns))
    return chunk


def _row(file: InputFile, columns: list[bytes], files: _Files) -> list[Any] | None:
    """The key and the contents of one record in the order of the columns; None if it is bad."""
    where = f"record {show_name(files.keys[0])!r}"
    if sorted(files.columns) != sorted(set(columns)):
        expected, got = (", ".join(map(show_name, sorted(c))) for c in ({*columns}, files.columns))
        reason = (
            f"expected files {expected}, as in the first record of the archive, got {got}. All "
            "records of an archive need the same, each once"
        )
        file.bad(where, reason)
        return None
    try:
        key = files.keys[0].decode()
    except UnicodeDecodeError as error:
        file.bad(where, f"expected a name in UTF-8, got one with {error}")
        return None
    contents = dict(zip(files.columns, files.contents, strict=True))
    return [key, *(contents[name] for name in columns)]


def _chunk(columns: list[bytes], rows: list[list[Any]]) -> dict[str, list[Any]]:
    names = [_KEY, *map(show_name, columns)]
    return {name: [row[number] for row in rows] for number, name in enumerate(names)}


def _columns_of_first(file: InputFile) -> list[bytes]:
    """What the first record of the archive consists of; reads little more than its headers."""
    first = None
    columns: list[bytes] = []
    for _, name in _members(file, Headers()):
        split = _split(name)
        if split is None:
            continue
        if first not in (None, split[0]):
            break
        first = split[0]
        columns.append(split[1])
    return columns


def _cuts(file: InputFile) -> sidecar_index.Cuts:
    headers = Headers()
    cuts: list[tuple[int, int]] = []
    key, enough = None, sidecar_index.cut_bytes(file)
    start = count = 0
    for at, name in _members(file, headers):
        split = _split(name)
        if split is None or split[0] == key:
            continue
        if count and at - start >= enough and headers.cuttable:
            cuts.append((start, count))
            start, count = at, 0
        key = split[0]
        count += 1
    if not count and (file.size or 0) % 512 | (not headers.ended):
        msg = f"expected an archive, got {file.size} bytes in which no member begins"
        raise ValueError(msg)
    return [*cuts, (start, count)] if file.size else []


def _members(file: InputFile, headers: Headers) -> Iterator[tuple[int, bytes]]:
    """Yield the files of an archive and their places in it, without reading their contents."""
    with file.open() as opened:
        walked = walk(opened, headers, start=0, stop=file.size, report=None)
        for _, base, members in walked:
            for at, name in zip(members.ats, members.names, strict=True):
                yield base + at, name


_said: set[tuple[str, str]] = set()
"""Of which archives it has been said that something is passed over, and what."""


def _say_passed_over(path: str, what: str, name: bytes) -> None:
    """Say it once for each archive."""
    if (path, what) in _said:
        return
    _said.add((path, what))
    _log.warning("%s: %s, such as %r, are skipped.", path, what, show_name(name))
