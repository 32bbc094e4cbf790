"""Loader processes, and what there is to know about a user's DataLoader.

The only room that imports torch's DataLoader. Work reaches loader processes as tasks or as one
stream; results come back in order. The position is kept by whoever iterates, never in a sampler.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic, NoReturn, TypeVar

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
    get_worker_info,
)

from torch_distinput.data.stream import source_error
from torch_distinput.errors import ConfigurationError, SourceError

T = TypeVar("T")
Task = TypeVar("Task")

_log = logging.getLogger(__name__)
_KEPT = ("multiprocessing_context", "prefetch_factor", "timeout")


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

    def run(self, tasks: Iterator[Task]) -> Iterator[T]:
        """Yield the results of the tasks; loader processes start now, in the calling thread."""
        if not self._options.num_workers:
            return map(self._fetch, tasks)
        if self._loader is None:
            self._loader = self._make()
        self._tasks.pending = tasks
        return _results(iter(self._loader), self._forget)

    def _make(self) -> DataLoader[T]:
        return DataLoader(
            _Fetching(self._fetch),
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
    if options.num_workers > 1:
        _say_one_process(options.num_workers)
    loader: DataLoader[T] = DataLoader(
        _Streaming(stream),
        batch_size=None,
        collate_fn=_as_it_is,
        worker_init_fn=_Start(options),
        num_workers=1,
        **options.keywords,
    )
    return _results(iter(loader), lambda: None)


@lru_cache(maxsize=1)
def _say_one_process(num_workers: int) -> None:
    _log.info(
        "A stream is read, mapped and collated in one loader process, not in num_workers=%d.",
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


def _results(iterator: Iterator[Any], forget: Callable[[], None]) -> Iterator[Any]:
    """Raise what loader processes raised; say when they were lost, and ``forget`` them."""
    number = 0
    try:
        for result in iterator:
            if isinstance(result, _Raised):
                result.again()
            yield result
            number += 1
    except SourceError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever torch raises when it loses a process
        msg = (
            f"The loader processes did not deliver batch {number} ({type(error).__name__}: "
            f"{error}). Look for a crash, for the system's memory limit, or for their timeout."
        )
        # The frames of the traceback would keep torch's iterator, whose signal handler raises in
        # the main thread as long as it knows of a process that was lost.
        del iterator
        forget()
        raise SourceError(msg) from error.with_traceback(None)


def _as_it_is(value: T) -> T:
    return value


class _Tasks(Generic[Task]):
    """The tasks of the epoch that starts next; DataLoader asks for them twice when it starts."""

    pending: Iterator[Task] = iter(())

    def __iter__(self) -> Iterator[Task]:
        return self.pending


class _Start:
    """What a loader process does first: show the user's dataset, call the ``worker_init_fn``."""

    def __init__(self, options: LoaderOptions) -> None:
        self._dataset = options.dataset
        self._init_fn = options.init_fn

    def __call__(self, process: int) -> None:
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

    def __init__(self, fetch: Callable[[Any], Any]) -> None:
        self._fetch = fetch

    def __getitem__(self, task: Any) -> Any:
        if self.failed:
            return self.failed
        try:
            return self._fetch(task)
        except Exception as error:  # noqa: BLE001 - it is raised again in the main process
            return _raised(source_error(error, "a batch"), error)


class _Streaming(IterableDataset[Any]):
    """A stream that ends with what it raised; torch would end it silently afterwards."""

    failed: _Raised | None = None

    def __init__(self, stream: IterableDataset[Any]) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[Any]:
        if self.failed:
            yield self.failed
            return
        try:
            yield from self._stream
        except Exception as error:  # noqa: BLE001 - it is raised again in the main process
            yield _raised(source_error(error, "a batch"), error)


def _raised(said: SourceError, error: Exception) -> _Raised:
    return _Raised(str(said), "".join(traceback.format_exception(error)))


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderParts:
    """What a user's DataLoader consists of.

    Attributes:
        dataset: the dataset it reads.
        ready: the loader itself is the stream of global batches (over an IterableDataset, without
            batches of its own, or with an ``__iter__`` of the user's).
        batch_size: examples in a global batch; None with a batch sampler of the user's own.
        shuffle: it has a plain RandomSampler, which becomes our own order.
        sampler: the user's own sampler, or batch sampler where ``batch_size`` is None.
    """

    dataset: Any
    ready: bool
    batch_size: int | None
    drop_last: bool
    shuffle: bool
    sampler: Iterable[Any] | None
    collate_fn: Callable[[list[Any]], Any] | None
    loader: LoaderOptions


