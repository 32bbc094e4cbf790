"""Find file systems: archives over a network, and copies that fsspec keeps of whole files.

A copy is there when it is complete, or not at all. fsspec writes it under its final name from the
first byte on, and never copies it again. Where the connection is cut, where the process ends, or
where another process looks meanwhile, the part that is there is taken for the file, and the rest of
its records is lost without a word. So each copy is made here, in a folder beside the others, and
moved to its place.
"""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from collections.abc import Mapping
from functools import partial
from tarfile import ReadError, TarError, TarFile
from typing import IO, Any, cast
from zipfile import BadZipFile

import fsspec.core
from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.cached import WholeFileCacheFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.utils import infer_compression

from torch_distinput.data.storage.compression import without_query
from torch_distinput.data.storage.range_reader import open_ranged
from torch_distinput.data.storage.retries import Retries, StorageError, attempt
from torch_distinput.errors import ConfigurationError

_WHOLE = ("simplecache", "filecache")
_IN_BLOCKS = ("blockcache", "cached")
_ARCHIVES = ("zip", "tar")
_SHORT_ENDS = {".tgz": "gzip", ".tbz": "bz2", ".tbz2": "bz2", ".txz": "xz"}
_BLOCK, _PIECE_BYTES = 512, 1 << 16


def find_system(
    url: str, storage_options: Mapping[str, Any], retries: Retries | None = None
) -> tuple[AbstractFileSystem, str]:
    """Return the file system of a URL, and the path in it, as ``fsspec.core.url_to_fs``.

    fsspec opens an archive to do so: the copy that it lies in, if any, is made before.

    Raises:
        ConfigurationError: a ValueError; for caches of blocks, in which fsspec keeps zeros for
            what a lost connection did not bring, and for archives that cannot be opened, or not
            read from the middle.
    """
    links, retries = url.split("::"), retries or Retries()
    for number, link in enumerate(links):
        protocol = link.partition("://")[0]
        if protocol in _IN_BLOCKS:
            msg = (
                f"Expected 'simplecache::', which keeps whole files, got {protocol + '::'!r} in "
                f"{url!r}: blocks that a lost connection did not bring are kept as zeros there. "
                "Write 'simplecache::' instead."
            )
            raise ConfigurationError(msg)
        if number and protocol in _WHOLE:
            protocols = set(map(_protocol, links[number:]))
            # With others, which belong to the first link, fsspec would make another storage.
            own = {name: storage_options[name] for name in protocols & storage_options.keys()}
            archive = _find("::".join(links[number:]), own, retries)
            attempt(partial(_keep_whole, *archive), retries)
    try:
        return attempt(partial(_find, url, storage_options, retries), retries)
    except (StorageError, BadZipFile, TarError) as error:
        # What it could not read zipfile takes for no archive.
        origin = error if isinstance(error, StorageError) else error.__context__
        if isinstance(origin, StorageError):
            raise StorageError(origin.errno, f"{url}: {origin.strerror}") from origin
        msg = f"Expected an archive at {url!r}, got {type(error).__name__}: {error}."
        raise ConfigurationError(msg) from error


def _protocol(link: str) -> str:
    name, mark, _ = link.partition("://")
    return name if mark or name in fsspec.available_protocols() else "file"


