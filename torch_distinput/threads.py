"""Threads and locks: made here, ended when the interpreter exits, and made anew in forked children.

A daemon thread that is still inside a C++ call of torch when the interpreter is finalized aborts
the process ("terminate called without an active exception"). Those that wait there for other
workers are waited for, and freed; one that is held up in a user's Python can be left. What threads
used is released after they have ended: a gloo group that nobody destroyed aborts the process too.

A child that is forked from this process, by us or by the user, at any moment, has none of these
threads, but all of their locks, held as they were. So in the child the locks are new, the exit has
nothing to end, and what needed the threads is kept but never used: see :func:`call_in_child`. And
the child collects no garbage that it inherits: in it may be a process group of torch, of ours or
the user's, whose end waits for threads that were not forked, forever or until it aborts.

This module alone registers anything with the process, with the first thread, lock or group of ours:
an import leaves no trace. Its own tables need no lock, which a child could inherit held: each
change is one operation on a dict or list, which CPython does not interrupt.

    when                 runs                what
    before a fork        ``_begin_fork``     counts it; no garbage is collected from here on
    after it             ``_end_fork``       garbage is collected again
    in a forked child    ``_begin_as_child`` forgets threads, makes locks anew, keeps their owners,
                                             and the garbage
    at exit              ``_end_all``        stops threads, waits, frees those that wait for others
"""

from __future__ import annotations

import atexit
import functools
import gc
import logging
import multiprocessing
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
_log = logging.getLogger(__name__)
Thread = threading.Thread
"""For annotations, as the next two; threads are started by :func:`start_thread`."""
Lock = threading.Lock
Condition = threading.Condition
_EXIT_SECONDS = 5.0
"""Time that an exit waits for threads to come back from other workers by themselves."""
_LAST_SECONDS = 1.0
"""Time for everything else: any step of a thread of ours, and of most sources."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Way:
    """How to end a thread: by asking, and if that takes too long, by giving up what it does."""

    stop: Callable[[], None]
    give_up: Callable[[], None] | None


@dataclass(slots=True)
class _Process:
    """What a process knows of its forks.

    Attributes:
        num_forks: children of it that were forked, and of those that it was forked from.
        is_loader: whether it was forked to be a loader process.
        stops_on_signal: whether it takes a signal for the wish to stop soon.
    """

    num_forks: int = 0
    is_loader: bool = False
    stops_on_signal: bool = False


class _Forking(threading.local):
    """Whether this thread is starting loader processes."""

    loaders = False


_process = _Process()
_forking = _Forking()
_started: dict[threading.Thread, _Way | None] = {}
"""Threads that may still be alive; None for one that has done its work and only has to end."""
_releases: list[Callable[[], None]] = []
_named_locks: dict[str, threading.Lock] = {}
_pauses: dict[int, bool] = {}
"""By thread that is forking: whether garbage was collected before."""
_inherited: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()
_kept: list[Any] = []
"""In a child: what the parent owned. Were it collected, it would wait for the parent's threads."""


# ---------------------------------------------------------------------- threads


def start_thread(
    target: Callable[..., None],
    *args: Any,
    name: str,
    stop: Callable[[], None],
    give_up: Callable[[], None] | None = None,
) -> threading.Thread:
    """Start ``target(*args)`` in a daemon thread, with the caller's GPU as the current one.

    ``stop`` asks it to end soon; ``give_up`` frees it from waiting for other workers. Both are
    called at exit, from the main thread; ``target`` must not hold whoever owns the thread.
    """
    _register()
    for ended in [thread for thread in list(_started) if not thread.is_alive()]:
        _started.pop(ended, None)
    thread = threading.Thread(
        target=_run,
        args=(target, args, _current_gpu()),
        name=f"torch_distinput-{name}",
        daemon=True,
    )
    way = _Way(stop=stop, give_up=give_up)
    thread.start()
    _started.setdefault(thread, way)
    return thread


def _current_gpu() -> int | None:
    """Of this thread; None where none is in use yet, which to ask for it would change."""
    torch = sys.modules.get("torch")
    return torch.cuda.current_device() if torch and torch.cuda.is_initialized() else None


def _run(target: Callable[..., None], args: tuple[Any, ...], gpu: int | None) -> None:
    try:
        if gpu is not None:  # else what reads the user's data puts it on GPU 0, on all ranks
            sys.modules["torch"].cuda.set_device(gpu)
        target(*args)
    finally:
        # What it worked with may go now; the thread itself is still to be joined.
        _started[threading.current_thread()] = None


def release_at_exit(release: Callable[[], None]) -> None:
    """Call ``release()`` once at exit, when no thread started here is left; not in a child."""
    _register()
    if release not in _releases:
        _releases.append(release)


