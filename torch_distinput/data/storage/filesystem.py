"""List and open files wherever they lie: with globs and copies, all that knows fsspec.

File systems are found anew wherever a file is listed or opened, so none is ever carried into a
loader process.
"""

from __future__ import annotations

import functools
import io
import os
import stat
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import IO, Any, cast

from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.cached import CachingFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from torch_distinput.data.storage.compression import Decompressed, decompressor, without_query
from torch_distinput.data.storage.file_listing import FileInfo, FileListing
from torch_distinput.data.storage.glob_matches import choose_matches, has_magic, refuse_braces
from torch_distinput.data.storage.glob_walk import GlobWalks
from torch_distinput.data.storage.input_file import InputFile
from torch_distinput.data.storage.local_folder import store_local_folder
from torch_distinput.data.storage.range_reader import check_copy, forward, open_ranged, sized
from torch_distinput.data.storage.retries import Retries, attempt, may_pass
from torch_distinput.data.storage.shared_listing import share_listing
from torch_distinput.data.storage.whole_copies import find_system, load_whole, open_whole
from torch_distinput.errors import ConfigurationError

Options = Mapping[str, Any]

_MARKS = ("ETag", "etag", "mtime", "LastModified", "created", "Last-Modified", "CRC")
"""What storages call a version; archives of zip have a CRC."""
_FEW_PATHS = 8
"""So many paths of one folder are asked for one by one; more by listing the folder once."""


def list_files(patterns: Sequence[str], storage_options: Options) -> FileListing:
    """Resolve paths and globs: paths stay in the order given, matches of a glob are sorted.

    ``@path`` stands for a manifest: a file with a path or glob in each line, relative to its own
    folder; empty lines, and those that begin with ``#``, are left out.

    Raises:
        FileNotFoundError: for a path that does not exist or a glob that matches no file.
    """
    _forget_listings([pattern.removeprefix("@") for pattern in patterns], storage_options)
    written = [path for pattern in patterns for path in _written(pattern, storage_options)]
    if any(pattern.startswith("@") for pattern in patterns):  # what manifests name is known now
        _forget_listings(written, storage_options)
    plain = (path for path in written if not has_magic(path) and "::" not in path)
    folders = Counter(map(_folder, plain))
    known: dict[str, FileInfo] = {}
    for folder in (folder for folder, count in folders.items() if count > _FEW_PATHS):
        known.update(_children(folder, storage_options))

    def find() -> Iterator[FileInfo]:
        walks = GlobWalks()
        for path in written:
            info = known.get(path)
            yield from _resolve(path, storage_options, walks) if info is None else [info]

    return share_listing(FileListing(find()))


def open_file(
    info: FileInfo,
    storage_options: Options,
    *,
    bad: Callable[[str, object], None],
    retries: Retries,
) -> InputFile:
    """Return a listed file as a reader sees it; nothing is opened yet."""
    system, inner = find_system(info.path, storage_options, retries)
    decompress = decompressor(info.path)
    local = isinstance(system, LocalFileSystem)
    raw_size = _size(info, system, inner, retries)

    def open_raw() -> IO[bytes]:
        if local:
            return open(inner, "rb")
        if isinstance(system, MemoryFileSystem):
            # It opens the one file there is, whose position all threads would share.
            return io.BytesIO(system.cat_file(inner))
        if raw_size is not None and isinstance(system, AsyncFileSystem):
            # By keyword: the second positional parameter of s3fs is a version.
            fetch = lambda start, stop: system.cat_file(inner, start=start, end=stop)  # noqa: E731
            return open_ranged(fetch, raw_size, path=info.path, retries=retries)
        opened = attempt(lambda: open_whole(system, inner), retries)
        if raw_size is None:
            return forward(opened)
        if isinstance(system, CachingFileSystem):
            check_copy(opened, raw_size, path=info.path)
        return sized(opened, raw_size, path=info.path)

    return InputFile(
        path=info.path,
        size=raw_size if decompress is None else None,
        version=info.version,
        local_path=inner if local and decompress is None else None,
        open=open_raw if decompress is None else lambda: Decompressed(open_raw(), decompress),
        bad=bad,
        storage_options=storage_options,
        change=functools.partial(_change, info, system, inner),
    )


def is_remote(path: str, storage_options: Options) -> bool:
    """Whether reading means waiting for a network."""
    return isinstance(find_system(path, storage_options)[0], AsyncFileSystem)


