"""Loader processes, which torch's DataLoader runs.

Work reaches them as tasks or as one stream; results come back in order. The position is kept by
whoever iterates, never in a sampler.

    tasks     main: _TaskSampler --(run, task)--> process: FetchDataset --Parcel--> main: _receive
    a stream  process: StreamDataset --Parcel--> main: _receive
    stages    as a stream, whose items are the tasks of other processes, which finish them

    thread                 writes                          reads                  guarded by
    main (who iterates)    _TaskSampler, _loader, slots    results                one thread
    DataLoader's queue     the pipe                        Parcels                torch's queue
    loader process         its slots (see shared_memory)   tasks                  its first byte
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import repeat
from typing import Any, Generic, TypeVar, final

from torch.utils.data import (
    DataLoader,
    IterableDataset,
)

from torch_distinput.data.loader.options import LoaderOptions
from torch_distinput.data.loader.process_datasets import (
    FetchDataset,
    FinishedStream,
    FinishUnlessError,
    ProcessInit,
    RunKey,
    SentError,
    StreamDataset,
    error_to_send,
    map_items,
)
from torch_distinput.data.loader.shared_memory import Parcel, Receiver
from torch_distinput.data.user_sources.epochs import tell_epoch
from torch_distinput.data.user_sources.source_error import source_error
from torch_distinput.errors import SourceError
from torch_distinput.threads import forking_loaders

T = TypeVar("T")
Task = TypeVar("Task")
Step = TypeVar("Step")

_log = logging.getLogger(__name__)

@final
class TaskLoader(Generic[Task, T]):
    """Runs ``fetch(task)`` for a stream of tasks, in order, here or in loader processes.

    Lives as long as the dataset, so that persistent loader processes serve several epochs.
    """

    def __init__(self, fetch: Callable[[Task], T], options: LoaderOptions) -> None:
        """Start nothing yet."""
        self._fetch = fetch
        self._options = options
        self._tasks: _TaskSampler[Task] = _TaskSampler()
        self._loader: DataLoader[T] | None = None
        self._receiver = Receiver()

    def run(self, tasks: Iterator[Task], epoch: int | None = None) -> Iterator[T]:
        """Yield the results of the tasks; loader processes start now, in the calling thread.

        The user's dataset is told the epoch, if there is one, also in a process that persists.
        """
        if epoch is not None:
            tell_epoch(self._options.dataset, epoch)
        if not self._options.num_workers:
            return map_items(self._fetch, tasks)
        if self._loader is None:
            self._loader = self._make()
        self._tasks.begin(tasks, epoch)
        return _receive(_start_processes(self._loader), self._receiver, self._forget)

    def guard(self, steps: Iterator[Step]) -> Iterator[Step]:
        """Yield steps made of the results; torch may raise the death of a process in them, too."""
        return _guard(steps, self._forget) if self._options.num_workers else steps

    def _make(self) -> DataLoader[T]:
        return DataLoader(
            FetchDataset(self._fetch, self._options.dataset),
            batch_size=None,
            sampler=self._tasks,
            collate_fn=_identity,
            worker_init_fn=ProcessInit(self._options),
            num_workers=self._options.num_workers,
            persistent_workers=self._options.persistent,
            **self._options.keywords,
        )

    def _forget(self) -> None:
        """After a loss the next epoch starts with new processes."""
        self._loader = None


def run_stream(stream: IterableDataset[T], options: LoaderOptions) -> Iterator[T]:
    """Iterate a stream here, or in one loader process that starts now.

    One process whatever ``num_workers`` says: two would each play the whole stream.
    """
    if not options.num_workers:
        return iter(stream)
    loader: DataLoader[T] = DataLoader(
        StreamDataset(stream),
        batch_size=None,
        collate_fn=_identity,
        worker_init_fn=ProcessInit(options),
        num_workers=1,
        **options.keywords,
    )
    return _receive(_start_processes(loader), Receiver(), lambda: None)


def run_stages(
    stream: IterableDataset[Task], finish: Callable[[Task], T], options: LoaderOptions
) -> Iterator[T]:
    """Iterate a stream and finish each of its items, in order, here or in loader processes.

    One process reads, for two would each play the whole stream; the others finish.
    """
    if options.num_workers < 2:
        return run_stream(FinishedStream(stream, finish), options)
    _log_one_process(options.num_workers)
    others: TaskLoader[Any, T] = TaskLoader(
        FinishUnlessError(finish), replace(options, num_workers=options.num_workers - 1)
    )
    return others.run(_append_error(run_stream(stream, options)))


def _append_error(items: Iterator[Any]) -> Iterator[Any]:
    """Hand an error on as an item, so that it is raised after the steps before it."""
    try:
        yield from items
    except Exception as error:  # noqa: BLE001 - it is raised again behind the other processes
        yield error_to_send(source_error(error, "a batch"), error)


@lru_cache(maxsize=1)
def _log_one_process(num_workers: int) -> None:
    _log.info(
        "Of num_workers=%d, one loader process reads the stream; the others map and collate.",
        num_workers,
    )


def _receive(
    iterator: Iterator[Parcel], receiver: Receiver, forget: Callable[[], None]
) -> Iterator[Any]:
    """Raise what loader processes raised; say when they were lost, and ``forget`` them."""
    number = 0
    try:
        for parcel in iterator:
            result = receiver.open(parcel)
            if isinstance(result, SentError):
                result.again()
            yield result
            number += 1
    except SourceError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever torch raises when it loses a process
        # The frames of the traceback would keep torch's iterator, whose signal handler raises in
        # the main thread as long as it knows of a process that was lost.
        del iterator
        forget()
        raise _processes_lost(number, error) from error.with_traceback(None)


def _guard(steps: Iterator[Step], forget: Callable[[], None]) -> Iterator[Step]:
    number = 0
    try:
        for step in steps:
            yield step
            number += 1
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker"):
            raise
        del steps  # as above
        forget()
        raise _processes_lost(number, error) from error.with_traceback(None)


def _processes_lost(number: int, error: Exception) -> SourceError:
    msg = (
        f"The loader processes did not deliver batch {number} ({type(error).__name__}: {error}). "
        "Look for a crash (perhaps at a later batch, fetched ahead), the memory limit, their "
        "timeout, or, if they are spawned, for a script without if __name__ == '__main__':."
    )
    return SourceError(msg)


def _start_processes(loader: DataLoader[Any]) -> Iterator[Any]:
    """Start the loader processes, or those that were kept on the next epoch."""
    with forking_loaders():
        return iter(loader)


def _identity(value: T) -> T:
    return value


@final
class _TaskSampler(Generic[Task]):
    """The tasks of the run that starts next; DataLoader asks for them twice when it starts."""

    def __init__(self) -> None:
        self._pending: Iterator[tuple[RunKey, Task]] = iter(())
        self._num_runs = 0

    def begin(self, tasks: Iterator[Task], epoch: int | None) -> None:
        """Number the run, so that loader processes know when nobody waits for another any more."""
        self._num_runs += 1
        self._pending = zip(repeat((self._num_runs, epoch)), tasks)

    def __iter__(self) -> Iterator[tuple[RunKey, Task]]:
        return self._pending
