"""Copies that fsspec keeps of whole files: there when they are complete, or not at all.

fsspec writes a copy under its final name from the first byte on, and never copies it again. Where
the connection is cut, where the process ends, or where another process looks meanwhile, the part
that is there is taken for the file, and the rest of its records is lost without a word.
"""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from typing import IO, Any, cast

from fsspec import AbstractFileSystem
from fsspec.implementations.cached import SimpleCacheFileSystem, WholeFileCacheFileSystem


def open_whole(system: AbstractFileSystem, path: str) -> IO[bytes]:
    """Open a file; of a storage that keeps copies its copy, which is made if there is none.

    Raises:
        OSError: what the storage raises; nothing of a copy is left then.
    """
    if isinstance(system, SimpleCacheFileSystem) and not system.compression:
        if not system._check_file(path):  # noqa: SLF001 - nobody else knows where copies lie
            _copy_aside(system, path)
        return cast("IO[bytes]", system.open(path, "rb"))
    try:
        return cast("IO[bytes]", system.open(path, "rb"))
    except BaseException:
        if isinstance(system, WholeFileCacheFileSystem):  # which knows its copies by a list
            with suppress(Exception):
                system.pop_from_cache(path)
        raise


def _copy_aside(system: Any, path: str) -> None:
    """Copy under another name, and move it into place."""
    system._mkcache()  # noqa: SLF001
    place = os.path.join(system.storage[-1], system._mapper(path))  # noqa: SLF001
    aside = f"{place}.{uuid.uuid4().hex[:8]}.part"  # other machines may share the folder
    try:
        system.fs.get_file(path, aside)
        os.replace(aside, place)
    finally:
        with suppress(OSError):  # it is gone if all went well
            os.remove(aside)
