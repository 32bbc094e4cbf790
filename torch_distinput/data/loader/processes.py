"""Loader processes, which torch's DataLoader starts; what they do travels through channels of ours.

Torch seeds each process, runs the ``worker_init_fn`` in it, watches it, and ends it. Its queues are
not used: they need a thread at each end, which takes more time than fetching a small batch. So each
process gets one "example" from its DataLoader, which lasts as long as the process is needed.

    tasks     main: --(run, task)--> process: ProcessDataset --(run, Parcel)--> main: _receive
    a stream  the tasks say nothing: "the next item"
    stages    as a stream, whose items are the tasks of other processes, which finish them

    thread                 writes                          reads                  guarded by
    main (who iterates)    channels, _kept, slots          results                one thread
    loader process         its slots (see shared_memory)   tasks                  its first byte
"""

from __future__ import annotations

import errno
import itertools
import logging
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import repeat
from multiprocessing import Pipe
from typing import Any, Generic, NoReturn, TypeVar, final

from torch.utils.data import DataLoader, IterableDataset

from torch_distinput.data.loader.channel import CAN_POLL, ChannelClosed, ProcessChannel
from torch_distinput.data.loader.fetch_threads import FetchThreads
from torch_distinput.data.loader.options import LoaderOptions
from torch_distinput.data.loader.process_datasets import (
    FinishedStream,
    FinishUnlessError,
    ProcessDataset,
    ProcessInit,
    SentError,
    StreamEnd,
    StreamFetch,
    error_to_send,
    map_items,
)
from torch_distinput.data.loader.shared_memory import Receiver
from torch_distinput.data.loader.task_run import Limits, TaskRun
from torch_distinput.data.user_sources.epochs import AtEpoch
from torch_distinput.data.user_sources.source_errors import source_error
from torch_distinput.errors import SourceError, make_system_error, refer
from torch_distinput.threads import call_in_child, forking_loaders

T = TypeVar("T")
Task = TypeVar("Task")
Step = TypeVar("Step")

_log = logging.getLogger(__name__)


@final
class TaskLoader(Generic[Task, T]):
    """Runs ``fetch(task)`` for a stream of tasks, in order, here or in loader processes.

    Lives as long as the dataset, so that persistent loader processes serve several epochs.
    """

    def __init__(
        self, fetch: Callable[[Task], T], options: LoaderOptions, *, grouped: bool = False
    ) -> None:
        """Start nothing yet; ``grouped``: nobody waits for tasks, so that several may be sent."""
        self.fetch = fetch
        self._options = options
        self._grouped = grouped
        self._kept: LoaderProcesses | None = None

    @property
    def has_processes(self) -> bool:
        """Whether the dataset is to be read in them only."""
        return self._options.num_workers > 0

    @property
    def fetches_here(self) -> bool:
        """Whether the calling thread does it, when a result is asked for."""
        return not (self._options.num_workers or self._options.num_threads)

    def at_epoch(self, epoch: int) -> AtEpoch:
        """Around each fetch here: others may have told the user's dataset another epoch."""
        return AtEpoch(self._options.dataset, epoch)

    def run(self, tasks: Iterator[Task], epoch: int | None = None) -> Iterator[T]:
        """Yield the results of the tasks; loader processes start now, in the calling thread.

        In a loader process the user's dataset is told the epoch, if there is one; here it was.
        """
        if not self._options.num_workers:
            fetch = self.fetch if epoch is None else _FetchAt(self.fetch, self.at_epoch(epoch))
            if self._options.num_threads:
                return FetchThreads(fetch, tasks, self._options.num_threads)
            return map_items(fetch, tasks)
        kept, self._kept = self._kept, None
        can_serve = kept is not None and kept.leave_run()
        try:
            processes = kept if kept and can_serve else LoaderProcesses(self.fetch, self._options)
            results = processes.run(tasks, epoch, grouped=self._grouped)
        except (RuntimeError, OSError) as error:
            if isinstance(error, OSError) and error.errno != errno.EMFILE:
                raise
            raise _make_lost_error(0, error) from error.with_traceback(None)
        if self._options.persistent:
            self._kept = processes
        return _receive(results, self._forget)

    def guard(self, steps: Iterator[Step]) -> Iterator[Step]:
        """Yield steps made of the results; torch may raise the death of a process in them, too."""
        return _guard(steps, self._forget) if self._options.num_workers else steps

    def _forget(self) -> None:
        """After a loss the next epoch starts with new processes."""
        self._kept = None


@final
@dataclass(frozen=True, slots=True)
class _FetchAt(Generic[Task, T]):
    """Fetches at an epoch; it does not hold the loader."""

    fetch: Callable[[Task], T]
    at_epoch: AtEpoch

    def __call__(self, task: Task) -> T:
        with self.at_epoch:
            return self.fetch(task)