def _find(
    url: str, storage_options: Mapping[str, Any], retries: Retries
) -> tuple[AbstractFileSystem, str]:
    # fsspec writes into the options of a link.
    options = {
        name: dict(option) if isinstance(option, Mapping) else option
        for name, option in storage_options.items()
    }
    links = url.split("::")
    kind = _protocol(links[0])
    if kind in _ARCHIVES and links[1:]:
        protocols = set(map(_protocol, links[1:]))
        behind = {name: options[name] for name in protocols & options.keys()}
        storage, inner = fsspec.core.url_to_fs("::".join(links[1:]), **behind)
        if kind == "tar":  # fsspec tells it by the name of the file, and a copy has another one
            options["tar"] = {"compression": _compression(inner), **options.get("tar", {})}
        if isinstance(storage, (AsyncFileSystem, MemoryFileSystem)):
            own = {name: options[name] for name in options.keys() - protocols - {kind}}
            own |= options.get(kind, {})
            made = fsspec.get_filesystem_class(kind)
            system = made(fo=_open_archive(storage, inner, url, retries), **own)
            path = made._strip_protocol(links[0])  # noqa: SLF001
        else:
            system, path = fsspec.core.url_to_fs(url, **options)
        if kind == "tar":
            _check_end(system.tar)
        return system, cast("str", path)
    system, path = fsspec.core.url_to_fs(url, **options)
    return system, cast("str", path)


def _compression(path: str) -> str | None:
    """How the archive of a name is compressed, for fsspec."""
    name = without_query(path)
    short = (kind for end, kind in _SHORT_ENDS.items() if name.lower().endswith(end))
    return next(short, None) or infer_compression(name)


def _check_end(archive: TarFile) -> None:
    """Refuse what is more than one whole archive.

    ``tarfile`` passes over what is behind the first blocks of zeros, and takes a damaged header,
    or that nothing more is there, for the end.
    """
    file: Any = archive.fileobj
    file.seek(archive.offset)
    end = rest = file.read(_BLOCK)
    while rest and not rest.strip(b"\0"):
        rest = file.read(_PIECE_BYTES)
    if rest or len(end) < _BLOCK:
        msg = (
            f"blocks of zeros expected from byte {archive.offset} to the end: it was cut off, is "
            "damaged there, or is several joined to one, which reader='tar' reads"
        )
        raise ReadError(msg)


def _open_archive(
    storage: AsyncFileSystem | MemoryFileSystem, path: str, url: str, retries: Retries
) -> IO[bytes]:
    """Open an archive over a network, of which each part is asked for again if need be.

    One in memory has a single file, whose position all threads would share.
    """
    if isinstance(storage, MemoryFileSystem):
        return io.BytesIO(storage.cat_file(path))
    details = storage.info(path)
    size = details.get("size") if details.get("partial", True) else None
    if size is None:
        copied = "::simplecache::".join(url.rsplit("::", 1))
        msg = (
            "Expected a server that sends parts of files, of which an archive is read, got one "
            f"that does not: {url!r}. Copy the archive first: {copied!r}."
        )
        raise ConfigurationError(msg)
    fetch = lambda start, stop: storage.cat_file(path, start=start, end=stop)  # noqa: E731
    return open_ranged(fetch, size, path=path, retries=retries)


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


def _make_copy(system: Any, path: str) -> None:
    try:
        system.open(path, "rb").close()
    except FileNotFoundError as error:
        # fsspec asks first whether the file is there, and takes each failure for a no.
        system.fs.info(system._strip_protocol(path))  # noqa: SLF001
        msg = (
            f"{path}: could not be opened ({error!r}), though the storage says that it exists. Try "
            "again."
        )
        raise ConnectionError(msg) from error


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
        own = {"cache_storage": aside, "skip_instance_cache": True, "check_files": False}
        twin = type(system)(*system.storage_args, **{**system.storage_options, **own})
        _make_copy(twin, path)
        found = twin._check_file(path)  # noqa: SLF001
        # A filecache knows its copies by a list.
        details, copy = found if isinstance(found, tuple) else (None, found)
        if details and system.check_files and details["uid"] != system.fs.ukey(path):
            msg = f"{path}: expected one file from start to end of its copy, got one that changed"
            raise ConnectionError(msg)
        os.replace(copy, os.path.join(folder, os.path.basename(copy)))
        if details:
            system._metadata.update_file(path, details)  # noqa: SLF001
            system.save_cache()
    finally:
        shutil.rmtree(aside, ignore_errors=True)