def load_file(url: str, storage_options: Options) -> bytes | None:
    """Return the content of a small file; None if there is none."""
    system, inner = find_system(url, storage_options)
    try:
        return attempt(lambda: load_whole(system, inner), Retries())
    except FileNotFoundError:
        return None


def store_file(url: str, content: bytes, storage_options: Options) -> None:
    """Write a small file aside and move it into place, so that nobody reads half of it."""
    system, inner = find_system(url, storage_options)
    system.makedirs(_folder(inner), exist_ok=True)
    if not isinstance(system, LocalFileSystem):
        system.pipe_file(inner, content)  # object stores show a file when it is complete
        return
    aside = f"{inner}.{uuid.uuid4().hex[:8]}.part"  # other machines have the same process numbers
    try:
        system.pipe_file(aside, content)
        os.replace(aside, inner)
    finally:
        with suppress(OSError):  # it is gone if all went well
            os.remove(aside)


def names_in(url: str, storage_options: Options) -> set[str]:
    """The names of what lies in a folder; none if there is no folder."""
    system, inner = find_system(url, storage_options)
    try:
        return {path.rstrip("/").rpartition("/")[2] for path in system.ls(inner, detail=False)}
    except FileNotFoundError:
        return set()


def names_below(url: str, storage_options: Options) -> set[str]:
    """The names of all files in a folder and in those below it, relative to it."""
    system, inner = find_system(url, storage_options)
    inner = inner.rstrip("/")
    system.invalidate_cache()  # of listings, in which what others have written since is missing
    try:
        is_file = system.info(inner)["type"] == "file"
    except FileNotFoundError:
        return set()
    if is_file:
        msg = f"Expected a folder, or nothing yet, at {url!r}, got a file. Choose another place."
        raise FileExistsError(msg)
    return {path.removeprefix(f"{inner}/") for path in _files_below(system, inner)}


def _files_below(system: AbstractFileSystem, folder: str) -> Iterator[str]:
    """All files in a folder; find() passes over folders that cannot be listed."""
    for info in system.ls(folder, detail=True):
        path = info["name"].rstrip("/")
        if path == folder:
            continue  # object stores mark a folder by an object of its name
        if info["type"] == "directory":
            yield from _files_below(system, path)
        else:
            yield path


def store_folder(
    url: str, contents: Mapping[str, bytes], storage_options: Options, *, last: str
) -> None:
    """Write a folder of small files in the place of one, so that nobody takes half of it for all.

    A local folder is written aside and renamed. Object stores rename nothing: there the file named
    ``last`` is removed first and written last. All that lay there before is gone then.
    """
    system, inner = find_system(url, storage_options)
    if isinstance(system, LocalFileSystem):
        store_local_folder(os.path.realpath(inner), contents)
        return
    inner = inner.rstrip("/")
    before = names_below(url, storage_options)
    for name in sorted(before - contents.keys() | before & {last}, key=lambda name: name != last):
        system.rm_file(f"{inner}/{name}")
    for name in sorted(contents, key=lambda name: name == last):
        system.pipe_file(f"{inner}/{name}", contents[name])


def _change(info: FileInfo, system: AbstractFileSystem, inner: str) -> str:
    """How a file differs from the one that was listed, where that costs no request."""
    size: int | None
    try:
        if isinstance(system, LocalFileSystem):
            status = os.stat(inner)
            if not stat.S_ISREG(status.st_mode):
                return ""  # the time of a pipe is that of its last byte
            size, version = status.st_size, str(status.st_mtime)
        elif isinstance(system, MemoryFileSystem):
            now = _info(info.path, system.info(inner))
            size, version = now.size, now.version
        else:
            return ""
    except OSError:
        return ""  # opening it says what is wrong; who has it open may read on
    if (size, version) == (info.size, info.version):
        return ""
    listed, found = f"{info.size} bytes", f"{size} bytes"
    if size == info.size:
        listed, found = f"written at {info.version}", f"one written at {version}"
    return (
        f"expected the file as it was listed, {listed}, got {found}. The file has changed since it "
        "was listed: distribute it again"
    )


def _size(
    info: FileInfo, system: AbstractFileSystem, inner: str, retries: Retries
) -> int | None:
    """The size, if the file can be read from the middle; listings of HTTP servers have no sizes."""
    if not isinstance(system, AsyncFileSystem):
        return info.size
    if info.size is not None:
        return info.size if info.has_ranges else None
    details = attempt(lambda: system.info(inner), retries)
    return details["size"] if details.get("partial", True) else None


