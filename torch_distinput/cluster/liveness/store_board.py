"""A board in the store of torch.distributed, for the signs of life."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from torch_distinput.communicator import BoardClosedError
from torch_distinput.errors import PeerFailedError, PeerTimeoutError

_MOST_ASKED = 128
"""Questions in one look who has come: all workers ask one store."""
_SUMMARY = "statuses/summary"


class StoreBoard:
    """Notes under one key for each rank.

    Attributes:
        names: the ranks.
    """

    def __init__(self, store: Store, ranks: Sequence[int], own: int) -> None:
        """Take a client of the store that nobody else uses.

        Args:
            store: the client.
            ranks: in the default group; a worker's number is its place here.
            own: this worker's number.
        """
        self._store = store
        self._keys = {worker: f"statuses/{rank}" for worker, rank in enumerate(ranks)}
        self.names = tuple(ranks)
        self._own = self._keys[own]
        self._has_summary = False
        self._come: list[int] = []
        self._missing = deque(self._keys)

    def post(self, text: str) -> None:
        """Leave a note."""
        with _closing():
            self._store.set(self._own, text)

    def read(self) -> dict[int, str]:
        """Read the notes, in one round trip when everybody has left one."""
        with _closing(asks=True):
            self._look_who_came()
            texts = texts_of(self._store, [self._keys[worker] for worker in self._come])
            return dict(zip(self._come, texts, strict=True))

    def post_summary(self, text: str) -> None:
        """Leave the one note of all."""
        with _closing():
            self._store.set(_SUMMARY, text)

    def read_summary(self) -> str:
        """Read the one note of all."""
        with _closing(asks=True):
            self._has_summary = self._has_summary or bool(self._store.check([_SUMMARY]))
            return texts_of(self._store, [_SUMMARY])[0] if self._has_summary else ""

    def claim(self, term: int) -> bool:
        """Whether this worker is the first to claim what follows a term."""
        with _closing(asks=True):
            return bool(self._store.add(f"statuses/after term {term}", 1) == 1)

    def _look_who_came(self) -> None:
        """All at once; else one by one, of many workers some and the next time others."""
        if not self._missing or self._store.check([self._keys[w] for w in self._missing]):
            self._come.extend(self._missing)
            self._missing.clear()
        for _ in range(min(len(self._missing), _MOST_ASKED)):
            worker = self._missing.popleft()
            has_come = self._store.check([self._keys[worker]])
            (self._come if has_come else self._missing).append(worker)


@contextmanager
def _closing(*, asks: bool = False) -> Iterator[None]:
    """Around what a store does; once the default group was destroyed nothing is ``asked``.

    At the end of a script the process that hosts the store may leave first, and torch would write
    pages about a connection that nobody needs.
    """
    if asks and not dist.is_initialized():
        raise BoardClosedError("the process group was destroyed", on_purpose=True)
    try:
        yield
    except RuntimeError as error:
        raise BoardClosedError(str(error), on_purpose=not dist.is_initialized()) from error


def make_lost_store_error(error: BaseException) -> PeerFailedError:
    """What it means for a worker that the store does not answer any more."""
    return PeerFailedError(
        "Expected the store of the process group to live as long as its workers, but the "
        f"connection is lost ({error}): the process that hosts it (torchrun's agent, or rank 0) "
        "died or ended first. Its own output says why; restart the job, and let rank 0 end last."
    )


def make_silent_store_error(timeout: float, at: str = "") -> PeerTimeoutError:
    """The store does not answer, and is not lost either."""
    return PeerTimeoutError(
        f"Expected an answer from the store of the process group within {timeout:g} s{at}, got "
        "none: the process that hosts it (torchrun's agent, or rank 0) is stopped or cannot be "
        "reached. Restart the job."
    )


def texts_of(store: Store, keys: list[str]) -> list[str]:
    """Get the texts under keys that are there, in one round trip where the store can."""
    client: Any = store  # torch's stubs lack these two
    if client.has_extended_api():
        return [text.decode() for text in client.multi_get(keys)]
    return [client.get(key).decode() for key in keys]
