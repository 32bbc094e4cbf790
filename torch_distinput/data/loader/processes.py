"""Loader processes, which torch's DataLoader runs.

Work reaches them as tasks or as one stream; results come back in order. The position is kept by
whoever iterates, never in a sampler.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import repeat
from typing import Any, Generic, NoReturn, TypeVar

from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    get_worker_info,
)

from torch_distinput.data.loader.shared_memory import Parcel, Receiver, Sender
from torch_distinput.data.user_sources.epochs import tell_epoch
from torch_distinput.data.user_sources.source_error import source_error
from torch_distinput.errors import SourceError
from torch_distinput.threads import forking_loaders

_Run = tuple[int, int | None]  # its number, and the epoch that it is of
T = TypeVar("T")
Task = TypeVar("Task")
Step = TypeVar("Step")

_log = logging.getLogger(__name__)

_SWITCH_SECONDS = 0.0002
"""In a loader process a thread of torch's queue sends results. It would wait for the one that works
for 5 ms, Python's default, while the main process waits for the result."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderOptions:
    """How many loader processes to run, and how; the keywords are DataLoader's.

    Attributes:
        dataset: what ``get_worker_info().dataset`` is in a loader process, if anything of the
            user's.
        init_fn: the user's ``worker_init_fn``.
    """

    num_workers: int = 0
    keywords: Mapping[str, Any] = field(default_factory=dict)
    persistent: bool = False
    dataset: Any = None
    init_fn: Callable[[int], None] | None = None


class TaskLoader(Generic[Task, T]):
    """Runs ``fetch(task)`` for a stream of tasks, in order, here or in loader processes.

    Lives as long as the dataset, so that persistent loader processes serve several epochs.
    """

    def __init__(self, fetch: Callable[[Task], T], options: LoaderOptions) -> None:
        """Start nothing yet."""
        self._fetch = fetch
        self._options = options
        self._tasks: _Tasks[Task] = _Tasks()
        self._loader: DataLoader[T] | None = None
        self._receiver = Receiver()

    def run(self, tasks: Iterator[Task], epoch: int | None = None) -> Iterator[T]:
        """Yield the results of the tasks; loader processes start now, in the calling thread.

        The user's dataset is told the epoch, if there is one, also in a process that persists.
        """
        if epoch is not None:
            tell_epoch(self._options.dataset, epoch)
        if not self._options.num_workers:
            return _mapped(self._fetch, tasks)
        if self._loader is None:
            self._loader = self._make()
        self._tasks.begin(tasks, epoch)
        return _results(_started(self._loader), self._receiver, self._forget)

    def guarded(self, steps: Iterator[Step]) -> Iterator[Step]:
        """Yield steps made of the results; torch may raise the death of a process in them, too."""
        return _guarded(steps, self._forget) if self._options.num_workers else steps

    def _make(self) -> DataLoader[T]:
        return DataLoader(
            _Fetching(self._fetch, self._options.dataset),
            batch_size=None,
            sampler=self._tasks,
            collate_fn=_as_it_is,
            worker_init_fn=_Start(self._options),
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
        _Streaming(stream),
        batch_size=None,
        collate_fn=_as_it_is,
        worker_init_fn=_Start(options),
        num_workers=1,
        **options.keywords,
    )
    return _results(_started(loader), Receiver(), lambda: None)


def run_stages(
    stream: IterableDataset[Task], finish: Callable[[Task], T], options: LoaderOptions
) -> Iterator[T]:
    """Iterate a stream and finish each of its items, in order, here or in loader processes.

    One process reads, for two would each play the whole stream; the others finish.
    """
    if options.num_workers < 2:
        return run_stream(_Finished(stream, finish), options)
    _say_one_process(options.num_workers)
    others: TaskLoader[Any, T] = TaskLoader(
        _Passing(finish), replace(options, num_workers=options.num_workers - 1)
    )
    return others.run(_with_error_last(run_stream(stream, options)))


def _mapped(fn: Callable[[Task], T], items: Iterable[Task]) -> Iterator[T]:
    """Like ``map``, but a StopIteration that the user's code raises in ``fn`` is no end."""
    for item in items:
        try:
            result = fn(item)
        except StopIteration as error:
            raise source_error(error, "a batch") from error
        yield result


def _with_error_last(items: Iterator[Any]) -> Iterator[Any]:
    """Hand an error on as an item, so that it is raised after the steps before it."""
    try:
        yield from items
    except Exception as error:  # noqa: BLE001 - it is raised again behind the other processes
        yield _raised(source_error(error, "a batch"), error)


class _Passing:
    """Finishes items, and hands errors on."""

    def __init__(self, finish: Callable[[Any], Any]) -> None:
        self._finish = finish

    def __call__(self, item: Any) -> Any:
        return item if isinstance(item, _Raised) else self._finish(item)


@lru_cache(maxsize=1)
def _say_one_process(num_workers: int) -> None:
    _log.info(
        "Of num_workers=%d, one loader process reads the stream; the others map and collate.",
        num_workers,
    )