def is_loader(source: object) -> bool:
    """Whether the source is a torch DataLoader or a class made from it."""
    return isinstance(source, DataLoader)


def look_through(loader: DataLoader[Any]) -> LoaderParts:
    """Take a DataLoader apart.

    Raises:
        ConfigurationError: for a DistributedSampler, or ``in_order=False``.
    """
    _refuse(loader)
    batches: Any = loader.batch_sampler
    own_iter = not _is_of_torch(_defining_class(loader, "__iter__"))
    if own_iter:
        _log.info(
            "%s has an __iter__ of its own: its batches, in its order, are the global batches, and "
            "every rank reads them all.",
            type(loader).__name__,
        )
    ready = own_iter or isinstance(loader.dataset, IterableDataset) or batches is None
    plain = not ready and _is_plain_batching(batches)
    order = None if ready else batches.sampler if plain else batches
    ours = plain and _is_plain(order, loader.dataset)
    if ours and getattr(order, "generator", None) is not None:
        _log.warning(
            "The DataLoader's generator is not used: distribute_dataset(seed=) and the epoch "
            "decide the order, so that it is the same on all ranks."
        )
    collate_fn = loader.collate_fn
    return LoaderParts(
        dataset=loader.dataset,
        ready=ready,
        batch_size=batches.batch_size if plain else None,
        drop_last=batches.drop_last if plain else False,
        shuffle=ours and type(order) is not SequentialSampler,
        sampler=None if ours else order,
        collate_fn=None if collate_fn is default_collate else collate_fn,
        loader=LoaderOptions(
            num_workers=loader.num_workers,
            keywords=_kept_keywords(loader),
            persistent=loader.persistent_workers,
            dataset=loader.dataset,
            init_fn=loader.worker_init_fn,
        ),
    )


def _kept_keywords(loader: DataLoader[Any]) -> dict[str, Any]:
    if not loader.num_workers:
        return {}
    return {name: getattr(loader, name) for name in _KEPT}


def _refuse(loader: DataLoader[Any]) -> None:
    for sampler in (loader.sampler, getattr(loader.batch_sampler, "sampler", None)):
        if isinstance(sampler, DistributedSampler):
            msg = (
                "Expected a DataLoader over the whole dataset with the global batch size, got one "
                "with a DistributedSampler, which already cuts (and repeats) examples. Leave the "
                "sampler out; shuffle=True on the DataLoader shuffles by distribute_dataset's seed."
            )
            raise ConfigurationError(msg)
    if not getattr(loader, "in_order", True):
        msg = (
            "Expected a DataLoader with in_order=True, got in_order=False: batches that overtake "
            "each other differ between ranks. Leave in_order out."
        )
        raise ConfigurationError(msg)


def _is_plain_batching(batches: object) -> bool:
    """Whether batches are consecutive windows of a sampler, as torch and torchdata make them."""
    return type(batches).__name__ == BatchSampler.__name__ and _is_of_torch(type(batches))


def _is_plain(sampler: Any, dataset: Any) -> bool:
    """Whether a sampler's order over the dataset can be made by the seed and the epoch alone."""
    if not hasattr(dataset, "__len__"):  # torch does not ask for it where a sampler is given
        return False
    if type(sampler) is SequentialSampler:
        return len(sampler) == len(dataset)
    random = type(sampler).__name__ == RandomSampler.__name__ and _is_of_torch(type(sampler))
    return random and not sampler.replacement and len(sampler) == len(dataset)


def _defining_class(value: object, method: str) -> type:
    """The class that a method comes from."""
    return next(kind for kind in type(value).__mro__ if method in vars(kind))


def _is_of_torch(kind: type) -> bool:
    """By module name, so that torchdata need not be imported for its own classes."""
    return kind.__module__.partition(".")[0] in ("torch", "torchdata")
