"""What a loader process runs: tasks to be fetched, or a stream to be played; errors travel home."""

from __future__ import annotations

import pickle
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import parent_process
from typing import Any, NoReturn, TypeVar, final

import numpy as np
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from torch_distinput.data.loader.channel import ChannelClosed, ProcessChannel
from torch_distinput.data.loader.options import LoaderOptions
from torch_distinput.data.loader.shared_memory import Parcel, Sender, dump_shared
from torch_distinput.data.user_sources.epochs import tell_epoch
from torch_distinput.data.user_sources.source_errors import source_error
from torch_distinput.errors import SourceError
from torch_distinput.threads import leave_group, stops_on_signal

T = TypeVar("T")
Task = TypeVar("Task")
RunKey = tuple[int, int | None]
"""Of a run over tasks: its number, and the epoch that it is of."""
_HELD_SECONDS = 0.002
"""That a result may wait for those after it."""
_ORPHAN_SECONDS = 5.0
"""Between two looks whether the main process still is there: it may have left the channel to a
process that it has forked."""


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
        self._leaves_group = stops_on_signal()

    def __call__(self, process: int) -> None:
        """Prepare this process, whose number torch passes; an error waits for the first result."""
        if self._leaves_group:
            leave_group()
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
        ours.leave_if_closed(process)


@final
class ProcessDataset(Dataset[None]):
    """What a loader process does, as a dataset with one "example" for it: all of its work."""

    failed: SentError | None = None

    def __init__(self, fetch: Callable[[Any], Any], dataset: Any, ends: Sequence[Any]) -> None:
        """Take what fetches tasks, and an end of a channel for each process."""
        self._fetch = fetch
        self._dataset = dataset  # the user's; the fetch has the same one, also here
        self._ends = ends
        self._run: RunKey | None = None

    def leave_if_closed(self, process: int) -> None:
        """End this process, if the main one has ended while this one was being started.

        Torch ends a process whose parent is another one than at first: not where it was so before.
        """
        if not ProcessChannel(self._ends[process]).is_open():
            sys.exit()

    def __getitem__(self, process: int) -> None:
        """Fetch tasks until the main process closes the channel, or ends; then end as well."""
        for number, end in enumerate(self._ends):
            if number != process:  # else nobody would notice that one of the others has ended
                end.close()
        channel, sender = ProcessChannel(self._ends[process]), Sender(process)
        try:
            while True:
                message = channel.receive(_ORPHAN_SECONDS, _is_orphan)
                run, tasks = pickle.loads(message)  # noqa: S301 - the main process wrote it
                for answers in self._answers(sender, run, tasks):
                    channel.send(dump_message(run[0], answers))
        except ChannelClosed:
            sys.exit()  # as above
        except Exception:  # noqa: BLE001 - a task or a result that cannot be pickled
            traceback.print_exc()
            sys.exit(1)  # the main process waits for an answer, or the end of this one

    def _answers(
        self, sender: Sender, run: RunKey, tasks: Sequence[Any]
    ) -> Iterator[Sequence[Parcel]]:
        """Answer tasks: together if that is soon, for each message wakes the main process."""
        answers, due = [], time.monotonic() + _HELD_SECONDS
        for task in tasks:
            answers.append(self._answer(sender, run, task))
            if (now := time.monotonic()) > due:
                yield answers
                answers, due = [], now + _HELD_SECONDS
        if answers:
            yield answers

    def _answer(self, sender: Sender, run: RunKey, task: Any) -> Parcel:
        try:
            if run != self._run:
                self._run = run
                sender.forget_unopened()
                if run[1] is not None:
                    tell_epoch(self._dataset, run[1])
            return sender.pack(self.failed or self._fetch(task))
        except Exception as error:  # noqa: BLE001 - it is raised again in the main process
            return sender.pack(error_to_send(source_error(error, "a batch"), error))


def dump_message(run: RunKey | int, contents: Sequence[Any]) -> bytes:
    """Pickle tasks or results; in torch's way where there may be tensors in them, or memory."""
    if all(map(_is_plain, contents)):
        return pickle.dumps((run, contents), 5)
    return dump_shared((run, contents))


def _is_plain(content: Any) -> bool:
    kind = type(content)
    return kind is np.ndarray or content is None or (kind is tuple and content[-1] is None)


def _is_orphan() -> bool:
    parent = parent_process()
    return parent is not None and not parent.is_alive()


@final
@dataclass(frozen=True, slots=True)
class StreamEnd:
    """Sent in place of an item when the stream has ended."""


@final
class StreamFetch:
    """The next item of a stream, whatever the task; it starts with the first."""

    def __init__(self, stream: Iterable[Any]) -> None:
        """Take a stream."""
        self._stream = stream
        self._items: Iterator[Any] | None = None

    def __call__(self, task: None) -> Any:  # noqa: ARG002
        """Return the next item."""
        if self._items is None:
            self._items = iter(self._stream)
        return next(self._items, StreamEnd())


@final
class FinishedStream(IterableDataset[Any]):
    """A stream that finishes its items itself."""

    def __init__(self, stream: IterableDataset[Any], finish: Callable[[Any], Any]) -> None:
        self._stream = stream
        self._finish = finish

    def __iter__(self) -> Iterator[Any]:
        return map_items(self._finish, self._stream)


def error_to_send(said: SourceError, error: Exception) -> SentError:
    """Write down an error, with what ``said`` says of its place."""
    return SentError(str(said), "".join(traceback.format_exception(error)))
