"""A long listing is kept once on each machine: ten million files take 860 MB, in every process.

Each process lists the files for itself, so that nobody relies on what another one saw. Then the
first one writes its arrays into a folder that is named after their content, and all map that one.

    process                       folder               removed by
    lists files A, writes them    A, locked by it
    lists files A, finds them     A, locked by both
    (both have ended)             A, not locked
    lists files B, writes them    B, locked by it      who writes B removes A, which nobody maps
"""

from __future__ import annotations

import logging
import shutil
from contextlib import suppress
from dataclasses import fields
from functools import partial
from hashlib import blake2b
from pathlib import Path

from torch_distinput.data.storage import file_locks
from torch_distinput.data.storage.file_listing import LOCK, FileColumns, FileListing
from torch_distinput.data.storage.machine_cache import kept_folder

_log = logging.getLogger(__name__)
_LEAST_BYTES = 16 << 20
"""Shorter ones stay in each process: some hundred thousand files."""
_PREFIX = "listing-"
_ATTEMPTS = 3
"""A folder may be removed between the moment it is found and the one in which it is locked."""


def share_listing(listing: FileListing) -> FileListing:
    """Return the listing, with its arrays in memory that the machine's processes share.

    Where that cannot be, it stays as it is: a warning says so.
    """
    if listing.num_bytes < _LEAST_BYTES:
        return listing
    reason: object = "others remove it all the time"
    if not file_locks.HAS_LOCKS:
        return _keep(listing, "this system has no locks on files")
    try:
        key = _PREFIX + _digest_of(listing.columns)
        for _ in range(_ATTEMPTS):
            with suppress(FileNotFoundError):
                return FileListing.map(kept_folder(key, partial(_save, listing.columns)))
    except OSError as error:
        reason = error
    return _keep(listing, reason)


def _keep(listing: FileListing, reason: object) -> FileListing:
    _log.warning(
        "the list of %d files takes %d MB in each process, since they cannot share it: %s",
        len(listing), listing.num_bytes >> 20, reason,
    )  # fmt: skip
    return listing


def _digest_of(columns: FileColumns) -> str:
    digest = blake2b(digest_size=16)
    for field in fields(FileColumns):
        column = getattr(columns, field.name)
        digest.update(f"{column.dtype} {column.nbytes} ".encode())
        digest.update(column.data)
    return digest.hexdigest()


def _save(columns: FileColumns, folder: Path) -> None:
    root = folder.parent
    for other in root.glob(f"{_PREFIX}*/"):
        key, _, is_aside = other.name.partition(".")  # locked by who writes it
        _remove_unused(other, root / f"{key}.lock" if is_aside else other / LOCK)
    columns.save(folder)


def _remove_unused(folder: Path, lock: Path) -> None:
    """Remove a listing unless a process has locked it."""
    with suppress(OSError), lock.open("rb") as file:
        file_locks.lock_if_free(file)
        shutil.rmtree(folder, ignore_errors=True)
