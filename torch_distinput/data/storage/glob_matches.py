"""What a glob does not mean, though fsspec matches it: hidden files, and what readers keep."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Mapping
from typing import Any

_log = logging.getLogger(__name__)
_MAGIC = "*?["
_KEPT = re.compile(r"(.*)\.index\.npz(\.[0-9a-f]+\.part)?", re.DOTALL)
"""Names of indexes kept beside the data, and of those being written."""
_INDEXES = (
    "by their names (.index.npz) they are indexes that readers keep beside data. Name data "
    "otherwise, or name the files one by one"
)
_HIDDEN = (
    "they are hidden, or in hidden folders, as Python's glob and shells have it. Begin a part of "
    "the pattern with a dot, or name the files one by one"
)


def has_magic(path: str) -> bool:
    """Whether a path is a glob."""
    return any(sign in path for sign in _MAGIC)


def choose_matches(pattern: str, inner: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what is not meant, and say so once for each pattern.

    Args:
        pattern: as the user wrote it, for messages.
        inner: the same without protocols.
        found: what is known of each match, by its path.
    """
    shown = _without_hidden(pattern, inner, found)
    kept = [match for name in shown if (match := _KEPT.fullmatch(name))]
    if kept:
        alone = any(match[1] not in shown for match in kept)
        level = logging.WARNING if alone else logging.INFO
        _say_left_out(pattern, len(kept), _INDEXES, level)
    return {name: info for name, info in shown.items() if not _KEPT.fullmatch(name)}


def _without_hidden(pattern: str, inner: str, found: Mapping[str, Any]) -> dict[str, Any]:
    first_sign = min(inner.index(sign) for sign in _MAGIC if sign in inner)
    plain = inner[:first_sign].rpartition("/")[0]
    if _is_hidden(inner, plain):
        return dict(found)
    shown = {name: info for name, info in found.items() if not _is_hidden(name, plain)}
    if len(shown) < len(found):
        _say_left_out(pattern, len(found) - len(shown), _HIDDEN, logging.WARNING)
    return shown


def _is_hidden(path: str, folder: str) -> bool:
    """Whether a part of a path below a folder, which the user named, begins with a dot."""
    return path.startswith(folder) and "/." in f"/{path[len(folder) :]}"


@functools.cache  # once for each pattern
def _say_left_out(pattern: str, count: int, reason: str, level: int) -> None:
    _log.log(level, "%d matches of %s are left out: %s.", count, pattern, reason)


def refuse_braces(path: str, error: OSError) -> None:
    """Say of a path like ``train-{00..99}.tar``, which does not exist, that it is no glob."""
    if isinstance(error, FileNotFoundError) and re.search(r"\{\w+\.\.\w+\}|\{.*,.*\}", path):
        msg = (
            f"No file {path!r}: braces are not expanded. Write a glob, as in 'train-*.tar', or "
            "pass a list of paths."
        )
        raise FileNotFoundError(msg) from error
