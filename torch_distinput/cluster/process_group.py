"""The Communicator over torch.distributed: the user's group for tensors, its store for words.

Collectives on the user's group run in the caller's thread only. Channels have connections of their
own, so background threads may use them while the main thread trains.
"""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from torch_distinput.cluster.channels.gloo_backend import close_backends
from torch_distinput.cluster.channels.vote_channels import close_connections
from torch_distinput.cluster.store_meeting import StoreMeeting
from torch_distinput.communicator import Board, Channel, Gone, Merge, check_process, nobody
from torch_distinput.threads import release_at_exit


class ProcessGroupCommunicator:
    """The workers of a process group."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """Take a group of torch.distributed; None is the default group."""
        default = dist.group.WORLD
        assert default is not None, "find_cluster comes after init_process_group"
        self._process = os.getpid()
        self._joined: dist.ProcessGroup = group or default
        release_at_exit(close_backends)
        release_at_exit(close_connections)
        self._meeting = StoreMeeting(dist.get_process_group_ranks(self._joined))
        self.ranks = self._meeting.ranks
        self.rank = self._meeting.rank
        self.size = self._meeting.size

    @property
    def _group(self) -> dist.ProcessGroup:
        """The group; in a forked child an error, as all that uses the parent's connections."""
        check_process(self._process)
        return self._joined

    def join(
        self, topic: str, text: str, merge: Merge, *, timeout: float, gone: Gone = nobody
    ) -> str:
        """Show a text under a topic and return what ``merge`` makes of all workers' texts."""
        return self._meeting.join(topic, text, merge, timeout=timeout, gone=gone)

    def show_first(self, topic: str, text: str, *, timeout: float) -> str:
        """Show a text under a topic unless another worker has; return the one that is shown."""
        return self._meeting.show_first(topic, text, timeout=timeout)

    def open_channel(self, *, timeout: float, gone: Gone = nobody) -> Channel:
        """Connect the same workers, when all of them are there."""
        return self._meeting.open_channel(timeout=timeout, gone=gone)

    def open_board(self) -> Board:
        """The board in the store."""
        return self._meeting.open_board()

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
        """Move a tensor to a device that the group has a backend for.

        Tensors of a TPU go over the host: their sizes may be new in each call, and a TPU would
        compile a program for each.
        """
        kinds = {device.type for device in self._group._device_types}  # noqa: SLF001
        if tensor.device.type == "tpu" and "cpu" in kinds:
            kinds = {"cpu"}
        if tensor.device.type in kinds:
            return tensor.detach().contiguous()
        return tensor.detach().to(min(kinds)).contiguous()
