"""The queue of closures: what waits, what runs, and the error that nobody has heard of yet.

    thread             writes                                      reads
    any of the user's  _waiting (at the end), _error (to None),    all
                       _datasets, _holds, _end
    one per worker     _waiting (the front), _running, _up,        all
                       _generation, _error, _end, outcomes, _counts

All of it, and the outcome of every closure, is guarded by ``_lock``. The user's threads wait for
``_changed``, those of workers for ``_has_work``. To wake a thread takes as long as to hand out a
closure, so each is woken only where what it waits for may be there. Nothing is called under the
lock but what is here: what follows from a change is done by the caller, outside. The lock is taken
as itself and never by way of the condition, whose ``__enter__`` is Python: Ctrl-C in there would
leave the lock held for ever. Every change of the user's thread is one operation on a collection, so
that Ctrl-C leaves it done or not.
"""

from __future__ import annotations

import itertools
import logging
import weakref
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import final

from torch_distinput.coordinator.closures.closure import (
    Cancelled,
    Closure,
    ClosureOutcome,
    CoordinatorStats,
    Death,
    Failed,
    Generation,
    describe,
    write_history,
)
from torch_distinput.coordinator.closures.dataset_record import DatasetRecord, IteratorRecord
from torch_distinput.errors import WorkerLostError, again
from torch_distinput.threads import new_condition, new_lock

_log = logging.getLogger(__name__)

_WAIT_SECONDS = 1.0
"""For one wait of the user's: Ctrl-C that comes just before it begins is seen when it ends."""
Task = Closure | DatasetRecord
"""What a worker does next: run a closure, or make a dataset."""


@final
class _Hold:
    """While it lives nothing runs: Ctrl-C in the last lines of ``hold`` does not hold for ever."""


