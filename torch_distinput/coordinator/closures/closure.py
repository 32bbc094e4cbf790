"""A closure: a function with its arguments, on its way to a worker and back.

The queue alone changes what is not written here once: see the table there.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from torch_distinput.coordinator.closures.dataset_record import DatasetRecord, IteratorRecord
    from torch_distinput.coordinator.engines.engine import RemoteObject

MAX_DEATHS = 3
"""Workers that a closure may kill, and times in a row that one may fail to start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Death:
    """The end of a worker's process.

    Attributes:
        cause: who it was, and how it ended, in the engine's words.
        seconds: when, since the epoch.
    """

    cause: str
    seconds: float = field(default_factory=time.time)

    def __str__(self) -> str:
        """One line of a history."""
        moment = time.strftime("%H:%M:%S", time.localtime(self.seconds))
        return f"{moment} {self.cause}"


def write_history(deaths: list[Death]) -> str:
    """The deaths, one a line."""
    return "".join(f"\n  {death}" for death in deaths)


def describe(error: BaseException) -> str:
    """Class and text of an error, as a sentence of a message."""
    text = f"{type(error).__name__}: {error}".removesuffix(": ")
    return text if text.endswith((".", "!", "?")) else f"{text}."


@final
class Generation:
    """The closures that an error cancels together: those scheduled until it was found.

    Attributes:
        failure: what failed, in words; None as long as nothing did.
    """

    __slots__ = ("failure",)

    def __init__(self) -> None:
        self.failure: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Returned:
    """It returned, and its serialized value is here."""

    value: bytes


@final
class Kept:
    """It returned, and its value is in its worker, until this is garbage or is let go.

    Whoever collects garbage may hold any lock, so the number is only noted: it travels with the
    worker's next call.
    """

    def __init__(self, remote: RemoteObject, number: int, unused: deque[int]) -> None:
        """Keep value ``number`` of the object; put the number to ``unused`` in the end."""
        self.remote = remote
        self.number = number
        self._finalizer = weakref.finalize(self, unused.append, number)
        self._finalizer.atexit = False

    def let_go(self) -> None:
        """The value has been fetched."""
        self._finalizer()


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """It raised, or nothing can run it any more."""

    error: BaseException


@dataclass(frozen=True, kw_only=True, slots=True)
class Cancelled:
    """It was not run: another one failed before."""

    failure: str


ClosureOutcome = Returned | Kept | Failed | Cancelled


@final
@dataclass(eq=False, kw_only=True, slots=True)
class Closure:
    """One call of ``schedule``.

    Attributes:
        number: one for each.
        name: of its function.
        payload: the pickled function and arguments; given up with the outcome.
        iterators: those among the arguments; given up with the outcome, as workers then may.
        generation: with which it is cancelled.
        deaths: of workers that ran it.
        outcome: how it ended; None until then.
        is_awaited: whether anybody waits for the outcome.
    """

    number: int
    name: str
    payload: bytes
    iterators: frozenset[IteratorRecord]
    generation: Generation
    deaths: list[Death] = field(default_factory=list)
    outcome: ClosureOutcome | None = None
    is_awaited: bool = False

    def __str__(self) -> str:
        """Who it is in messages."""
        return f"closure {self.number} ({self.name})"

    @property
    def datasets(self) -> dict[int, DatasetRecord]:
        """Those of its iterators, by number."""
        return {each.dataset.number: each.dataset for each in self.iterators}


@dataclass(frozen=True, kw_only=True, slots=True)
class CoordinatorStats:
    """Counters of a coordinator, from ``ClusterCoordinator.stats``.

    Attributes:
        done: closures that returned.
        failed: closures that raised, or were given up.
        cancelled: closures that were not run, because another one failed before.
        given_back: how often a closure went back into the queue, because its worker died.
        worker_restarts: how often a worker's process was started again.
        lost_workers: workers that could not be started again.
    """

    done: int
    failed: int
    cancelled: int
    given_back: int
    worker_restarts: int
    lost_workers: tuple[int, ...]