@dataclass(frozen=True, slots=True)
class _Raised:
    """An error on its way out of a loader process: torch would make a new one of its text."""

    said: str
    traceback: str

    def again(self) -> NoReturn:
        """Raise it in this process."""
        raise SourceError(self.said) from LoaderProcessTraceback(self.traceback)


class LoaderProcessTraceback(Exception):  # noqa: N818 - it is a text, not an error by itself
    """What a loader process printed; the ``__cause__`` of a SourceError."""


def _results(
    iterator: Iterator[Parcel], receiver: Receiver, forget: Callable[[], None]
) -> Iterator[Any]:
    """Raise what loader processes raised; say when they were lost, and ``forget`` them."""
    number = 0
    try:
        for parcel in iterator:
            result = receiver.open(parcel)
            if isinstance(result, _Raised):
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
        raise _lost(number, error) from error.with_traceback(None)


def _guarded(steps: Iterator[Step], forget: Callable[[], None]) -> Iterator[Step]:
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
        raise _lost(number, error) from error.with_traceback(None)


def _lost(number: int, error: Exception) -> SourceError:
    msg = (
        f"The loader processes did not deliver batch {number} ({type(error).__name__}: {error}). "
        "Look for a crash (perhaps at a later batch, fetched ahead), the memory limit, their "
        "timeout, or, if they are spawned, for a script without if __name__ == '__main__':."
    )
    return SourceError(msg)


def _started(loader: DataLoader[Any]) -> Iterator[Any]:
    """Start the loader processes, or those that were kept on the next epoch."""
    with forking_loaders():
        return iter(loader)


def _as_it_is(value: T) -> T:
    return value


class _Tasks(Generic[Task]):
    """The tasks of the run that starts next; DataLoader asks for them twice when it starts."""

    def __init__(self) -> None:
        self._pending: Iterator[tuple[_Run, Task]] = iter(())
        self._num_runs = 0

    def begin(self, tasks: Iterator[Task], epoch: int | None) -> None:
        """Number the run, so that loader processes know when nobody waits for another any more."""
        self._num_runs += 1
        self._pending = zip(repeat((self._num_runs, epoch)), tasks)

    def __iter__(self) -> Iterator[tuple[_Run, Task]]:
        return self._pending


class _Start:
    """What a loader process does first: show the user's dataset, call the ``worker_init_fn``."""

    def __init__(self, options: LoaderOptions) -> None:
        self._dataset = options.dataset
        self._init_fn = options.init_fn

    def __call__(self, process: int) -> None:
        sys.setswitchinterval(_SWITCH_SECONDS)
        info: Any = get_worker_info()
        ours = info.dataset
        if self._dataset is not None:
            object.__setattr__(info, "dataset", self._dataset)  # it is frozen
        try:
            if self._init_fn is not None:
                self._init_fn(process)
        except Exception as error:  # noqa: BLE001 - it is raised again in the main process
            said = f"worker_init_fn({process}) raised {type(error).__name__}: {error}"
            ours.failed = _raised(SourceError(said), error)


class _Fetching(Dataset[Any]):
    """A fetch function in the shape of a map-style dataset."""

    failed: _Raised | None = None

    def __init__(self, fetch: Callable[[Any], Any], dataset: Any) -> None:
        self._fetch = fetch
        self._dataset = dataset  # the user's; the fetch has the same one, also here
        self._run: _Run | None = None
        self._sender: Sender | None = None

    def __getitem__(self, numbered: tuple[_Run, Any]) -> Parcel:
        run, task = numbered
        sender = self._sender = self._sender or _sender()
        try:
            if run != self._run:
                self._run = run
                sender.forget_unopened()
                if run[1] is not None:
                    tell_epoch(self._dataset, run[1])
            return sender.pack(self.failed or self._fetch(task))
        except Exception as error:  # noqa: BLE001 - it is raised again in the main process
            return sender.pack(_raised(source_error(error, "a batch"), error))


class _Finished(IterableDataset[Any]):
    """A stream that finishes its items itself."""

    def __init__(self, stream: IterableDataset[Any], finish: Callable[[Any], Any]) -> None:
        self._stream = stream
        self._finish = finish

    def __iter__(self) -> Iterator[Any]:
        return _mapped(self._finish, self._stream)


class _Streaming(IterableDataset[Any]):
    """A stream that ends with what it raised; torch would end it silently afterwards."""

    failed: _Raised | None = None

    def __init__(self, stream: IterableDataset[Any]) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[Parcel]:
        sender = _sender()
        if self.failed:
            yield sender.pack(self.failed)
            return
        try:
            yield from map(sender.pack, self._stream)
        except Exception as error:  # noqa: BLE001 - it is raised again in the main process
            yield sender.pack(_raised(source_error(error, "a batch"), error))


def _sender() -> Sender:
    """Of this loader process."""
    info = get_worker_info()
    assert info is not None, "made in a loader process only"
    return Sender(info.id)


def _raised(said: SourceError, error: Exception) -> _Raised:
    return _Raised(str(said), "".join(traceback.format_exception(error)))
