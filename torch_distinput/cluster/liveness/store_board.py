"""A board in the store of torch.distributed, for the signs of life."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from torch_distinput.communicator import BoardClosedError
from torch_distinput.errors import PeerFailedError

_MOST_ASKED = 128
"""Questions in one look who has come: all workers ask one store."""

class StoreBoard:
    """Notes under one key for each rank."""

    def __init__(self, store: Store, ranks: Sequence[int], own: int) -> None:
        """Take a client of the store that nobody else uses.

        Args:
            store: the client.
            ranks: in the default group; a worker's number is its place here.
            own: this worker's number.
        """
        self._store = store
        self._keys = {worker: f"statuses/{rank}" for worker, rank in enumerate(ranks)}
        self._own = self._keys[own]
        self._come: list[int] = []
        self._missing = deque(self._keys)

    def post(self, text: str) -> None:
        """Leave a note."""
        try:
            self._store.set(self._own, text)
        except RuntimeError as error:
            raise BoardClosedError(str(error), on_purpose=not dist.is_initialized()) from error

    def read(self) -> dict[int, str]:
        """Read the notes, in one round trip when everybody has left one.

        Not once the default group was destroyed: at the end of a script the process that hosts the
        store may leave first, and torch would write pages about a connection that nobody needs.
        """
        if not dist.is_initialized():
            raise BoardClosedError("the process group was destroyed", on_purpose=True)
        try:
            self._look_who_came()
            texts = texts_of(self._store, [self._keys[worker] for worker in self._come])
            return dict(zip(self._come, texts, strict=True))
        except RuntimeError as error:
            raise BoardClosedError(str(error), on_purpose=not dist.is_initialized()) from error

    def _look_who_came(self) -> None:
        """All at once; else one by one, of many workers some and the next time others."""
        if not self._missing or self._store.check([self._keys[w] for w in self._missing]):
            self._come.extend(self._missing)
            self._missing.clear()
        for _ in range(min(len(self._missing), _MOST_ASKED)):
            worker = self._missing.popleft()
            has_come = self._store.check([self._keys[worker]])
            (self._come if has_come else self._missing).append(worker)


def store_lost(error: BaseException) -> PeerFailedError:
    """What it means for a worker that the store does not answer any more."""
    return PeerFailedError(
        "Expected the store of the process group to live as long as its workers, but the "
        f"connection is lost ({error}): the process that hosts it (torchrun's agent, or rank 0) "
        "died or ended first. Its own output says why; restart the job, and let rank 0 end last."
    )


def texts_of(store: Store, keys: list[str]) -> list[str]:
    """Get the texts under keys that are there, in one round trip where the store can."""
    client: Any = store  # torch's stubs lack these two
    if client.has_extended_api():
        return [text.decode() for text in client.multi_get(keys)]
    return [client.get(key).decode() for key in keys]
