"""The Communicator over torch.distributed: the user's group for tensors, its store for words.

Collectives on the user's group run in the caller's thread only. A :class:`GlooChannel` has a gloo
backend of its own, so its collectives may run in a background thread while the main thread trains.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import pickle
import time
import weakref
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch._C._distributed_c10d import AllgatherOptions
from torch.distributed.distributed_c10d import (
    PrefixStore,
    ProcessGroupGloo,
    Store,
    _get_default_store,
)

from torch_distinput.cluster.liveness.store_board import StoreBoard
from torch_distinput.cluster.store_exchange import StoreExchange
from torch_distinput.communicator import (
    Board,
    Channel,
    ChannelBrokenError,
    Gone,
    check_process,
    nobody,
)
from torch_distinput.threads import call_in_child, new_event, release_at_exit

_FOREVER = timedelta(days=7)
"""Channels wait without a limit of their own: who waits in ``next`` keeps the time, and a vote that
waits while nobody needs it (a long evaluation, say) is no failure."""

_SLICE = timedelta(seconds=0.3)
_KEPT_TEXTS = 2


class ProcessGroupCommunicator:
    """The workers of a process group."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """Take a group of torch.distributed; None is the default group."""
        default = dist.group.WORLD
        assert default is not None, "find_cluster comes after init_process_group"
        self._process = os.getpid()
        self._joined: dist.ProcessGroup = group or default
        self._ranks = dist.get_process_group_ranks(self._joined)
        release_at_exit(_close_all)
        self.rank = dist.get_rank(self._joined)
        self.size = len(self._ranks)
        self._words = self._own_store()
        self._shown: deque[str] = deque()
        self._num_channels = 0

    @property
    def _group(self) -> dist.ProcessGroup:
        """The group; in a forked child an error, as all that uses the parent's connections."""
        check_process(self._process)
        return self._joined

    @property
    def _store(self) -> Store:
        """The store, likewise."""
        check_process(self._process)
        return self._words

    def _own_store(self) -> Store:
        """A corner of the default store for this communicator, found alike by all ranks.

        Ranks make their communicators in one order; the store itself counts them, so that a
        process that joins another job starts from zero.
        """
        store = _get_default_store()
        members = hashlib.blake2b(repr(self._ranks).encode(), digest_size=8).hexdigest()
        number = store.add(f"torch_distinput/{members}/{self.rank}", 1)
        return PrefixStore(f"torch_distinput/{members}/{number}", store)

    def exchange(
        self, topic: str, text: str, *, timeout: float, gone: Gone = nobody
    ) -> list[str]:
        """Show a text under a topic and return all workers' texts, in worker order."""
        store, key = self._store, f"{topic}/{self.rank}"

        def show() -> None:
            store.set(key, text)
            self._forget(key)

        return StoreExchange(store, topic, self.size, timeout=timeout, gone=gone).texts(show)

    def _forget(self, key: str) -> None:
        """Delete the text before the last one: whoever came to the last has read it."""
        self._shown.append(key)
        if len(self._shown) > _KEPT_TEXTS:
            self._store.delete_key(self._shown.popleft())

    def open_channel(self, *, timeout: float, gone: Gone = nobody) -> Channel:
        """Connect the same workers over gloo, when all of them are there.

        To connect is one call into C++, in which nobody would hear that a worker is gone.
        """
        self._num_channels += 1
        self.exchange(f"channel {self._num_channels}", "", timeout=timeout, gone=gone)
        store = PrefixStore(f"channel {self._num_channels}", self._store)
        return GlooChannel(store, self.rank, self.size, timeout=timeout)

    def open_board(self) -> Board:
        """The board in the store, through a client of its own.

        A client of the store serves one thread at a time, also while that one waits.
        """
        store: Any = self._store  # torch's stubs lack clone()
        return StoreBoard(store.clone(), self.rank, self.size)

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over the workers."""
        summed = self._reachable(tensor).clone()
        dist.all_reduce(summed, group=self._group)
        return summed.to(tensor.device)

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Gather tensors whose numbers of rows may differ, padded to the longest for the wire.

        As bytes: backends lack some dtypes.
        """
        lengths = self.gather_objects(tensor.shape[0])
        own = self._reachable(tensor)
        rows, *shape = own.shape
        width = math.prod(shape)
        padded = own.new_zeros((max(lengths), width))
        padded[:rows] = own.view(rows, width)
        gathered = [torch.empty_like(padded) for _ in lengths]
        views = [part.view(torch.uint8) for part in (*gathered, padded)]
        dist.all_gather(views[:-1], views[-1], group=self._group)
        pairs = zip(gathered, lengths, strict=True)
        return [part[:length].view(length, *shape).to(tensor.device) for part, length in pairs]

    def gather_objects(self, value: Any) -> list[Any]:
        """Gather one picklable value from each worker."""
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, value, group=self._group)
        return gathered

    def deal_objects(self, values: Sequence[Any]) -> list[Any]:
        """Send each worker its value, as bytes."""
        pickled = [pickle.dumps(value) for value in values]
        outgoing = [len(content) for content in pickled]
        incoming = [sizes[self.rank] for sizes in self.gather_objects(outgoing)]
        content = bytearray(b"".join(pickled))
        sent = self._reachable(torch.frombuffer(content, dtype=torch.uint8))
        received = sent.new_empty(sum(incoming))
        dist.all_to_all_single(received, sent, incoming, outgoing, group=self._group)
        return [
            pickle.loads(part.numpy().tobytes())  # noqa: S301 - from our own workers
            for part in torch.split(received.cpu(), incoming)
        ]

    def _reachable(self, tensor: torch.Tensor) -> torch.Tensor:
        """Move a tensor to a device that the group has a backend for."""
        kinds = {device.type for device in self._group._device_types}  # noqa: SLF001
        if tensor.device.type in kinds:
            return tensor.detach().contiguous()
        return tensor.detach().to(min(kinds)).contiguous()


