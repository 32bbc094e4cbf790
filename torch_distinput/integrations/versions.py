"""What an integration needs of another library: a version it was tested with, and its names."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from importlib import metadata

import torch_distinput as tdi

_told: set[str] = set()


def check_version(package: str, *, tested: str, stacklevel: int = 2) -> None:
    """Warn, once in a process, of a version outside the tested range.

    An integration calls it where it is used first, not where it is imported. A package that is not
    installed under this name is passed over.

    Args:
        package: the name by which it is installed, such as ``"lightning"``.
        tested: the first and the last version, as in ``"2.5 to 2.6"``, or the only one. Both are
            meant with all that begins like them: 2.6.6 is in ``"2.5 to 2.6"``.
        stacklevel: of the warning; 2 names the line that calls this function.
    """
    try:
        installed = metadata.version(package)
    except metadata.PackageNotFoundError:
        return
    lowest, _, highest = tested.partition(" to ")
    if package in _told or _is_between(installed, lowest, highest or lowest):
        return
    _told.add(package)
    msg = (
        f"Expected {package} {tested}, with which this integration is tested, got {package} "
        f"{installed}. Count the examples of an epoch before you rely on it, or install a tested "
        "version."
    )
    warnings.warn(msg, UserWarning, stacklevel=stacklevel)


def check_names(package: str, owner: object, names: Iterable[str]) -> None:
    """Refuse a version without names that an integration overrides or sets.

    Nothing would tell of an override that is never called, or of an attribute that nobody reads.

    Args:
        package: the name by which it is installed.
        owner: the class or object of the package.
        names: attributes that it must have.

    Raises:
        ConfigurationError: if one is missing.
    """
    missing = [name for name in names if not hasattr(owner, name)]
    if missing:
        shown = owner if isinstance(owner, type) else type(owner)
        msg = (
            f"Expected {package} to have {', '.join(missing)} in its {shown.__name__}, which this "
            f"integration builds on, got {package} {metadata.version(package)} without. Install a "
            f"tested version: pip install 'torch_distinput[{package}]'."
        )
        raise tdi.ConfigurationError(msg)


def _is_between(version: str, lowest: str, highest: str) -> bool:
    first, last = _numbers(lowest), _numbers(highest)
    found = _numbers(version)
    return first <= found and found[: len(last)] <= last


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers of a release, without what follows them: of 2.6.0rc1+cpu it is (2, 6, 0)."""
    release = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(number) for number in release[0].split(".")) if release else ()