def _forget_listings(paths: Sequence[str], storage_options: Options) -> None:
    """Have file systems list anew: fsspec has one of a kind in a process, with what it listed."""
    for path in {_folder(path): path for path in paths}.values():
        storage, options = path, storage_options
        if "::" in path:  # the storage comes last; what reads from it hands the call on
            storage = path.rpartition("::")[2]
            options = storage_options.get(storage.partition("://")[0], {})
        find_system(storage, options)[0].invalidate_cache()


def _written(pattern: str, storage_options: Options) -> list[str]:
    """The paths and globs of a manifest, or the one that was given."""
    if not pattern.startswith("@"):
        return [pattern]
    manifest = pattern[1:]
    content = load_file(manifest, storage_options)
    if content is None:
        msg = f"No manifest at {manifest!r}. Check the path, and leave the @ out for a data file."
        raise FileNotFoundError(msg)
    lines = (line.strip() for line in content.decode("utf-8-sig").splitlines())
    return [_beside(manifest, line) for line in lines if line and not line.startswith("#")]


def _beside(manifest: str, path: str) -> str:
    if "://" in path or os.path.isabs(path) or "/" not in manifest:
        return path
    return f"{_folder(without_query(manifest))}/{path}"


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _children(folder: str, storage_options: Options) -> dict[str, FileInfo]:
    """One listing of a folder, by the paths that the caller wrote."""
    system, inner = find_system(folder or ".", storage_options)
    try:
        listed = system.ls(inner, detail=True)
    except (OSError, NotImplementedError):
        return {}  # some storages have files, but no listings
    prefix = f"{folder}/" if folder else ""
    return {
        path: _info(path, info)
        for info in listed
        if info["type"] == "file"
        and info["size"] is not None
        and (path := prefix + info["name"].rpartition("/")[2])
    }


def _resolve(pattern: str, storage_options: Options, walks: GlobWalks) -> list[FileInfo]:
    system, inner = find_system(pattern, storage_options)
    # A cache knows less of a file than what it copies it from.
    behind_cache = system.fs if isinstance(system, CachingFileSystem) else system
    if (info := _find_literally(behind_cache, inner)) is not None:
        if info["type"] == "directory":
            msg = f"Expected a file or a glob, got the directory {pattern!r}. Append '/*'."
            raise IsADirectoryError(msg)
        return [_info(pattern, info)]
    matches = walks.find_matches(behind_cache, inner)
    # What a listing says of a link is partly the link's own; one to nothing is an error.
    found = {
        name: behind_cache.info(name) if info.get("islink") else info
        for name, info in sorted(matches.items())
    }
    matched = {name: info for name, info in found.items() if info["type"] == "file"}
    chosen = choose_matches(pattern, inner, matched)
    if odd := [name for name in chosen if "::" in name]:
        msg = f"Expected no '::', which joins URLs, in names of files, got {odd[0]!r}. Rename it."
        raise ConfigurationError(msg)
    files = [
        _info(_in_chain(pattern, system.unstrip_protocol(name)), info)
        for name, info in chosen.items()
    ]
    if not files:
        msg = f"No file matches {pattern!r}. Check the pattern and the working directory."
        raise FileNotFoundError(msg)
    return files


def _find_literally(system: AbstractFileSystem, path: str) -> Mapping[str, Any] | None:
    """What the storage knows of the file of that very name; None: it is a glob, or may be one."""
    try:
        if "*" not in path:
            return cast("Mapping[str, Any]", attempt(lambda: system.info(path), Retries()))
    except OSError as error:
        if not has_magic(path) or may_pass(error):
            refuse_braces(path, error)
            raise
    return None


def _in_chain(pattern: str, found: str) -> str:
    """Put a match into the place of its glob: ``zip://*.txt::s3://bucket/all.zip``."""
    links = pattern.split("::")
    return "::".join(found if has_magic(link) else link for link in links)


def _info(path: str, info: Mapping[str, Any]) -> FileInfo:
    marks = (info.get(name) for name in _MARKS)
    mark = next((mark for mark in marks if mark not in (None, "")), "")
    version = str(mark.timestamp() if isinstance(mark, datetime) else mark)  # listings have either
    return FileInfo(
        path=path,
        size=info.get("size"),
        version=version,
        has_ranges=info.get("partial") is not False,
    )
