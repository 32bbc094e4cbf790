"""Listed files in a few arrays: ten million of them would be as many objects of a hundred bytes.

names       train-00.csvtrain-01.csvval.csv       text of all files, one after another
ends                   12          24     31      where the name of each ends
folders     s3://bucket/data/                     each different one once, ...
numbers     0 0 0                                 ... and which of them a file lies in
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, final, overload

import numpy as np

_BLOCK = 1 << 12
"""Files that are taken out together."""
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


class _Texts:
    """Texts in one buffer."""

    def __init__(self, texts: bytearray, ends: array[int]) -> None:
        """Take the text of all, and where each of them ends."""
        self._texts = texts
        dtype = np.uint32 if len(texts) < 1 << 32 else np.int64
        self._ends = np.array(ends, dtype=dtype)

    @property
    def num_bytes(self) -> int:
        """Memory."""
        return len(self._texts) + self._ends.nbytes

    def take(self, start: int, stop: int) -> list[str]:
        """Return those from one number to another."""
        begin = int(self._ends[start - 1]) if start else 0
        found = []
        for end in self._ends[start:stop].tolist():
            found.append(self._texts[begin:end].decode(*_CODE))
            begin = end
        return found


@final
class FileListing(Sequence[FileInfo]):
    """Files in the order of the listing; each is made when it is asked for."""

    def __init__(self, files: Iterable[FileInfo]) -> None:
        """Take them one by one."""
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
        self._names, self._versions = _Texts(names, name_ends), _Texts(versions, version_ends)
        self._folders = tuple(folders)
        self._numbers, self._sizes, self._has_ranges = numbers, sizes, bytes(has_ranges)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._sizes)

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
        """Memory, but for the names of folders."""
        arrays = (self._numbers, self._sizes)
        small = len(self._has_ranges) + sum(one.itemsize * len(one) for one in arrays)
        return self._names.num_bytes + self._versions.num_bytes + small

    @property
    def digest(self) -> str:
        """Names the files by names and sizes, which are the same wherever their folders lie."""
        digest, before = blake2b(digest_size=8), "["
        for start in range(0, len(self), _BLOCK):
            stop = min(start + _BLOCK, len(self))
            sizes: list[Any] = [None if n == _UNKNOWN else n for n in self._sizes[start:stop]]
            pairs = zip(self._names.take(start, stop), sizes, strict=True)
            digest.update((before + ", ".join(map(repr, pairs))).encode())
            before = ", "
        digest.update(b"]" if len(self) else b"[]")
        return digest.hexdigest()

    def _make(self, start: int, stop: int) -> Iterator[FileInfo]:
        for name, version, number, size, has_ranges in zip(
            self._names.take(start, stop),
            self._versions.take(start, stop),
            self._numbers[start:stop],
            self._sizes[start:stop],
            self._has_ranges[start:stop],
            strict=True,
        ):
            yield FileInfo(
                path=self._folders[number] + name,
                size=None if size == _UNKNOWN else size,
                version=version,
                has_ranges=bool(has_ranges),
            )
