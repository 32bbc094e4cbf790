"""The thread behind each worker: it takes what is next, has it done, and survives deaths.

    thread            writes                                       reads
    this worker's     all attributes of its WorkerThread, the      the same; closures by way of the
                      deaths of the closure that it runs           queue
    any               unused_values, unused_datasets,              -
                      unused_parameters (appends)

A closure is in the hands of one thread at a time, so its deaths need no lock. The three deques are
filled by whoever collects garbage, who may hold any lock: appending takes none.

    taken            what happens               then
    closure          it returns                 its value is there, or is kept in the worker
                     it raises                  the queue is cancelled; what it took is asked for
                     the worker dies            it is given back, or given up the third time;
                                                the worker is started again
    dataset          it is made                 -
                     its function raises        the queue is cancelled; tried again when a closure
                                                needs it
                     the worker dies            the worker is started again
    start            it dies a third time       the worker is lost
"""

from __future__ import annotations

import itertools
import logging
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar, final

from torch_distinput.coordinator.closures.closure import (
    MAX_DEATHS,
    Closure,
    ClosureOutcome,
    Death,
    Failed,
    Kept,
    Returned,
    describe,
    write_history,
)
from torch_distinput.coordinator.closures.dataset_record import DatasetRecord
from torch_distinput.coordinator.closures.queue import ClosureQueue, Task
from torch_distinput.coordinator.engines.engine import Engine, ProcessDiedError, RemoteObject
from torch_distinput.coordinator.workers.messages import (
    ClosureReply,
    ClosureRequest,
    IteratorReport,
    Unused,
)
from torch_distinput.errors import (
    ConfigurationError,
    ServerLostError,
    SourceError,
    WorkerLostError,
)

T = TypeVar("T")
_log = logging.getLogger(__name__)
_IDLE_SECONDS = 1.0
"""After this time without an answer a worker is asked whether it is there."""


