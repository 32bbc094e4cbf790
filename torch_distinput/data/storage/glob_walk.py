"""Walk the folders of a glob, and say which of them could not be listed.

To fsspec, a folder that cannot be listed is an empty one: its files would be missing in silence.
"""

from __future__ import annotations

import functools
import logging
import os
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.local import LocalFileSystem

from torch_distinput.data.storage.local_folder import leads_back
from torch_distinput.data.storage.retries import Retries, attempt

_log = logging.getLogger(__name__)


def find_matches(system: AbstractFileSystem, pattern: str) -> dict[str, Any]:
    """What matches a glob, folders as well: what the storage knows of each, by its path.

    A folder that this process may not list is left out, which is told in the log.

    Args:
        system: where to look.
        pattern: the glob, without protocols.

    Raises:
        OSError: a folder could not be listed for another reason, also when asked again.
    """
    return attempt(lambda: _walk(system, pattern), Retries())


def _walk(system: AbstractFileSystem, pattern: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if isinstance(system, LocalFileSystem):
        walker: AbstractFileSystem = _LinkedFolders(skip_instance_cache=True)
        options = {"ways_back": "**" not in pattern}
    else:  # one of our own, as its listings are watched: all threads share that of fsspec
        again = {**system.storage_options, "skip_instance_cache": True}
        walker = type(system)(*system.storage_args, **again)
    errors = _watch_listings(walker)
    matches: dict[str, Any] = walker.glob(pattern, detail=True, **options)
    for error in errors:
        if not isinstance(error, PermissionError):
            raise error
    if errors:
        _log.warning(
            "%d folders are left out of %s, because this process may not list them: %s. Give it "
            "the right to, or name the other folders.",
            len(errors),
            pattern,
            errors[0],
        )
    return matches


def _watch_listings(walker: AbstractFileSystem) -> list[OSError]:
    """Have a file system keep what its listings raise, but for folders that are not there."""
    errors: list[OSError] = []
    name = "_ls" if isinstance(walker, AsyncFileSystem) else "ls"
    ask = getattr(walker, name)

    @functools.wraps(ask)
    def keep(*args: Any, **kwargs: Any) -> Any:
        try:
            return ask(*args, **kwargs)
        except FileNotFoundError:
            raise
        except OSError as error:
            errors.append(error)
            raise

    @functools.wraps(ask)
    async def keep_later(*args: Any, **kwargs: Any) -> Any:
        try:
            return await ask(*args, **kwargs)
        except FileNotFoundError:
            raise
        except OSError as error:
            errors.append(error)
            raise

    setattr(walker, name, keep if name == "ls" else keep_later)
    return errors


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
