"""Broadcasts of one dataset, from one rank to its partners."""

from __future__ import annotations

from datetime import timedelta
from typing import final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import BroadcastOptions
from torch.distributed.distributed_c10d import Store

from torch_distinput.cluster.channels.gloo_backend import FOREVER, GlooBackend
from torch_distinput.communicator import ChannelBrokenError


@final
class BroadcastChannel:
    """Connections of one dataset, used by one thread at a time.

    gloo matches broadcasts by the order in which they are called, which differs between datasets.
    """

    def __init__(self, store: Store, rank: int, size: int, *, timeout: float) -> None:
        """Connect ranks when they first talk, each time within ``timeout`` seconds."""
        self._backend = GlooBackend(store, rank, size, timeout=timeout)

    def close(self) -> None:
        """Join gloo's threads, as it happens to a channel that nobody holds any more."""
        self._backend.close()

    def start_broadcast(self, content: torch.Tensor) -> Broadcast:
        """Send a vector from worker 0 to the others, of the same size on all of them.

        It is on its way when this returns; a broadcast that nobody waits for any more stays so.
        """
        options = BroadcastOptions()
        options.rootRank, options.rootTensor, options.timeout = 0, 0, FOREVER
        try:
            work = self._backend.calls.broadcast([content], options)
        except (RuntimeError, ValueError) as error:
            raise ChannelBrokenError(str(error)) from error
        return Broadcast(self._backend.note(work))


@final
class Broadcast:
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
