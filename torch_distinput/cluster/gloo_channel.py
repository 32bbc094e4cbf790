"""A gloo backend of our own, beside the user's groups: its collectives run in background threads.

So the user's collectives, in the main thread, never meet ours, and neither waits for the other's.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import time
import weakref
from datetime import timedelta
from typing import Any, final

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch._C._distributed_c10d import AllgatherOptions, BroadcastOptions
from torch.distributed.distributed_c10d import ProcessGroupGloo, Store

from torch_distinput.communicator import ChannelBrokenError
from torch_distinput.threads import call_in_child, new_event

_FOREVER = timedelta(days=7)
"""Channels wait without a limit of their own: who waits in ``next`` keeps the time, and a vote that
waits while nobody needs it (a long evaluation, say) is no failure."""

_SLICE = timedelta(seconds=0.3)
_MOST_CONNECTED = 3
"""Ranks that are all connected at once. Of more of them each connects to those with whom it talks,
when it first does: two neighbours for votes, whatever the number of ranks."""


@final
class GlooChannel:
    """A gloo backend of one dataset, used by one thread at a time.

    Not a group of ``dist.new_group``, which names a group by how many of them a rank knows (they
    may differ, and change as datasets are collected), and has one limit for both kinds of waiting.
    """

    def __init__(self, store: Store, rank: int, size: int, *, timeout: float) -> None:
        """Connect ranks, each time within ``timeout`` seconds."""
        self._backend: Any = None  # torch's stubs lack the collectives of a backend
        try:
            self._backend = _make_backend(store, rank, size, timedelta(seconds=timeout))
        except RuntimeError as error:
            raise ChannelBrokenError(str(error)) from error
        self._size = size
        self._works: list[dist.Work] = []  # that may be under way
        self._abandoned = new_event()
        _channels.add(self)
        call_in_child(self, GlooChannel._leave_to_parent)

    def close(self) -> None:
        """Join gloo's threads, as it happens to a channel that nobody holds any more."""
        if any(not work.is_completed() for work in self._works):
            # A collective that was given up cannot be stopped, and might be waited for forever.
            self._keep()
        self._works.clear()
        self._backend = None

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

    def start_broadcast(self, content: torch.Tensor, *, root: int) -> Transfer:
        """Send a vector from one worker to the others, of the same size on all of them.

        It is on its way when this returns; a transfer that nobody waits for any more stays so.
        """
        options = BroadcastOptions()
        options.rootRank, options.rootTensor, options.timeout = root, 0, _FOREVER
        try:
            return Transfer(self._note(self._backend.broadcast([content], options)))
        except (RuntimeError, ValueError) as error:
            raise ChannelBrokenError(str(error)) from error

    def abandon(self) -> None:
        """Free a thread that waits for the others."""
        self._abandoned.set()

    def _note(self, work: dist.Work) -> dist.Work:
        self._works = [other for other in self._works if not other.is_completed()] + [work]
        return work

    def _gather(self, mine: torch.Tensor) -> torch.Tensor:
        """Gather vectors of one length: shape ``(workers, length)``.

        Waits in slices, so that the thread comes back to Python and can be freed; a slice that
        ends leaves the collective under way.
        """
        gathered = mine.new_empty((self._size, len(mine)))
        try:
            pieces = [list(gathered.unbind())]
            work = self._note(self._backend.allgather(pieces, [mine], _without_limit()))
            while not _has_ended(work, _SLICE):
                if self._abandoned.is_set():
                    msg = "the wait for the other workers was given up"
                    raise ChannelBrokenError(msg)
        except (RuntimeError, ValueError) as error:  # gloo raises these when a peer is gone
            raise ChannelBrokenError(str(error)) from error
        return gathered


@final
class Transfer:
    """A broadcast under way; torch keeps what is sent until it has ended."""

    def __init__(self, work: dist.Work) -> None:
        """Take what torch gives for it."""
        self._work = work

    def wait(self, seconds: float) -> bool:
        """Whether it ends within some seconds.

        Raises:
            ChannelBrokenError: a peer is gone.
        """
        try:
            return _has_ended(self._work, timedelta(seconds=seconds))
        except (RuntimeError, ValueError) as error:  # gloo raises these when a peer is gone
            raise ChannelBrokenError(str(error)) from error


def _has_ended(work: dist.Work, limit: timedelta) -> bool:
    try:
        return work.wait(limit)
    except RuntimeError:
        # Out of time, unless it has ended by now: then well, or with an error of its own.
        return work.is_completed() and work.wait()


def _make_backend(store: Store, rank: int, size: int, timeout: timedelta) -> Any:
    if size <= _MOST_CONNECTED:
        return ProcessGroupGloo(store, rank, size, timeout)
    gloo: Any = ProcessGroupGloo  # torch's stubs lack its options
    # As torch makes them of the environment, but for lazy_init.
    names = [name for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
    options = gloo._Options()  # noqa: SLF001 - there is no other way
    options._devices = [gloo.create_device(interface=name, lazy_init=True) for name in names] or [  # noqa: SLF001
        gloo.create_default_device(lazy_init=True)
    ]
    options._threads = 2 * len(options._devices)  # noqa: SLF001
    options._timeout = timeout  # noqa: SLF001
    return gloo(store, rank, size, options)


def _without_limit() -> AllgatherOptions:
    options = AllgatherOptions()
    options.timeout = _FOREVER
    return options


_channels: weakref.WeakSet[GlooChannel] = weakref.WeakSet()
_SETTLE_SECONDS = 0.1


def close_channels() -> None:
    """Close all channels, and give the gloo groups of others a moment.

    gloo's own threads drop their last work after we have seen it done, and need the interpreter
    for that: if it is being finalized by then, they abort the process. Closing joins those of our
    channels; the user's group, in which we reduce, may well outlive the script.
    """
    for channel in list(_channels):
        channel.close()
    time.sleep(_SETTLE_SECONDS)
