"""The processes of a strategy, and the threads that serve them: one thing to close.

    thread             writes                               reads        guarded by
    any of the user's  _coordinator, _threads, _parameters  the same     _lock
    one per worker     -                                    _parameters  _lock

Threads hold this, and this holds neither strategy nor coordinator: those that are dropped together
are collected, and then this is closed.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

from torch_distinput.coordinator.closures.closure_pickling import check_owner
from torch_distinput.coordinator.closures.queue import ClosureQueue, raise_unless_saving_helps
from torch_distinput.coordinator.closures.worker_thread import WorkerThread
from torch_distinput.coordinator.engines.engine import Engine, RemoteObject
from torch_distinput.coordinator.parameters.parameters import Parameters
from torch_distinput.errors import ServerLostError, UsageError
from torch_distinput.threads import Thread, new_lock, start_thread

_JOIN_SECONDS = 10.0


@final
class Processes:
    """Servers and workers that were started, and the one coordinator that they get.

    Attributes:
        servers: the objects in the servers' processes.
        queue: of the coordinator's closures.
        unused_datasets: datasets and iterators that nobody has any more, by worker.
        dataset_numbers: one for each dataset.
    """

    def __init__(
        self, engine: Engine, servers: Sequence[RemoteObject], workers: Sequence[RemoteObject]
    ) -> None:
        """Take over what the engine has started."""
        self._engine = engine
        self.servers = servers
        self.queue = ClosureQueue(len(workers))
        self._served = [
            WorkerThread(index, remote, engine, self.queue, self._note_death)
            for index, remote in enumerate(workers)
        ]
        self.unused_datasets = [worker.unused_datasets for worker in self._served]
        self._lock = new_lock()
        self._threads: list[Thread] = []
        self._parameters: list[Parameters] = []
        self._coordinator: Callable[[], Any] = lambda: None
        self.dataset_numbers = itertools.count()

    def find_coordinator(self, make: Callable[[], Any]) -> Any:
        """The coordinator; the first time the workers begin to be served."""
        with self._lock:
            found = self._coordinator()
            if found is None:
                found = make()
                self._coordinator = weakref.ref(found)
            if not self._threads:
                self._threads += [
                    start_thread(worker.serve, name=worker.name, stop=self._end)
                    for worker in self._served
                ]
            return found

    def add_parameters(self, parameters: Parameters) -> None:
        """Hold closures back while the state of parameters is taken; tell them of deaths."""
        parameters.pause = self.queue.hold
        parameters.note_closed = partial(self._drop_parameters, parameters)
        parameters.check_open = lambda: raise_unless_saving_helps(self.queue.end_reason)
        parameters.check_travel = self._check_travel
        with self._lock:
            self._parameters.append(parameters)

    def _drop_parameters(self, parameters: Parameters, key: str) -> None:
        """They were closed: workers are told with their next closures."""
        with self._lock:
            self._parameters = [one for one in self._parameters if one is not parameters]
        for worker in self._served:
            worker.unused_parameters.append(key)

    def close(self) -> None:
        """End the queue, the processes and the threads; may be called twice."""
        self._end()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_JOIN_SECONDS)

    def close_soon(self) -> None:
        """As :meth:`close`, but in a thread: whoever collects garbage may hold the queue's lock."""
        start_thread(self.close, name="close", stop=self._end)

    def leave_to_parent(self) -> None:
        """In a forked child, where no thread serves a worker: whoever calls would wait for ever."""
        msg = (
            "Expected a call of the process that has made the ParameterServerStrategy, got one of "
            "a process that it forked: the workers are the parent's. Schedule and fetch there."
        )
        self.queue.end(UsageError(msg))

    def _end(self) -> None:
        msg = (
            "Expected an open ParameterServerStrategy, got one that was closed: its workers are "
            "gone. Make a new strategy and a new ClusterCoordinator."
        )
        self.queue.end(UsageError(msg))
        self._engine.close()

    def _check_travel(self) -> None:
        """Called when parameters are pickled: refuse a closure of another coordinator.

        These servers would not hear of the deaths of its workers.
        """
        check_owner(self._coordinator(), "parameters", "create_parameters on its strategy")

    def _note_death(self, worker: int) -> None:
        """Let the servers know that what a worker pulled will not be pushed."""
        with self._lock:
            all_parameters = list(self._parameters)
        for parameters in all_parameters:
            try:
                parameters.release(self._served[worker].name)
            except ServerLostError as error:
                self.queue.end(error)
            except UsageError:  # they were closed meanwhile: no push to them is applied
                continue
