"""Walk the folders of a glob, and say which of them could not be listed.

To fsspec, a folder that cannot be listed is an empty one: its files would be missing in silence.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, final

from fsspec import AbstractFileSystem
from fsspec.archive import AbstractArchiveFileSystem
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.reference import ReferenceFileSystem

from torch_distinput.data.storage.local_folder import leads_back
from torch_distinput.data.storage.retries import Retries, attempt, attempt_later

_log = logging.getLogger(__name__)


@final
class GlobWalks:
    """Walks for the globs of one list: a storage has one walker in it, as it may take a connection.

    Not kept for longer, as fsspec's are: what a walker has listed may change.
    """

    def __init__(self) -> None:
        """Walk nowhere yet."""
        # By the file system that is walked, which is kept so that no other has its id.
        self._walkers: dict[int, tuple[AbstractFileSystem, _Walker]] = {}

    def find_matches(self, system: AbstractFileSystem, pattern: str) -> dict[str, Any]:
        """What matches a glob, folders as well: what the storage knows of each, by its path.

        A folder of this machine that this process may not list is left out, which is told in the
        log.

        Args:
            system: where to look.
            pattern: the glob, without protocols.

        Raises:
            OSError: a folder could not be listed, also when asked again.
        """
        if id(system) not in self._walkers:
            self._walkers[id(system)] = system, _make_walker(system)
        walker = self._walkers[id(system)][1]
        is_local = isinstance(system, LocalFileSystem)
        options = {"ways_back": "**" not in pattern} if is_local else {}
        walker.errors.clear()
        matches: dict[str, Any] = walker.system.glob(pattern, detail=True, **options)
        for error in walker.errors:
            if not (is_local and isinstance(error, PermissionError)):
                raise error
        if walker.errors:
            _log.warning(
                "Folders of %s are left out, because this process may not list them, such as %s. "
                "Give it the right to, or name the other folders.",
                pattern,
                walker.errors[0],
            )
        return matches


class _Walker(NamedTuple):
    """A file system of our own, and what its listings have raised."""

    system: AbstractFileSystem
    errors: list[OSError]


def _make_walker(system: AbstractFileSystem) -> _Walker:
    """One whose listings are watched: all threads share that of fsspec."""
    if isinstance(system, (AbstractArchiveFileSystem, ReferenceFileSystem)):
        return _Walker(system, [])  # of an index that was read: no listing fails
    if isinstance(system, LocalFileSystem):
        own: AbstractFileSystem = _LinkedFolders(skip_instance_cache=True)
    else:
        again = {**system.storage_options, "skip_instance_cache": True}
        own = type(system)(*system.storage_args, **again)
    return _Walker(own, _watch_listings(own))


def _watch_listings(walker: AbstractFileSystem) -> list[OSError]:
    """Have a file system ask again where a listing fails, and keep what it raises then.

    But for folders that are not there.
    """
    errors: list[OSError] = []
    if isinstance(walker, AsyncFileSystem):
        _retry_details(walker)
    name = "_ls" if isinstance(walker, AsyncFileSystem) else "ls"
    ask, retries = getattr(walker, name), Retries()

    @functools.wraps(ask)
    def keep(*args: Any, **kwargs: Any) -> Any:
        with _noting(errors):
            return attempt(lambda: ask(*args, **kwargs), retries)

    @functools.wraps(ask)
    async def keep_later(*args: Any, **kwargs: Any) -> Any:
        with _noting(errors):
            return await attempt_later(lambda: ask(*args, **kwargs), retries)

    setattr(walker, name, keep if name == "ls" else keep_later)
    return errors


def _retry_details(walker: AsyncFileSystem) -> None:
    """Have it ask again for what is known of the folder where a walk begins."""
    ask, retries = walker._info, Retries()  # noqa: SLF001 - fsspec's way to a storage

    @functools.wraps(ask)
    async def ask_again(*args: Any, **kwargs: Any) -> Any:
        return await attempt_later(lambda: ask(*args, **kwargs), retries)

    walker._info = ask_again  # noqa: SLF001 - as above


@contextmanager
def _noting(errors: list[OSError]) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        errors.append(error)
        raise


class _LinkedFolders(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Local files for globs, which enter links to folders as those of Python do."""

    def ls(
        self, path: str, detail: bool = False, *, ways_back: bool = True, **kwargs: Any
    ) -> list[Any]:
        listed: list[Any] = super().ls(path, detail=detail, **kwargs)
        for number, info in enumerate(listed if detail else ()):
            link = info["name"] if info.get("islink") else ""
            if link and os.path.isdir(link) and (ways_back or not leads_back(link)):
                listed[number] = self.info(link)
        return listed