class GlooChannel:
    """A gloo backend of one dataset, used by one thread at a time.

    Not a group of ``dist.new_group``, which names a group by how many of them a rank knows (they
    may differ, and change as datasets are collected), and has one limit for both kinds of waiting.
    """

    def __init__(self, store: Store, rank: int, size: int, *, timeout: float) -> None:
        """Connect all ranks, within ``timeout`` seconds."""
        self._backend: Any  # torch's stubs lack the collectives of a backend
        try:
            self._backend = ProcessGroupGloo(store, rank, size, timedelta(seconds=timeout))
        except RuntimeError as error:
            raise ChannelBrokenError(str(error)) from error
        self._size = size
        self._work: dist.Work | None = None
        self._abandoned = new_event()
        _channels.add(self)
        call_in_child(self, GlooChannel._leave_to_parent)

    def close(self) -> None:
        """Join gloo's threads, as it happens to a channel that nobody holds any more."""
        if self._work is not None and not self._work.is_completed():
            # A collective that was given up cannot be stopped, and might be waited for forever.
            self._keep()
        del self._backend

    def _leave_to_parent(self) -> None:
        """In a child: gloo's threads were not forked, and would be waited for."""
        self._keep()
        _channels.discard(self)

    def _keep(self) -> None:
        """Keep the backend beyond the end of the interpreter."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._backend))

    def gather_ints(self, vector: NDArray[np.int64]) -> NDArray[np.int64]:
        """Gather an int64 vector from each worker."""
        return self._gather(torch.from_numpy(vector)).numpy()

    def gather_objects(self, value: Any) -> list[Any]:
        """Gather one picklable value from each worker, padded to the longest for the wire."""
        pickled = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        lengths = self._gather(torch.tensor([len(pickled)], device="cpu")).flatten().tolist()
        padded = torch.nn.functional.pad(pickled, (0, max(lengths) - len(pickled)))
        rows = self._gather(padded)
        return [
            pickle.loads(row[:length].numpy().tobytes())  # noqa: S301 - from our own workers
            for row, length in zip(rows, lengths, strict=True)
        ]

    def abandon(self) -> None:
        """Free a thread that waits for the others."""
        self._abandoned.set()

    def _gather(self, mine: torch.Tensor) -> torch.Tensor:
        """Gather vectors of one length: shape ``(workers, length)``.

        Waits in slices, so that the thread comes back to Python and can be freed; a slice that
        ends leaves the collective under way.
        """
        gathered = mine.new_empty((self._size, len(mine)))
        try:
            self._work = work = self._backend.allgather(
                [list(gathered.unbind())], [mine], _without_limit()
            )
            while not self._has_ended(work):
                if self._abandoned.is_set():
                    msg = "the wait for the other workers was given up"
                    raise ChannelBrokenError(msg)
        except (RuntimeError, ValueError) as error:  # gloo raises these when a peer is gone
            raise ChannelBrokenError(str(error)) from error
        return gathered

    @staticmethod
    def _has_ended(work: dist.Work) -> bool:
        try:
            return work.wait(_SLICE)
        except RuntimeError:
            # Out of time, unless it has ended by now: then well, or with an error of its own.
            return work.is_completed() and work.wait()


def _without_limit() -> AllgatherOptions:
    options = AllgatherOptions()
    options.timeout = _FOREVER
    return options


_channels: weakref.WeakSet[GlooChannel] = weakref.WeakSet()
_SETTLE_SECONDS = 0.1


def _close_all() -> None:
    """Close all channels, and give the gloo groups of others a moment.

    gloo's own threads drop their last work after we have seen it done, and need the interpreter
    for that: if it is being finalized by then, they abort the process. Closing joins those of our
    channels; the user's group, in which we reduce, may well outlive the script.
    """
    for channel in list(_channels):
        channel.close()
    time.sleep(_SETTLE_SECONDS)
