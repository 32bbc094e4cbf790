"""What the rest of the package asks of the ranks together, and nothing about how it is done.

Two implementations: ``cluster/process_group`` over torch.distributed and ``testing/simulated`` in
memory. A :class:`Channel` or :class:`Board` belongs to one background thread at a time; the methods
of a :class:`Communicator` are called from the thread that runs the training loop.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

from torch_distinput.errors import PeerFailedError, UsageError, refer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch


Gone = Callable[[], Mapping[int, str]]
"""Tells who will not come any more, and why in words; asked now and then by whoever waits."""


def nobody() -> Mapping[int, str]:
    """A :data:`Gone` that knows of none."""
    return {}


Merge = Callable[["Sequence[str]"], str]
"""Makes one text of all workers' texts, which come in worker order. Whichever worker calls it, and
if several do, it makes the same."""


class ChannelBrokenError(Exception):
    """A collective of a channel did not complete: a peer died or its connection closed."""


class Channel(Protocol):
    """Collectives of one dataset, apart from everybody else's; every rank calls in one order.

    Released when nobody holds it any more.
    """

    def gather_objects(self, value: Any) -> list[Any]:
        """Gather one picklable value from each worker, in worker order."""

    def abandon(self) -> None:
        """Free a thread that waits for the others: its call raises ChannelBrokenError."""


class BoardClosedError(Exception):
    """The place where the notes were kept is gone, or was left on purpose by this worker."""

    def __init__(self, message: str, *, on_purpose: bool) -> None:
        """Keep whose doing it was beside the message."""
        super().__init__(message)
        self.on_purpose = on_purpose


class Board(Protocol):
    """Where each worker leaves one note for the others; its newest replaces the one before.

    All calls raise BoardClosedError.
    """

    @property
    def names(self) -> Sequence[int]:
        """What each worker is called by all of them, who may number each other in other ways."""

    def post(self, text: str) -> None:
        """Leave a note, without waiting."""

    def read(self) -> dict[int, str]:
        """The notes by worker."""

    def post_summary(self, text: str) -> None:
        """Leave the one note that sums up those of all, in place of the one before."""

    def read_summary(self) -> str:
        """That note; "" if there is none."""

    def claim(self, term: int) -> bool:
        """Whether this worker is the first one to say that it comes after a term."""


class Meeting(Protocol):
    """Some ranks together, as one of them sees it; numbered, as workers are."""

    @property
    def rank(self) -> int:
        """This worker's index, from 0."""

    @property
    def size(self) -> int:
        """The number of workers."""

    def join(
        self, topic: str, text: str, merge: Merge, *, timeout: float, gone: Gone = nobody
    ) -> str:
        """Show a text under a topic and return what ``merge`` makes of all workers' texts.

        One of the workers merges, and the others read the result: that is the only thing that all
        of them read, so it should be small. Needs no collective, so it can name the workers that
        did not come.

        Raises:
            PeerFailedError: a worker that has not come is gone.
            PeerTimeoutError: a worker did not come within ``timeout`` seconds.
        """

    def open_board(self) -> Board:
        """The board of these workers, for one thread.

        May be called by that thread; it never stands behind what the main thread waits for.
        """


class Communicator(Meeting, Protocol):
    """All workers together, over whom data is parallel."""

    def show_first(self, topic: str, text: str, *, timeout: float) -> str:
        """Show a text under a topic unless another worker has; return the one that is shown.

        Waits for nobody but the store, of which PeerTimeoutError tells.
        """

    def open_channel(self, *, timeout: float, gone: Gone = nobody) -> Channel:
        """Make a channel; called by all workers in one order.

        Raises what :meth:`join` does, and ChannelBrokenError if they cannot connect.
        """

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum tensors of one shape and dtype over the workers; the same result on each."""

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Gather each worker's tensor of shape ``(rows, ...)``; the numbers of rows may differ."""

    def gather_objects(self, value: Any) -> list[Any]:
        """Gather one picklable value from each worker, in worker order."""

    def deal_objects(self, values: Sequence[Any]) -> list[Any]:
        """Send one picklable value to each worker; return what each sent here, in worker order."""


