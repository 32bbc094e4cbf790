"""Locks on files that the system drops when the process dies. Windows has none of that kind."""

from __future__ import annotations

from typing import Any

try:
    import fcntl
except ImportError:
    _fcntl: Any = None
else:
    _fcntl = fcntl

HAS_LOCKS = _fcntl is not None
"""Whether this system has them; nothing else here may be called where it has not."""


def lock(file: Any) -> None:
    """Wait until nobody else has it."""
    _fcntl.flock(file, _fcntl.LOCK_EX)


def lock_if_free(file: Any) -> None:
    """Lock it.

    Raises:
        OSError: if somebody has it.
    """
    _fcntl.flock(file, _fcntl.LOCK_EX | _fcntl.LOCK_NB)


def lock_shared(file: Any) -> None:
    """Have it together with others who do the same."""
    _fcntl.flock(file, _fcntl.LOCK_SH)


def unlock(file: Any) -> None:
    """Let it go: closing is not enough, as a process forked meanwhile holds it too."""
    _fcntl.flock(file, _fcntl.LOCK_UN)