def _end_all() -> None:
    ways = {thread: way for thread, way in list(_started.items()) if way is not None}
    _call_each(way.stop for way in ways.values())
    _join([thread for thread, way in ways.items() if way.give_up], _EXIT_SECONDS)
    # Not for one that has ended: others may use the same connections until they end well.
    _call_each(way.give_up for thread, way in ways.items() if way.give_up and thread.is_alive())
    _join(list(_started), _LAST_SECONDS)
    _call_each(_releases)


def _call_each(calls: Iterable[Callable[[], None]]) -> None:
    """Call all, also where one raises: those after it keep the process from being aborted."""
    for call in calls:
        try:
            call()
        except Exception:  # noqa: BLE001 - stops call the code of others
            _log.exception("A step of the exit of this process failed; it goes on to the next.")


def _join(threads: list[threading.Thread], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


# ---------------------------------------------------------------------- locks


def new_lock() -> threading.Lock:
    """A lock that no child inherits held."""
    return _renewed(threading.Lock())


def new_rlock() -> Any:
    """The same, for a thread that may take it again."""
    return _renewed(threading.RLock())


def new_condition(lock: Any = None) -> threading.Condition:
    """A condition, of a lock from here or of one of its own, that no child inherits held."""
    return _renewed(threading.Condition(lock))


def new_event() -> threading.Event:
    """An event whose lock no child inherits held."""
    return _renewed(threading.Event())


def named_lock(name: str) -> threading.Lock:
    """The lock of this name, for what a process has once."""
    _register()
    return _named_locks.setdefault(name, threading.Lock())


def _renewed(lock: T) -> T:
    # What the standard library does for locks of its own: new, whoever held the old one.
    call_in_child(lock, lambda inherited: inherited._at_fork_reinit())  # type: ignore[attr-defined]  # noqa: SLF001
    return lock


# ---------------------------------------------------------------------- forks


def call_in_child(owner: T, call: Callable[[T], None]) -> None:
    """Call ``call(owner)`` first thing in each child that is forked while ``owner`` lives.

    The child then keeps ``owner`` to its end, so that it is not collected there.
    """
    _register()
    _inherited[owner] = call


@contextmanager
def forking_loaders() -> Iterator[None]:
    """Around what starts loader processes: those that are forked know what they are.

    One thread after the other: on Python 3.12 filelock, which torch loads, refuses a fork beside
    another one. Nothing of the user's is called meanwhile, which might wait for another thread.
    """
    with named_lock("start of loader processes"):
        _forking.loaders = True
        try:
            yield
        finally:
            _forking.loaders = False


def is_loader_process() -> bool:
    """Whether this process was forked to be a loader process."""
    return _process.is_loader


def stop_on_signals() -> None:
    """Note that this process takes signals for a wish to stop; its loader processes are to survive.

    A launcher sends one to all processes of a group, as torchrun does.
    """
    _process.stops_on_signal = True


def stops_on_signal() -> bool:
    """Whether a signal is the wish that this process stops soon."""
    return _process.stops_on_signal


def leave_group() -> None:
    """Let this loader process get no signal that is sent to a group: its parent ends it.

    Nor what kills the group of its parent: so it ends with that, wherever it is stuck.
    """
    if hasattr(os, "setpgid"):
        with suppress(OSError):  # it has a session of its own
            os.setpgid(0, 0)
        start_thread(_end_with_parent, name="orphan", stop=lambda: None)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def num_forks() -> int:
    """How often this process was forked since it was asked first, and those before it."""
    _register()
    return _process.num_forks


@functools.cache
def _register() -> None:
    """Register with the process, once."""
    atexit.register(_end_all)
    if hasattr(os, "register_at_fork"):  # Windows never forks
        os.register_at_fork(
            before=_begin_fork, after_in_parent=_end_fork, after_in_child=_begin_as_child
        )


def _begin_fork() -> None:
    _process.num_forks += 1
    # In the child the hooks of others come first, and what they allocate may start a collection.
    # An entry may be left of a fork that was interrupted.
    _pauses.setdefault(threading.get_ident(), gc.isenabled())
    gc.disable()


def _end_fork() -> None:
    me = threading.get_ident()
    if _pauses.get(me):  # else the user wants none, or a thread that forks too starts it again
        gc.enable()
    _pauses.pop(me, None)  # none where this was registered, or interrupted, during a fork


def _begin_as_child() -> None:
    """Runs in the one thread that was forked; nobody else is there."""
    gc.freeze()  # the parent frees it; here its memory is shared until somebody writes to it
    if any(_pauses.values()):
        gc.enable()
    _pauses.clear()
    _process.is_loader, _forking.loaders = _forking.loaders, False
    _started.clear()
    _releases.clear()
    _named_locks.clear()
    inherited = list(_inherited.items())
    _kept.extend(owner for owner, _ in inherited)
    for owner, call in inherited:
        call(owner)