def exchange(
    workers: Meeting, topic: str, text: str, *, timeout: float, gone: Gone = nobody
) -> list[str]:
    """Show a text under a topic and return all workers' texts, in worker order.

    For texts that are alike as a rule: each different one is read once. Raises what
    :meth:`Meeting.join` does.
    """
    joined = workers.join(topic, text, _fold, timeout=timeout, gone=gone)
    distinct, runs = json.loads(joined)
    return [distinct[number] for number, count in runs for _ in range(count)]


def _fold(texts: Sequence[str]) -> str:
    """Each different text, and which of them come in a row."""
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    runs = [[number, len(list(run))] for number, run in groupby(map(numbers.__getitem__, texts))]
    return json.dumps([list(numbers), runs])


def check_process(maker: int) -> None:
    """Raise UsageError in a process other than the one that joined the workers."""
    if os.getpid() != maker:
        msg = (
            f"Expected the strategy of several workers in process {maker}, which made it, got a "
            f"call in its child {os.getpid()}: the two would share connections to the other "
            "workers. Call it in the parent, or let the child do its work without the strategy."
        )
        raise refer(UsageError(msg), "docs/errors.md#forks")


def check_company(
    topic: str, lost: Mapping[int, str], names: Sequence[str] | None = None
) -> None:
    """Raise PeerFailedError if workers that should come to a topic are lost, in their words."""
    if lost:
        words = "; ".join(f"{named_workers([w], names)}: {said}" for w, said in lost.items())
        who = named_workers(lost, names)
        msg = (
            f"Expected all workers at {topic!r}, but {who} will not come. {words}. "
            "Their own output says more; restart the job."
        )
        raise PeerFailedError(msg)


def named_workers(workers: Iterable[int], names: Sequence[str] | None = None) -> str:
    """Name workers in a message: ``worker 1``, or ``workers 1, 2``.

    ``names``: of all of them, where some are no workers of this strategy's.
    """
    if names is not None:
        return ", ".join(names[worker] for worker in workers)
    names = [str(worker) for worker in workers]
    return ("worker " if len(names) == 1 else "workers ") + ", ".join(names)


class Alone:
    """The communicator of a single worker: nobody to wait for.

    Args:
        on_purpose: the user asked for a single worker; False where none but this one was found.
    """

    rank = 0
    size = 1

    def __init__(self, *, on_purpose: bool) -> None:
        """See the class."""
        self.on_purpose = on_purpose

    def join(
        self, topic: str, text: str, merge: Merge, *, timeout: float, gone: Gone = nobody  # noqa: ARG002
    ) -> str:
        """Merge the worker's own text."""
        return merge([text])

    def show_first(self, topic: str, text: str, *, timeout: float) -> str:  # noqa: ARG002
        """Return the worker's own text."""
        return text

    def open_channel(self, *, timeout: float, gone: Gone = nobody) -> Channel:  # noqa: ARG002
        """Refuse: one worker has nobody to agree with."""
        msg = "a single worker needs no channel"
        raise AssertionError(msg)

    def open_board(self) -> Board:
        """Refuse: nobody would read the notes."""
        msg = "a single worker needs no board"
        raise AssertionError(msg)

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor."""
        return tensor.detach()

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensor alone."""
        return [tensor.detach()]

    def gather_objects(self, value: Any) -> list[Any]:
        """Return the value alone."""
        return [value]

    def deal_objects(self, values: Sequence[Any]) -> list[Any]:
        """Return the only value."""
        return list(values)


def communicator_of(strategy: Any) -> Communicator:
    """The way to the workers of a strategy, for folders that see no strategy; alone without one."""
    if strategy is None:
        return Alone(on_purpose=True)
    communicator: Communicator = strategy._session.communicator  # noqa: SLF001 - not for users
    return communicator