@final
class WorkerThread:
    """Serves one worker; ``serve`` is what the thread runs."""

    def __init__(
        self,
        index: int,
        remote: RemoteObject,
        engine: Engine,
        queue: ClosureQueue,
        on_death: Callable[[int], None],
    ) -> None:
        """Serve worker ``index``; ``on_death(index)`` is called when its process has ended."""
        self._index = index
        self._remote = remote
        self._engine = engine
        self._queue = queue
        self._on_death = on_death
        self.name = remote.name
        self._made: weakref.WeakValueDictionary[int, DatasetRecord]
        self._made = weakref.WeakValueDictionary()  # datasets that the process has
        self._failed_starts: list[Death] = []  # in a row
        self._answered = time.monotonic()  # when the process last did
        self.unused_values: deque[int] = deque()
        self.unused_datasets: deque[Unused] = deque()
        self.unused_parameters: deque[str] = deque()

    def serve(self) -> None:
        """Do what the queue has, until there is nothing any more or the worker is lost."""
        try:
            is_up = self._start()
            while is_up:
                is_up = self._do_next()
        except BaseException as error:  # noqa: BLE001 - a fault of ours leaves nobody waiting
            self._queue.end(error)

    def _do_next(self) -> bool:
        """Take a task and do it; whether to go on. It is not kept while the next one is awaited."""
        task = self._queue.take(self._index)
        if task is None:
            return False
        return self._run(task) if isinstance(task, Closure) else self._make(task)

    # ------------------------------------------------------------------ closures

    def _run(self, closure: Closure) -> bool:
        """Run a closure; whether the worker is up afterwards."""
        if self._has_died_idle():
            self._queue.give_back(self._index, closure)
            return self._restart()
        try:
            for record in closure.datasets.values():
                if record.number not in self._made:
                    self._create(record)
        except ProcessDiedError as error:
            return self._start_after(error, closure)
        except Exception as error:  # noqa: BLE001 - the user's
            self._note_failed(closure, error)
            return True
        self._failed_starts.clear()
        try:
            reply = self._remote.call("run", self._request(closure))
        except ProcessDiedError as error:
            self._note_death(f"with {closure}", error)
            self._lose(closure, error)
            return self._restart()
        except Exception as error:  # noqa: BLE001 - the user's
            return self._note_raised(closure, error)
        finally:
            self._answered = time.monotonic()
        self._note_reports(closure, reply.reports)
        self._queue.finish(self._index, self._outcome(closure, reply))
        return True

    def _has_died_idle(self) -> bool:
        """Whether it died before the closure came, which then has not killed it."""
        if time.monotonic() - self._answered < _IDLE_SECONDS:
            return False
        try:
            self._remote.call("start")
        except ProcessDiedError as error:
            self._note_death("while it had nothing to do", error)
            return True
        return False

    def _request(self, closure: Closure) -> ClosureRequest:
        return ClosureRequest(
            number=closure.number,
            name=closure.name,
            payload=closure.payload,
            unused_values=_take_all(self.unused_values),
            unused_datasets=_take_all(self.unused_datasets),
            unused_parameters=_take_all(self.unused_parameters),
        )

    def _outcome(self, closure: Closure, reply: ClosureReply) -> ClosureOutcome:
        if reply.value is None:
            return Kept(self._remote, closure.number, self.unused_values)
        return Returned(value=reply.value)

    def _note_raised(self, closure: Closure, error: Exception) -> bool:
        """The function raised; whether the worker is up afterwards."""
        _locate(error, f"{closure} on {self._remote.name}")
        try:
            self._note_reports(closure, self._remote.call("take_reports"))
        except ProcessDiedError as death:
            self._note_death(f"after {closure} had failed", death)
            self._note_lost(closure)
            self._note_failed(closure, error)
            return self._restart()
        except Exception:  # noqa: BLE001 - the user's state_dict(), of which the first error may be
            self._note_lost(closure)
        self._note_failed(closure, error)
        return True

    def _note_failed(self, task: Task, error: Exception) -> None:
        """Cancel what waits; without a server nothing runs any more."""
        if isinstance(error, ServerLostError):
            self._queue.end(error)
            self._queue.finish(self._index, Failed(error=error))
        else:
            self._queue.fail(self._index, task, error)

    def _note_reports(self, closure: Closure, reports: Iterable[IteratorReport]) -> None:
        for number, own in itertools.groupby(reports, lambda report: report.dataset):
            # Not among the closure's if its iterator was kept there by an earlier one.
            record = closure.datasets.get(number) or self._made.get(number)
            if record is not None:
                record.add(self._index, own)

    @staticmethod
    def _note_lost(closure: Closure) -> None:
        """Nobody knows what it took."""
        for record in closure.datasets.values():
            record.lose()

    def _lose(self, closure: Closure, error: ProcessDiedError) -> None:
        """The worker died with a closure: another one may have it, unless it kills them all."""
        closure.deaths.append(Death(cause=str(error)))
        self._note_lost(closure)
        if len(closure.deaths) < MAX_DEATHS:
            self._queue.give_back(self._index, closure)
            return
        msg = (
            f"Expected {closure} to return or raise, but its worker died each of the "
            f"{len(closure.deaths)} times that it was tried. Find out what in it ends the process "
            f"(memory, a crash in native code, os._exit):{write_history(closure.deaths)}"
        )
        self._queue.fail(self._index, closure, WorkerLostError(msg))

    # ------------------------------------------------------------------ datasets

    def _make(self, record: DatasetRecord) -> bool:
        """Make a dataset; whether the worker is up afterwards."""
        try:
            self._create(record)
        except ProcessDiedError as error:
            return self._start_after(error)
        except Exception as error:  # noqa: BLE001 - the user's
            self._note_failed(record, error)
        else:
            self._queue.finish(self._index)
        return True

    def _create(self, record: DatasetRecord) -> None:
        place = record.places.get(self._index)
        try:
            self._remote.call("create_dataset", record.recipe, place)
        except (ProcessDiedError, ServerLostError):
            raise
        except Exception as error:
            kind = ConfigurationError if isinstance(error, ConfigurationError) else SourceError
            msg = (
                f"Expected every worker to make {record}; on {self._remote.name} it raised "
                f"{describe(error)} Fix the function, or the data it reads there."
            )
            raise kind(msg) from error
        self._made[record.number] = record

    # ------------------------------------------------------------------ deaths

    def _start(self) -> bool:
        """Wait for the worker's process; whether it is up."""
        try:
            self._remote.call("start")
        except ProcessDiedError as error:
            return self._start_after(error)
        except Exception as error:  # noqa: BLE001 - the worker cannot be made: its device, say
            return self._give_up(error)
        self._queue.arrive(self._index)
        return True

    def _start_after(self, error: ProcessDiedError, closure: Closure | None = None) -> bool:
        """The process ended before it could run a closure."""
        self._failed_starts.append(Death(cause=str(error)))
        self._note_death("before it could run a closure", error)
        if closure is not None:
            self._queue.give_back(self._index, closure)
        return self._restart()

    def _restart(self) -> bool:
        """Start the process again; whether it is up."""
        self._queue.leave(self._index)
        self._made.clear()
        self.unused_values.clear()
        self.unused_datasets.clear()
        self.unused_parameters.clear()
        while self._queue.end_reason is None and len(self._failed_starts) < MAX_DEATHS:
            try:
                self._engine.restart(self._remote)
            except ProcessDiedError as death:
                self._failed_starts.append(Death(cause=str(death)))
            except Exception as fault:  # noqa: BLE001 - the worker cannot be made
                return self._give_up(fault)
            else:
                self._queue.arrive(self._index, is_again=True)
                return True
        self._queue.leave(self._index, for_good=self._failed_starts)
        return False

    def _note_death(self, moment: str, error: ProcessDiedError) -> None:
        """First of all: what the worker has pushed is applied, or never, before join() returns."""
        if self._queue.end_reason is None:  # else it was ended
            _log.warning("A worker died %s, and is started again: %s", moment, error)
            self._on_death(self._index)

    def _give_up(self, error: Exception) -> bool:
        cause = f"{self._remote.name}: could not be made: {describe(error)}"
        self._queue.leave(self._index, for_good=[*self._failed_starts, Death(cause=cause)])
        return False


def _take_all(noted: deque[T]) -> tuple[T, ...]:
    """Take what is there now; others may append meanwhile."""
    return tuple(noted.popleft() for _ in range(len(noted)))


def _locate(error: BaseException, place: str) -> None:
    """Say where it was raised, before the traceback from there. Frames of ours are let go."""
    cause, error.__traceback__ = error.__cause__, None
    error.__cause__ = ClosureTraceback(place if cause is None else f"{place}\n{cause}")


@final
class ClosureTraceback(Exception):  # noqa: N818 - it is no error, but where one was
    """The cause of an error of the user's function: which closure, which worker, which lines."""
