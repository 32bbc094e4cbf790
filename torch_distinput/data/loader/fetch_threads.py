"""Threads that fetch: for work that releases the interpreter lock, such as decoding and reading.

Task n goes to thread n modulo their number, and results are taken in turn, so the order is that of
the tasks. An error is raised where its result would have come.

    thread          writes                             reads                    guarded by
    who iterates    inboxes                            outboxes                 queues without locks
    fetch           its outbox                         its inbox, _Lane.left    the same; a flag
    any             _Lane.left, the end of inboxes                              one assignment

A thread knows its lane and ``fetch``, never who iterates: when that is closed or collected, the
threads are told to leave, and waited for.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, final

from torch_distinput.data.user_sources.source_errors import source_error
from torch_distinput.threads import Thread, start_thread

T = TypeVar("T")
Task = TypeVar("Task")

_AHEAD = 2
"""Tasks that a thread has been given, and whose results nobody has taken; as loader processes."""
_LEAVE_SECONDS = 5.0
_LEAVE = object()


@final
@dataclass(frozen=True, slots=True)
class _Failed:
    error: BaseException


@final
@dataclass(slots=True)
class _Lane:
    """To a thread and back."""

    inbox: SimpleQueue[Any] = field(default_factory=SimpleQueue)
    outbox: SimpleQueue[Any] = field(default_factory=SimpleQueue)
    left: bool = False

    def leave(self) -> None:
        """Have the thread leave after the task that it is at."""
        self.left = True
        self.inbox.put(_LEAVE)


@final
class FetchThreads(Generic[Task, T]):
    """Iterates the results of tasks; the threads live as long as this does."""

    def __init__(
        self, fetch: Callable[[Task], T], tasks: Iterator[Task], num_threads: int
    ) -> None:
        """Start the threads, and give them the first tasks one by one."""
        lanes = [_Lane() for _ in range(num_threads)]
        threads: list[Thread] = []
        self.close = weakref.finalize(self, _end, lanes, threads)  # also where Ctrl-C comes now
        self.close.atexit = False  # threads end all at once
        for number, lane in enumerate(lanes):
            name = f"fetch-{number}"
            threads.append(start_thread(_fetch_all, fetch, lane, name=name, stop=lane.leave))
        self._tasks = tasks
        self._turns = cycle(lanes)
        self._asked: deque[_Lane] = deque()
        for _ in range(_AHEAD * num_threads):
            self._ask()

    def __iter__(self) -> Iterator[T]:
        """Return itself."""
        return self

    def __next__(self) -> T:
        """Wait for the next result."""
        if not self._asked or not self.close.alive:
            self.close()
            raise StopIteration
        try:
            result = self._asked.popleft().outbox.get()
            self._ask()
        except BaseException:  # Ctrl-C: a result may be lost now, so none may follow
            self.close()
            raise
        if isinstance(result, _Failed):
            self.close()
            raise result.error
        return result  # type: ignore[no-any-return]

    def _ask(self) -> None:
        try:
            task = next(self._tasks)
        except StopIteration:
            return
        except Exception as error:  # noqa: BLE001 - it is raised after the results before it
            failed = _Lane()
            failed.outbox.put(_Failed(error))
            self._asked.append(failed)
            return
        lane = next(self._turns)
        lane.inbox.put(task)
        self._asked.append(lane)


def _fetch_all(fetch: Callable[[Any], Any], lane: _Lane) -> None:
    while (task := lane.inbox.get()) is not _LEAVE and not lane.left:
        lane.outbox.put(_fetch_one(fetch, task))
        del task


def _fetch_one(fetch: Callable[[Any], Any], task: Any) -> Any:
    try:
        return fetch(task)
    except StopIteration as error:  # it would pass for the end
        raised = source_error(error, "a batch")
        raised.__cause__ = error
        return _Failed(raised)
    except BaseException as error:  # noqa: BLE001 - it is raised again where the result would come
        return _Failed(error)


def _end(lanes: Sequence[_Lane], threads: Sequence[Thread]) -> None:
    """Wait for the threads, but not for ever: who closes may want to end the program."""
    for lane in lanes:
        lane.leave()
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(_LEAVE_SECONDS)
