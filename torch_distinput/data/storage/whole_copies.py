"""Copies that fsspec keeps of whole files: there when they are complete, or not at all.

fsspec writes a copy under its final name from the first byte on, and never copies it again. Where
the connection is cut, where the process ends, or where another process looks meanwhile, the part
that is there is taken for the file, and the rest of its records is lost without a word. So each
copy is made here, in a folder beside the others, and moved to its place.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from functools import partial
from typing import IO, Any, cast

import fsspec.core
from fsspec import AbstractFileSystem
from fsspec.implementations.cached import WholeFileCacheFileSystem

from torch_distinput.data.storage.retries import Retries, attempt
from torch_distinput.errors import ConfigurationError

_WHOLE = ("simplecache", "filecache")
_IN_BLOCKS = ("blockcache", "cached")


def find_system(url: str, storage_options: Mapping[str, Any]) -> tuple[AbstractFileSystem, str]:
    """Return the file system of a URL, and the path in it, as ``fsspec.core.url_to_fs``.

    fsspec opens an archive to do so: the copy that it lies in, if any, is made before.

    Raises:
        ConfigurationError: a ValueError; for caches of blocks, in which fsspec keeps zeros for
            what a lost connection did not bring.
    """
    links = url.split("::")
    for number, link in enumerate(links):
        protocol = link.partition("://")[0]
        if protocol in _IN_BLOCKS:
            msg = (
                f"Expected 'simplecache::', which keeps whole files, got {protocol + '::'!r} in "
                f"{url!r}: blocks that a lost connection did not bring are kept as zeros there."
            )
            raise ConfigurationError(msg)
        if number and protocol in _WHOLE:
            archive = fsspec.core.url_to_fs("::".join(links[number:]), **storage_options)
            attempt(partial(_keep_whole, *archive), Retries())
    system, path = fsspec.core.url_to_fs(url, **storage_options)
    return system, cast("str", path)


def open_whole(system: AbstractFileSystem, path: str) -> IO[bytes]:
    """Open a file; of a storage that keeps copies its copy, which is made if there is none.

    Raises:
        OSError: what the storage raises; nothing of a copy is left then.
    """
    _keep_whole(system, path)
    return cast("IO[bytes]", system.open(path, "rb"))


def load_whole(system: AbstractFileSystem, path: str) -> bytes:
    """The content of a small file, in one request; of its copy, if the storage keeps some."""
    _keep_whole(system, path)
    return cast("bytes", system.cat_file(path))


def _keep_whole(system: Any, path: str) -> None:
    """Make the copy of a file, unless there is one, or the storage keeps none.

    A twin of the storage, which keeps its copies in a folder of its own, makes it.
    """
    if not isinstance(system, WholeFileCacheFileSystem) or system._check_file(path):  # noqa: SLF001
        return
    system._mkcache()  # noqa: SLF001
    folder = system.storage[-1]
    aside = tempfile.mkdtemp(suffix=".part", dir=folder)  # on the same disk: it can be moved
    try:
        own = {"cache_storage": aside, "skip_instance_cache": True}
        twin = type(system)(*system.storage_args, **{**system.storage_options, **own})
        twin.open(path, "rb").close()
        found = twin._check_file(path)  # noqa: SLF001
        copy = found[1] if isinstance(found, tuple) else found
        os.replace(copy, os.path.join(folder, os.path.basename(copy)))
        if isinstance(found, tuple):  # a filecache, which knows its copies by a list
            system._metadata.update_file(path, found[0])  # noqa: SLF001
            system.save_cache()
    finally:
        shutil.rmtree(aside, ignore_errors=True)
