"""Listed files in a few arrays: ten million of them would be as many objects of a hundred bytes.

names       train-00.csvtrain-01.csvval.csv       text of all files, one after another
ends                   12          24     31      where the name of each ends
folders     s3://bucket/data/                     each different one once, ...
numbers     0 0 0                                 ... and which of them a file lies in
"""

from __future__ import annotations

import json
import os
import weakref
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any, final, overload

import numpy as np
from numpy.typing import NDArray

from torch_distinput.data.storage import file_locks

_BLOCK = 1 << 12
"""Files that are taken out together."""
LOCK = "sizes.npy"
"""The file of a folder that is locked by those who map it."""
_UNKNOWN = -1
"""In place of a size."""
_CODE = ("utf-8", "surrogatepass")
"""Names of files may hold bytes that are no text; Python writes these as surrogates."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileInfo:
    """A file as a listing knows it.

    Attributes:
        path: its URL.
        size: its size in bytes, where the storage tells.
        version: text that changes when the content does (an entity tag, a modification time);
            empty where the storage has none.
        has_ranges: False where the storage says that files can only be read whole.
    """

    path: str
    size: int | None
    version: str = ""
    has_ranges: bool = True


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FileColumns:
    """The arrays of a listing, as they are drawn above, and some more.

    Attributes:
        names: uint8, the text of all.
        name_ends: where each of them ends.
        versions: uint8, as the names.
        version_ends: where each of them ends.
        numbers: of the folders.
        sizes: in bytes, or -1.
        has_ranges: bool.
        folders: uint8, their names in JSON.
    """

    names: NDArray[Any]
    name_ends: NDArray[Any]
    versions: NDArray[Any]
    version_ends: NDArray[Any]
    numbers: NDArray[Any]
    sizes: NDArray[Any]
    has_ranges: NDArray[Any]
    folders: NDArray[Any]

    @staticmethod
    def pack(files: Iterable[FileInfo]) -> FileColumns:
        """Take files one by one."""
        names, name_ends, versions, version_ends = bytearray(), array("q"), bytearray(), array("q")
        sizes, numbers, has_ranges = array("q"), array("i"), bytearray()
        folders: dict[str, int] = {}
        for info in files:
            folder, slash, name = info.path.rpartition("/")
            numbers.append(folders.setdefault(folder + slash, len(folders)))
            names += name.encode(*_CODE)
            name_ends.append(len(names))
            versions += info.version.encode(*_CODE)
            version_ends.append(len(versions))
            sizes.append(_UNKNOWN if info.size is None else info.size)
            has_ranges.append(info.has_ranges)
        return FileColumns(
            names=np.frombuffer(names, dtype=np.uint8),
            name_ends=_in_few_bytes(name_ends),
            versions=np.frombuffer(versions, dtype=np.uint8),
            version_ends=_in_few_bytes(version_ends),
            numbers=np.frombuffer(numbers, dtype=np.int32),
            sizes=np.frombuffer(sizes, dtype=np.int64),
            has_ranges=np.frombuffer(has_ranges, dtype=np.bool_),
            folders=np.frombuffer(json.dumps(list(folders)).encode(), dtype=np.uint8),
        )

    @staticmethod
    def load(folder: Path) -> FileColumns:
        """Map what :meth:`save` wrote."""
        return FileColumns(
            **{
                field.name: np.load(folder / f"{field.name}.npy", mmap_mode="r")
                for field in fields(FileColumns)
            }
        )

    def save(self, folder: Path) -> None:
        """Write a file for each array."""
        for field in fields(FileColumns):
            np.save(folder / f"{field.name}.npy", getattr(self, field.name))


def _in_few_bytes(ends: array[int]) -> NDArray[Any]:
    last = ends[-1] if ends else 0
    return np.array(ends, dtype=np.uint32 if last < 1 << 32 else np.int64)


@final
class FileListing(Sequence[FileInfo]):
    """Files in the order of the listing; each is made when it is asked for.

    Attributes:
        columns: what they are made from.
    """

    def __init__(self, files: Iterable[FileInfo]) -> None:
        """Take them one by one."""
        self._set(FileColumns.pack(files), None)

    @staticmethod
    def map(folder: Path) -> FileListing:
        """The listing whose columns were saved in a folder that nobody removes meanwhile.

        Raises:
            FileNotFoundError: somebody removes it now.
        """
        # As long as this lives; before the columns are looked for, which could be removed else.
        lock = os.open(folder / LOCK, os.O_RDONLY)
        listing = FileListing.__new__(FileListing)
        weakref.finalize(listing, os.close, lock).atexit = False
        file_locks.lock_shared(lock)
        listing._set(FileColumns.load(folder), folder)  # noqa: SLF001 - its own
        return listing

    def _set(self, columns: FileColumns, folder: Path | None) -> None:
        self.columns = columns
        self._folder = folder
        self._folders: list[str] = json.loads(columns.folders.tobytes())

    def __reduce__(self) -> Any:
        """A loader process maps what this one does."""
        if self._folder is not None:
            return FileListing.map, (self._folder,)
        return _copy, (self.columns,)

    def __len__(self) -> int:
        """How many there are."""
        return len(self.columns.sizes)

    @overload
    def __getitem__(self, index: int) -> FileInfo: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[FileInfo, ...]: ...

    def __getitem__(self, index: int | slice) -> FileInfo | tuple[FileInfo, ...]:
        """Make one, or some."""
        if isinstance(index, slice):
            return tuple(self[number] for number in range(*index.indices(len(self))))
        number = range(len(self))[index]  # counts from the end as well, or raises
        return next(self._make(number, number + 1))

    def __iter__(self) -> Iterator[FileInfo]:
        """Make them one after another."""
        for start in range(0, len(self), _BLOCK):
            yield from self._make(start, min(start + _BLOCK, len(self)))

    @property
    def num_bytes(self) -> int:
        """Memory, but for the objects of folders' names."""
        return sum(getattr(self.columns, field.name).nbytes for field in fields(FileColumns))

    @property
    def digest(self) -> str:
        """Names the files by names and sizes, which are the same wherever their folders lie."""
        digest, before = blake2b(digest_size=8), "["
        for start in range(0, len(self), _BLOCK):
            stop = min(start + _BLOCK, len(self))
            known = self.columns.sizes[start:stop].tolist()
            sizes: list[Any] = [None if number == _UNKNOWN else number for number in known]
            pairs = zip(self._names(start, stop), sizes, strict=True)
            digest.update((before + ", ".join(map(repr, pairs))).encode())
            before = ", "
        digest.update(b"]" if len(self) else b"[]")
        return digest.hexdigest()

    def _names(self, start: int, stop: int) -> list[str]:
        return _take(self.columns.names, self.columns.name_ends, start, stop)

    def _make(self, start: int, stop: int) -> Iterator[FileInfo]:
        columns = self.columns
        for name, version, number, size, has_ranges in zip(
            self._names(start, stop),
            _take(columns.versions, columns.version_ends, start, stop),
            columns.numbers[start:stop].tolist(),
            columns.sizes[start:stop].tolist(),
            columns.has_ranges[start:stop].tolist(),
            strict=True,
        ):
            yield FileInfo(
                path=self._folders[number] + name,
                size=None if size == _UNKNOWN else size,
                version=version,
                has_ranges=has_ranges,
            )


def _copy(columns: FileColumns) -> FileListing:
    """A listing of this process alone."""
    listing = FileListing.__new__(FileListing)
    listing._set(columns, None)  # noqa: SLF001 - its own
    return listing


def _take(texts: NDArray[Any], all_ends: NDArray[Any], start: int, stop: int) -> list[str]:
    """The texts from one number to another."""
    first = int(all_ends[start - 1]) if start else 0
    ends = [end - first for end in all_ends[start:stop].tolist()]
    block = texts[first : first + ends[-1]].tobytes() if ends else b""
    return [block[begin:end].decode(*_CODE) for begin, end in pairwise((0, *ends))]
