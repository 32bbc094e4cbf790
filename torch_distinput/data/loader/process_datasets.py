"""What a loader process runs: tasks to be fetched, or a stream to be played; errors travel home."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar, final

from torch.utils.data import Dataset, IterableDataset, get_worker_info

from torch_distinput.data.loader.options import LoaderOptions
from torch_distinput.data.loader.shared_memory import Parcel, Sender
from torch_distinput.data.user_sources.epochs import tell_epoch
from torch_distinput.data.user_sources.source_error import source_error
from torch_distinput.errors import SourceError

T = TypeVar("T")
Task = TypeVar("Task")
RunKey = tuple[int, int | None]
"""Of a run over tasks: its number, and the epoch that it is of."""

_SWITCH_SECONDS = 0.0002
"""In a loader process a thread of torch's queue sends results. It would wait for the one that works
for 5 ms, Python's default, while the main process waits for the result."""


@final
@dataclass(frozen=True, slots=True)
class SentError:
    """An error on its way out of a loader process: torch would make a new one of its text."""

    said: str
    traceback: str

    def again(self) -> NoReturn:
        """Raise it in this process."""
        raise SourceError(self.said) from LoaderProcessTraceback(self.traceback)


class LoaderProcessTraceback(Exception):  # noqa: N818 - it is a text, not an error by itself
    """What a loader process printed; the ``__cause__`` of a SourceError."""


def map_items(fn: Callable[[Task], T], items: Iterable[Task]) -> Iterator[T]:
    """Like ``map``, but a StopIteration that the user's code raises in ``fn`` is no end."""
    for item in items:
        try:
            result = fn(item)
        except StopIteration as error:
            raise source_error(error, "a batch") from error
        yield result


@final
class FinishUnlessError:
    """Finishes items, and hands errors on."""

    def __init__(self, finish: Callable[[Any], Any]) -> None:
        self._finish = finish

    def __call__(self, item: Any) -> Any:
        """Finish an item, or hand the error on."""
        return item if isinstance(item, SentError) else self._finish(item)


@final
class ProcessInit:
    """What a loader process does first: show the user's dataset, call the ``worker_init_fn``."""

    def __init__(self, options: LoaderOptions) -> None:
        self._dataset = options.dataset
        self._init_fn = options.init_fn

    def __call__(self, process: int) -> None:
        """Prepare this process, whose number torch passes; an error waits for the first result."""
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
            ours.failed = error_to_send(SourceError(said), error)


@final
class FetchDataset(Dataset[Any]):
    """A fetch function in the shape of a map-style dataset."""

    failed: SentError | None = None

    def __init__(self, fetch: Callable[[Any], Any], dataset: Any) -> None:
        self._fetch = fetch
        self._dataset = dataset  # the user's; the fetch has the same one, also here
        self._run: RunKey | None = None
        self._sender: Sender | None = None

    def __getitem__(self, numbered: tuple[RunKey, Any]) -> Parcel:
        run, task = numbered
        sender = self._sender = self._sender or _make_sender()
        try:
            if run != self._run:
                self._run = run
                sender.forget_unopened()
                if run[1] is not None:
                    tell_epoch(self._dataset, run[1])
            return sender.pack(self.failed or self._fetch(task))
        except Exception as error:  # noqa: BLE001 - it is raised again in the main process
            return sender.pack(error_to_send(source_error(error, "a batch"), error))


@final
class FinishedStream(IterableDataset[Any]):
    """A stream that finishes its items itself."""

    def __init__(self, stream: IterableDataset[Any], finish: Callable[[Any], Any]) -> None:
        self._stream = stream
        self._finish = finish

    def __iter__(self) -> Iterator[Any]:
        return map_items(self._finish, self._stream)


@final
class StreamDataset(IterableDataset[Any]):
    """A stream that ends with what it raised; torch would end it silently afterwards."""

    failed: SentError | None = None

    def __init__(self, stream: IterableDataset[Any]) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[Parcel]:
        sender = _make_sender()
        if self.failed:
            yield sender.pack(self.failed)
            return
        try:
            yield from map(sender.pack, self._stream)
        except Exception as error:  # noqa: BLE001 - it is raised again in the main process
            yield sender.pack(error_to_send(source_error(error, "a batch"), error))


def _make_sender() -> Sender:
    """Of this loader process."""
    info = get_worker_info()
    assert info is not None, "made in a loader process only"
    return Sender(info.id)


def error_to_send(said: SourceError, error: Exception) -> SentError:
    """Write down an error, with what ``said`` says of its place."""
    return SentError(str(said), "".join(traceback.format_exception(error)))
