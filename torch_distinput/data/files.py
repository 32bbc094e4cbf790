"""List and open paths: the only room that knows fsspec.

File systems are found anew wherever a file is listed or opened, so none is ever carried into a
loader process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, cast

import fsspec.core


@dataclass(frozen=True, kw_only=True, slots=True)
class FileInfo:
    """A file as a listing knows it: its URL, and its size in bytes where the storage tells."""

    path: str
    size: int | None


def list_files(
    patterns: Sequence[str], storage_options: Mapping[str, Any]
) -> tuple[FileInfo, ...]:
    """Resolve paths and globs: paths stay in the order given, matches of a glob are sorted.

    Raises:
        FileNotFoundError: for a path that does not exist or a glob that matches no file.
    """
    return tuple(info for pattern in patterns for info in _resolve(pattern, storage_options))


def open_binary(path: str, storage_options: Mapping[str, Any]) -> IO[bytes]:
    """Open one file for reading."""
    system, inner = fsspec.core.url_to_fs(path, **storage_options)
    return cast("IO[bytes]", system.open(inner, "rb"))


def _resolve(pattern: str, storage_options: Mapping[str, Any]) -> list[FileInfo]:
    system, inner = fsspec.core.url_to_fs(pattern, **storage_options)
    if not any(sign in inner for sign in "*?["):
        info = system.info(inner)
        if info["type"] == "directory":
            msg = f"Expected a file or a glob, got the directory {pattern!r}. Append '/*'."
            raise IsADirectoryError(msg)
        return [FileInfo(path=pattern, size=info.get("size"))]
    found = system.glob(inner, detail=True)
    files = [
        FileInfo(path=system.unstrip_protocol(name), size=info.get("size"))
        for name, info in sorted(found.items())
        if info["type"] == "file"
    ]
    if not files:
        msg = f"No file matches {pattern!r}. Check the pattern and the working directory."
        raise FileNotFoundError(msg)
    return files
