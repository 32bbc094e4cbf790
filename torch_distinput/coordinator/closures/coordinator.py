"""``ClusterCoordinator``: what a user schedules, waits for and fetches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NoReturn, final

import torch_distinput as tdi
from torch_distinput.coordinator.closures.closure import CoordinatorStats
from torch_distinput.coordinator.closures.closure_pickling import pickling_closure, refuse
from torch_distinput.coordinator.closures.dataset_record import DatasetRecord
from torch_distinput.coordinator.closures.per_worker import PerWorkerDataset
from torch_distinput.coordinator.closures.processes import Processes
from torch_distinput.coordinator.closures.queue import ClosureQueue
from torch_distinput.coordinator.closures.remote_value import RemoteValue, fetch_all
from torch_distinput.coordinator.closures.strategy import (
    ParameterServerStrategy,
    processes_of,
)
from torch_distinput.coordinator.engines.pickling import dumps, dumps_call
from torch_distinput.coordinator.workers.messages import DatasetRecipe


@final
class ClusterCoordinator:
    """Hands functions to workers (``tf.distribute.coordinator.ClusterCoordinator``).

    One for each strategy: asked for again, it is the same object. Its methods may be called from
    any thread of the process that made it.
    """

    _strategy: ParameterServerStrategy
    _processes: Processes
    _queue: ClosureQueue

    def __new__(cls, strategy: ParameterServerStrategy) -> ClusterCoordinator:
        """The coordinator of a strategy."""
        if not isinstance(strategy, ParameterServerStrategy):
            msg = (
                "ClusterCoordinator needs a ParameterServerStrategy, got "
                f"{type(strategy).__name__}. Other strategies have no coordinator: every rank runs "
                "the same script."
            )
            raise TypeError(msg)
        processes = processes_of(strategy)

        def make() -> ClusterCoordinator:
            coordinator = super(ClusterCoordinator, cls).__new__(cls)
            coordinator._strategy = strategy
            coordinator._processes = processes
            coordinator._queue = processes.queue
            return coordinator

        found: ClusterCoordinator = processes.find_coordinator(make)
        return found

    def __repr__(self) -> str:
        """Show the strategy."""
        return f"ClusterCoordinator({self._strategy!r})"

    def __reduce__(self) -> NoReturn:
        """Refuse to travel to a worker."""
        refuse(
            TypeError(
                "Expected a closure that any worker can run, got one with the ClusterCoordinator "
                "in it, which belongs to this process. Schedule from here, and pass values only."
            )
        )

    @property
    def strategy(self) -> ParameterServerStrategy:
        """The strategy whose workers run the closures."""
        return self._strategy

    def schedule(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> RemoteValue:
        """Let any worker that is free call ``fn(*args, **kwargs)``, and return at once.

        Function and arguments are pickled here and now: what changes later does not reach the
        worker. A worker that dies gives its closures back, so a function may run more than once, or
        partly. Any plain function will do.

        Args:
            fn: called on a worker, where ``tdi.get_strategy()`` is the worker's own strategy.
            args: with iterators of per-worker datasets, and parameters, among them.
            kwargs: as ``args``, by name.

        Raises:
            TypeError: something in them cannot be pickled; the message says what.
            UsageError: the strategy is closed, or they hold a handle that cannot travel.
            Exception: that of an earlier closure, which nobody has raised yet; this one is not
                scheduled then.
        """
        args, kwargs = tuple(_check_args(args)), dict(_check_kwargs(kwargs))
        if not callable(fn):
            msg = (
                f"schedule needs a function, got {type(fn).__name__}. Write schedule(fn, "
                "args=(...,)), not schedule(fn(...))."
            )
            raise TypeError(msg)
        with pickling_closure(self) as packed:
            payload = dumps_call(fn, args, kwargs)
        closure = self._queue.put(_name_of(fn), payload, packed.iterators)
        return RemoteValue(self._queue, closure)

    def join(self) -> None:
        """Wait until all closures have ended; nothing runs when this returns or raises.

        Raises:
            Exception: what the first closure raised that failed, with the traceback from its worker
                as its cause. All that waited were cancelled then; scheduling may go on.
            WorkerLostError: a closure killed its worker three times, or no worker is left.
            ServerLostError: a parameter server died; restore from a checkpoint.
            UsageError: the strategy is closed.
        """
        self._queue.join()

    def done(self) -> bool:
        """Whether all closures have ended; raises what :meth:`join` does."""
        return self._queue.is_done()

    def fetch(self, structure: Any) -> Any:
        """Wait for each RemoteValue in lists, tuples and dicts, and put its value in its place.

        Raises:
            ClosureCancelledError: one was not run, because another one failed before.
            WorkerLostError: one was in a worker that died.
            Exception: what one of the functions raised.
        """
        return fetch_all(structure)

    def create_per_worker_dataset(
        self,
        dataset: Any,
        *,
        resume: Literal["start", "state"] = "start",
        ids: Callable[[Any], Iterable[Any]] | None = None,
    ) -> PerWorkerDataset:
        """Let each worker make a dataset for itself; nothing is sharded.

        The workers make it as soon as they are free, under ``tdi.get_strategy()``, their own
        strategy of one worker. So a function may distribute what it reads over the worker's
        replicas. Workers take closures as they come: let datasets repeat, and shuffle each in its
        own way.

        Args:
            dataset: an iterable; a function that makes one, which takes an InputContext (with the
                number of this worker among all) or nothing; or a :class:`DatasetCreator`.
            resume: where the iterator of a worker goes on that died: ``"start"`` of its data, as in
                TensorFlow, or ``"state"``: after the last closure that returned, by the dataset's
                ``state_dict()``, which then travels with every closure.
            ids: the names of the examples of an element, for ``visits()``; without it each worker's
                are counted by themselves. ``lambda _: ()`` counts none.

        Raises:
            SourceError: from the next call of the coordinator; a function raised on a worker.
            ConfigurationError: from the next call, too: ``resume="state"``, and the dataset has no
                state.
            TypeError: it is neither an iterable nor a function, is an iterator, or cannot be
                pickled.
        """
        if resume not in ("start", "state"):
            msg = f"resume must be 'start' or 'state', got {resume!r}."
            raise ValueError(msg)
        made, is_function = _recipe_of(dataset)
        name = _name_of(made)
        with pickling_closure(self):
            payload = dumps((made, ids), f"the per-worker dataset {name}")
        recipe = DatasetRecipe(
            number=next(self._processes.dataset_numbers),
            name=name,
            payload=payload,
            is_function=is_function,
            keeps_state=resume == "state",
            names_examples=ids is not None,
        )
        record = DatasetRecord(recipe, self._processes.unused_datasets)
        self._queue.add_dataset(record)
        return PerWorkerDataset(self, record)

    def stats(self) -> CoordinatorStats:
        """Counters since the coordinator was made."""
        return self._queue.stats()


def _name_of(value: Any) -> str:
    """What a function, or an object, is called in messages."""
    return str(getattr(value, "__qualname__", None) or type(value).__qualname__)


def _check_args(args: Any) -> Any:
    if args is None:
        return ()
    if not isinstance(args, (list, tuple)):
        msg = (
            f"args must be a list or tuple, got {type(args).__name__}. One argument goes into "
            "args=(argument,)."
        )
        raise TypeError(msg)
    return args


def _check_kwargs(kwargs: Any) -> Any:
    if kwargs is None:
        return {}
    if not isinstance(kwargs, Mapping):
        msg = (
            f"kwargs must be a dict of arguments by name, got {type(kwargs).__name__}. Arguments "
            "without a name go into args=(...)."
        )
        raise TypeError(msg)
    return kwargs


def _recipe_of(dataset: Any) -> tuple[Any, bool]:
    """What travels to the workers, and whether it is a function."""
    if isinstance(dataset, tdi.DatasetCreator):
        return dataset.dataset_fn, True
    if isinstance(dataset, (tdi.DistributedDataset, tdi.Strategy)):
        msg = (
            f"Expected a dataset that each worker can have, got a {type(dataset).__name__} of this "
            "process. Pass a function that makes it on the worker: def dataset_fn(context): return "
            "tdi.get_strategy().distribute_dataset(source, global_batch_size=...)."
        )
        raise TypeError(msg)
    if hasattr(dataset, "__next__") and not isinstance(dataset, type):
        msg = (
            "Expected a dataset that can be iterated again, with each iter() of the per-worker "
            f"dataset, got an iterator, {type(dataset).__name__}: all would share it. Pass what it "
            "iterates, or a function that returns it."
        )
        raise TypeError(msg)
    if hasattr(dataset, "__iter__") and not isinstance(dataset, type):
        return dataset, False
    if callable(dataset):
        return dataset, True
    msg = (
        "create_per_worker_dataset needs an iterable, a function that makes one or a "
        f"DatasetCreator, got {type(dataset).__name__}. Pass a function of an InputContext."
    )
    raise TypeError(msg)
