"""Background threads: started here, and told to stop and waited for when the interpreter exits.

A daemon thread that is still inside a C++ call of torch when the interpreter is finalized aborts
the process ("terminate called without an active exception"). Those that wait there for other
workers are waited for, and freed; one that is held up in a user's Python can be left. What threads
used is released after they have ended: a gloo group that nobody destroyed aborts the process too.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Thread = threading.Thread
"""For annotations; threads are started by :func:`start_thread`."""
_EXIT_SECONDS = 5.0
"""Time that an exit waits for threads to come back from other workers by themselves."""
_LAST_SECONDS = 1.0
"""Time for everything else: any step of a thread of ours, and of most sources."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Way:
    """How to end a thread: by asking, and if that takes too long, by giving up what it does."""

    stop: Callable[[], None]
    give_up: Callable[[], None] | None


_started: dict[threading.Thread, _Way | None] = {}
"""Threads that may still be alive; None for one that has done its work and only has to end."""
_releases: list[Callable[[], None]] = []


def start_thread(
    target: Callable[..., None],
    *args: Any,
    name: str,
    stop: Callable[[], None],
    give_up: Callable[[], None] | None = None,
) -> threading.Thread:
    """Start ``target(*args)`` in a daemon thread.

    ``stop`` asks it to end soon; ``give_up`` frees it from waiting for other workers. Both are
    called at exit, from the main thread; ``target`` must not hold whoever owns the thread.
    """
    for ended in [thread for thread in list(_started) if not thread.is_alive()]:
        _started.pop(ended, None)
    thread = threading.Thread(
        target=_run, args=(target, args), name=f"torch_distinput-{name}", daemon=True
    )
    way = _Way(stop=stop, give_up=give_up)
    thread.start()
    _started.setdefault(thread, way)
    return thread


def _run(target: Callable[..., None], args: tuple[Any, ...]) -> None:
    try:
        target(*args)
    finally:
        # What it worked with may go now; the thread itself is still to be joined.
        _started[threading.current_thread()] = None


def release_at_exit(release: Callable[[], None]) -> None:
    """Call ``release()`` once at exit, when no thread started here is left."""
    if release not in _releases:
        _releases.append(release)


def _end_all() -> None:
    ways = {thread: way for thread, way in list(_started.items()) if way is not None}
    for way in ways.values():
        way.stop()
    _join([thread for thread, way in ways.items() if way.give_up], _EXIT_SECONDS)
    for way in ways.values():
        if way.give_up:
            way.give_up()
    _join(list(_started), _LAST_SECONDS)
    for release in _releases:
        release()


def _join(threads: list[threading.Thread], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


atexit.register(_end_all)