@final
class LoaderProcesses:
    """Processes that torch starts, seeds and watches; tasks and results go through channels.

    Task n goes to process n modulo their number, so that what a process fetches depends on nothing
    else. Dropping this ends them.
    """

    def __init__(self, fetch: Callable[[Any], Any], options: LoaderOptions) -> None:
        """Start them, in the calling thread."""
        if not CAN_POLL:
            cure = "Pass num_threads= instead, or num_workers=0."
            raise make_system_error(f"num_workers={options.num_workers}", "select.poll", cure)
        count, keywords = options.num_workers, options.keywords
        self._limits = Limits.of(keywords)
        self._receiver = Receiver(count)
        self._num_runs = 0
        self._running: weakref.ref[Generator[Any, None, None]] | None = None
        pairs = [Pipe() for _ in range(count)]
        ends = [end for _, end in pairs]
        self._channels = [ProcessChannel(own) for own, _ in pairs]
        call_in_child(self, LoaderProcesses._leave_to_parent)
        weakref.finalize(self, _close, self._channels).atexit = False
        loader: DataLoader[None] = DataLoader(
            ProcessDataset(fetch, options.dataset, ends),
            batch_size=None,
            sampler=range(count),
            collate_fn=_identity,
            worker_init_fn=ProcessInit(options),
            num_workers=count,
            **keywords,
        )
        try:
            with forking_loaders():
                self._torchs = iter(loader)
        finally:
            for end in ends:
                end.close()

    def run(self, tasks: Iterator[Any], epoch: int | None, *, grouped: bool) -> Iterator[Any]:
        """Send the first tasks, and return the way to the results."""
        self._num_runs += 1
        key = (self._num_runs, epoch)
        run = TaskRun(
            key, tasks, self._channels, self._receiver, limits=self._limits, grouped=grouped
        )
        try:
            run.begin()
        except ChannelClosed:
            self._say_who_is_lost()
        results = self._results(run)
        self._running = weakref.ref(results)
        return results

    def leave_run(self) -> bool:
        """End the run before; False if these processes cannot serve another one.

        That is so while another thread waits for a result of it, and where a process has ended, as
        it does when the user interrupts the program.
        """
        running = None if self._running is None else self._running()
        if running is not None:
            try:
                running.close()
            except ValueError:  # it is executing
                return False
        return all(channel.is_open() for channel in self._channels)

    def _results(self, run: TaskRun) -> Generator[Any, None, None]:
        try:
            yield from run
        except GeneratorExit:  # asked first: at the exit a generator may outlive its module's names
            raise
        except ChannelClosed:
            self._say_who_is_lost()

    def _say_who_is_lost(self) -> NoReturn:
        """Have torch raise it, which knows the processes."""
        next(self._torchs, None)
        msg = "DataLoader worker exited before the end"
        raise RuntimeError(msg)

    def _leave_to_parent(self) -> None:
        """In a child: else the processes would not notice that the parent has closed its ends."""
        _close(self._channels)


def _close(channels: Iterable[ProcessChannel]) -> None:
    for channel in channels:
        channel.close()


def run_stream(stream: IterableDataset[T], options: LoaderOptions) -> Iterator[T]:
    """Iterate a stream here, or in one loader process that starts now.

    One process whatever ``num_workers`` says: two would each play the whole stream.
    """
    if not options.num_workers:
        return iter(stream)
    alone = replace(options, num_workers=1, persistent=False)
    loader: TaskLoader[None, Any] = TaskLoader(StreamFetch(stream), alone)
    return itertools.takewhile(_is_item, loader.run(repeat(None)))


def _is_item(item: Any) -> bool:
    return not isinstance(item, StreamEnd)


def run_stages(
    stream: IterableDataset[Task], finish: Callable[[Task], T], options: LoaderOptions
) -> Iterator[T]:
    """Iterate a stream and finish each of its items, in order: here, in threads or in processes.

    One process reads, for two would each play the whole stream; the others finish. Threads finish
    what the caller reads.
    """
    if options.num_threads:
        return FetchThreads(finish, iter(stream), options.num_threads)
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


def _receive(results: Iterator[Any], forget: Callable[[], None]) -> Iterator[Any]:
    """Raise what loader processes raised; say when they were lost, and ``forget`` them."""
    number = 0
    try:
        for result in results:
            if isinstance(result, SentError):
                result.again()
            yield result
            number += 1
    except GeneratorExit:  # between two results; asked first, as above
        raise
    except SourceError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever torch raises when it loses a process
        # The frames of the traceback would keep torch's iterator, whose signal handler raises in
        # the main thread as long as it knows of a process that was lost.
        del results
        forget()
        raise _make_lost_error(number, error) from error.with_traceback(None)
    except BaseException:  # perhaps in the middle of a message
        forget()
        raise


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
        raise _make_lost_error(number, error) from error.with_traceback(None)


_NO_FILE_LEFT = "items of ancdata"
"""In the error of a process that received files, and could not open them."""


def _make_lost_error(number: int, error: Exception) -> SourceError:
    said = f"The loader processes did not deliver batch {number} ({type(error).__name__}: {error})."
    if _NO_FILE_LEFT in str(error) or getattr(error, "errno", None) == errno.EMFILE:
        msg = (
            f"{said} This process may open no more files: each loader process needs some, and each "
            "batch that is kept holds one or more. Raise the limit (ulimit -n), or keep clones of "
            "the batches."
        )
        return refer(SourceError(msg), "docs/how-to/workers-run-out-of-shared-memory.md")
    msg = (
        f"{said} Look for a crash (perhaps at a later batch, fetched ahead), the memory limit, "
        "their timeout, or, if they are spawned, for a script without if __name__ == '__main__':."
    )
    return refer(SourceError(msg), "docs/errors.md#a-process-ends-without-a-python-error")


def _identity(value: T) -> T:
    return value