@final
class ClosureQueue:
    """Hands closures to workers, first come first served.

    An error cancels all that wait, is raised once by whoever calls next, and is then forgotten.
    """

    def __init__(self, num_workers: int) -> None:
        """Serve workers ``0 .. num_workers - 1``, none of which is there yet."""
        self._lock = new_lock()
        self._changed = new_condition(self._lock)
        self._has_work = new_condition(self._lock)
        self._waiting: deque[Closure] = deque()
        self._running: dict[int, Task] = {}  # by worker
        self._up: dict[int, int] = {}  # by worker that is there: the last dataset it has tried
        self._lost: dict[int, list[Death]] = {}  # by worker: why it will not be there again
        self._num_workers = num_workers
        self._datasets: weakref.WeakValueDictionary[int, DatasetRecord]
        self._datasets = weakref.WeakValueDictionary()  # in the order in which they came
        self._last_dataset = -1
        self._numbers = itertools.count()
        self._generation = Generation()
        self._error: BaseException | None = None  # not raised yet
        self._end: BaseException | None = None  # nothing runs any more
        self._holds: weakref.WeakSet[_Hold] = weakref.WeakSet()
        self._counts: Counter[str] = Counter()

    # ------------------------------------------------------------------ the user's threads

    def put(self, name: str, payload: bytes, iterators: Iterable[IteratorRecord]) -> Closure:
        """Let a closure wait for a worker; raises the error of an earlier one instead."""
        with self._lock:
            self._raise_error()
            closure = Closure(
                number=next(self._numbers),
                name=name,
                payload=payload,
                iterators=frozenset(iterators),
                generation=self._generation,
            )
            self._waiting.append(closure)
            self._has_work.notify()
            return closure

    def add_dataset(self, record: DatasetRecord) -> None:
        """Let each worker make a dataset, before its next closure."""
        with self._lock:
            self._raise_error()
            self._datasets[self._last_dataset + 1] = record
            self._last_dataset += 1
            self._has_work.notify_all()

    def join(self) -> None:
        """Wait until nothing waits or runs; raise the error, if there was one."""
        with self._lock:
            self._has_work.notify_all()  # a put that Ctrl-C has ended between its two lines
            while self._end is None and not self._is_idle:
                self._changed.wait(_WAIT_SECONDS)
            self._raise_error()

    def is_done(self) -> bool:
        """Whether nothing waits or runs; raises the error, if there was one."""
        with self._lock:
            self._raise_error()
            return self._is_idle

    def wait_for(self, closure: Closure) -> ClosureOutcome:
        """Wait until a closure has ended, and tell how."""
        with self._lock:
            closure.is_awaited = True
            while closure.outcome is None and self._end is None:
                self._changed.wait(_WAIT_SECONDS)
            if closure.outcome is None:
                assert self._end is not None
                raise again(self._end)
            return closure.outcome

    @contextmanager
    def hold(self) -> Iterator[None]:
        """While inside, nothing runs: what runs is waited for, what waits goes on waiting."""
        this = _Hold()
        try:
            with self._lock:
                self._holds.add(this)
                while self._end is None and self._running:
                    self._changed.wait(_WAIT_SECONDS)
                raise_unless_saving_helps(self._end)
            yield
        finally:
            with self._lock:
                self._holds.discard(this)
                self._has_work.notify_all()

    def end(self, error: BaseException) -> None:
        """Run nothing any more: from now on every call raises this error, or the one before it."""
        with self._lock:
            unheard = self._error if self._end is None else None
            self._end_because(error)
        if unheard is not None:
            _log.warning("schedule, join and done never raised an error of a closure: %r", unheard)

    def stats(self) -> CoordinatorStats:
        """What has become of closures and workers."""
        with self._lock:
            counts = self._counts
            return CoordinatorStats(
                done=counts["returned"] + counts["kept"],
                failed=counts["failed"],
                cancelled=counts["cancelled"],
                given_back=counts["given_back"],
                worker_restarts=counts["restarts"],
                lost_workers=tuple(sorted(self._lost)),
            )

    # ------------------------------------------------------------------ the workers' threads

    @property
    def end_reason(self) -> BaseException | None:
        """Why nothing runs any more; None as long as anything may."""
        with self._lock:
            return self._end

    def arrive(self, worker: int, *, is_again: bool = False) -> None:
        """A worker is there, without a dataset; perhaps it was there before."""
        with self._lock:
            self._up[worker] = -1
            self._counts["restarts"] += is_again

    def leave(self, worker: int, *, for_good: list[Death] | None = None) -> None:
        """A worker has died; it may arrive again, unless it says why not.

        When the last one is lost, nothing runs any more.
        """
        with self._lock:
            self._up.pop(worker, None)
            self._running.pop(worker, None)
            if for_good is not None:
                self._lost[worker] = for_good
            if len(self._lost) == self._num_workers:
                self._end_because(_make_no_worker_error(self._lost))
            self._changed.notify_all()

    def take(self, worker: int) -> Task | None:
        """Wait for something to do; None when there will be nothing any more."""
        with self._lock:
            while self._end is None:
                task = None if self._holds else self._next_task(worker)
                if task is not None:
                    self._running[worker] = task
                    return task
                self._has_work.wait()
            return None

    def finish(self, worker: int, outcome: ClosureOutcome | None = None) -> None:
        """A worker has run a closure, or has made a dataset, which has no outcome."""
        with self._lock:
            task = self._running.pop(worker)
            is_awaited = False
            if isinstance(task, Closure):
                assert outcome is not None
                self._settle(task, outcome)
                is_awaited = task.is_awaited
            if is_awaited or not self._running:
                self._changed.notify_all()

    def fail(self, worker: int, failed: Task, error: BaseException) -> None:
        """A closure, or a dataset, has raised: cancel what was scheduled before it was known."""
        with self._lock:
            self._running.pop(worker, None)
            generation = self._generation
            if isinstance(failed, Closure):
                generation = failed.generation
                self._settle(failed, Failed(error=error))
            is_first = self._error is None and generation.failure is None and self._end is None
            if is_first:
                self._error = error
                generation.failure = f"{failed} failed with {describe(error)}"
                self._generation = Generation()
                self._cancel_all(generation.failure)
            self._changed.notify_all()
        if not is_first:
            _log.warning("%s failed too, after another error: %r", failed, error)

    def give_back(self, worker: int, closure: Closure) -> None:
        """A worker died that ran a closure: it is the first to run next, unless cancelled."""
        with self._lock:
            self._running.pop(worker, None)
            self._counts["given_back"] += 1
            if self._end is not None:
                self._settle(closure, Failed(error=self._end))
            elif closure.generation.failure is not None:
                self._settle(closure, Cancelled(failure=closure.generation.failure))
            else:
                self._waiting.appendleft(closure)
                self._has_work.notify()
            self._changed.notify_all()

    # ------------------------------------------------------------------ under the lock

    @property
    def _is_idle(self) -> bool:
        """Whether there is nothing to wait for: datasets only of workers that are there."""
        has_made_all = all(tried == self._last_dataset for tried in self._up.values())
        return not self._waiting and not self._running and has_made_all

    def _next_task(self, worker: int) -> Task | None:
        while self._up[worker] < self._last_dataset:
            self._up[worker] += 1
            record = self._datasets.get(self._up[worker])
            if record is not None:
                return record
            self._changed.notify_all()  # nobody has it any more: nobody waits for it either
        return self._waiting.popleft() if self._waiting else None

    def _settle(self, closure: Closure, outcome: ClosureOutcome) -> None:
        closure.outcome, closure.payload, closure.iterators = outcome, b"", frozenset()
        self._counts[type(outcome).__name__.lower()] += 1

    def _cancel_all(self, failure: str) -> None:
        while self._waiting:
            self._settle(self._waiting.popleft(), Cancelled(failure=failure))

    def _end_because(self, error: BaseException) -> None:
        if self._end is None:
            self._end, self._error = error, None
        while self._waiting:
            self._settle(self._waiting.popleft(), Failed(error=self._end))
        self._changed.notify_all()
        self._has_work.notify_all()

    def _raise_error(self) -> None:
        if self._end is not None:
            raise again(self._end)
        if self._error is not None:
            error, self._error = self._error, None
            raise again(error)


def raise_unless_saving_helps(end_reason: BaseException | None) -> None:
    """Raise why a job has ended, unless only its workers are lost: parameters can be saved then."""
    if end_reason is not None and not isinstance(end_reason, WorkerLostError):
        raise again(end_reason)


def _make_no_worker_error(lost: dict[int, list[Death]]) -> WorkerLostError:
    history = write_history([death for worker in sorted(lost) for death in lost[worker]])
    return WorkerLostError(
        f"Expected a worker that can run closures, got none: all {len(lost)} could not be "
        "started again. Find out what ends their processes (memory, a crash), and start "
        f"again:{history}"
    )
