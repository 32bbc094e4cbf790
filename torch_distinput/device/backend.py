"""What prefetching asks of a device: one operation for each copy, and one for each wait.

:class:`AcceleratorBackend` says it in torch's device-neutral stream API, :class:`BlockingBackend`
does without streams, :class:`CpuBackend` has nothing to wait for, and the test kit's
``TracingBackend`` proves that no wait is missing. What has to wait for what is not decided here but
in ``staging``, which runs over any of them.
"""

# ruff: noqa: B027 - that nothing waits is what a direct backend has to say

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

TPU = "tpu"
"""What torch_tpu calls its devices."""
_WITHOUT_STREAMS = ("cpu", TPU, "mps")

HostMemory = Callable[[int], torch.Tensor]
"""Makes so many bytes of host memory, not initialized."""


class Backend(Protocol):
    """The operations whose order makes a prefetcher correct.

    Three parties share memory: the host thread that calls, the *side stream* on which all copies
    run, and the *consumer*: whatever stream is current where a step is handed over.

    Attributes:
        copies_at_once: whether a copy is over when ``copy`` returns. Then the source may be written
            over or freed at once: there is nothing to stage it in, and nothing to keep.
    """

    copies_at_once: bool

    def mark_caller(self) -> Any:
        """A marker behind what the calling thread has started on its current stream."""

    def enter_thread(self, marker: Any) -> None:
        """Prepare the calling thread to start copies: its current stream waits for a marker."""

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is on the device already."""

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether the device can read a tensor of the host while the host goes on."""

    def host_buffer(self, num_bytes: int) -> torch.Tensor:
        """Pinned bytes."""

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """A pinned copy of what is no plain array: jagged and sparse tensors."""

    def write(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy on the host, before returning."""

    def copy(self, source: torch.Tensor) -> torch.Tensor:
        """Start a copy to fresh device memory on the side stream."""

    def duplicate(self, tensor: torch.Tensor) -> torch.Tensor:
        """Start a copy of what is on the device, on the caller's current stream."""

    def wait_for_producer(self) -> None:
        """The side stream waits for the caller's current stream."""

    def mark(self) -> Any:
        """A marker behind everything on the side stream."""

    def wait_on_host(self, marker: Any) -> None:
        """The calling thread waits for a marker."""

    def wait_on_consumer(self, marker: Any) -> None:
        """The caller's current stream waits for a marker; the caller does not."""

    def keep_for_consumer(self, tensor: torch.Tensor) -> None:
        """The memory of a tensor is reused after what the caller's current stream does by then."""


class DirectBackend(ABC):
    """A device whose copies are over when ``copy`` returns, so that nothing is ever under way.

    What follows from that is here; the parts for staging are never asked for.
    """

    copies_at_once = True

    @abstractmethod
    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is there already."""

    @abstractmethod
    def copy(self, source: torch.Tensor) -> torch.Tensor:
        """Copy, and return when the source has been read."""

    def duplicate(self, tensor: torch.Tensor) -> torch.Tensor:
        """A value of its own, without its graph."""
        return tensor.detach().clone()

    def mark_caller(self) -> None:
        """Nothing is under way."""

    def enter_thread(self, marker: None) -> None:
        """Nothing to prepare."""

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """The host does not go on during a copy."""
        del tensor
        return False

    def host_buffer(self, num_bytes: int) -> torch.Tensor:
        """Bytes."""
        return torch.empty(num_bytes, dtype=torch.uint8, device="cpu")

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy."""
        return tensor.clone()

    def write(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy."""
        target.copy_(source)

    def wait_for_producer(self) -> None:
        """Nothing is under way."""

    def mark(self) -> None:
        """Nothing is under way."""

    def wait_on_host(self, marker: None) -> None:
        """Nothing is under way."""

    def wait_on_consumer(self, marker: None) -> None:
        """Nothing is under way."""

    def keep_for_consumer(self, tensor: torch.Tensor) -> None:
        """References keep it, as do programs of the device that read it."""


class CpuBackend(DirectBackend):
    """A replica on the CPU beside others on accelerators: its batches are there already."""

    def holds(self, tensor: torch.Tensor) -> bool:
        """All of them, also one that the source left on an accelerator."""
        del tensor
        return True

    def copy(self, source: torch.Tensor) -> torch.Tensor:
        """Copy."""
        return source.clone()


class AcceleratorBackend:
    """One call of torch for each operation, on the side stream of a device."""

    copies_at_once = False

    def __init__(self, device: torch.device) -> None:
        """Take the side stream of a device, by an object of its own.

        Entered by ``with``, a stream notes in its object what was current before. Threads of two
        iterators that share one would give each other's back.
        """
        self._device = device
        shared = _side_stream(device)
        self._side = torch.Stream(
            stream_id=shared.stream_id,
            device_index=shared.device_index,
            device_type=shared.device_type,
        )

    def mark_caller(self) -> torch.Event:
        """On the stream on which it may have made what the source will read."""
        return torch.accelerator.current_stream(self._device).record_event()

    def enter_thread(self, marker: torch.Event) -> None:
        """Current devices are per thread, and so are current streams.

        The source may hold what the caller computes on a stream of its own, such as columns.
        """
        torch.accelerator.set_device_index(self._device)
        torch.accelerator.current_stream(self._device).wait_event(marker)

    def holds(self, tensor: torch.Tensor) -> bool:
        """By its device."""
        return tensor.device == self._device

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Ask the driver."""
        return tensor.is_pinned()

    def host_buffer(self, num_bytes: int) -> torch.Tensor:
        """Memory that the device reads by itself, while the host goes on."""
        return _pinned(num_bytes)

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """Let torch pin the parts; what is pinned already would come back itself, not a copy."""
        return (tensor.clone() if tensor.is_pinned() else tensor).pin_memory()

    def write(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy, without the graph of a source that requires gradients."""
        target.copy_(source.detach())

    def copy(self, source: torch.Tensor) -> torch.Tensor:
        """Overlaps the kernels of the consumer and the host.

        The memory is fresh, and of the side stream: whatever the allocator gave it to before was
        used on this same stream, or recorded by ``keep_for_consumer``. So no wait is needed here.
        """
        with self._side:
            return source.detach().to(self._device, non_blocking=True)

    def duplicate(self, tensor: torch.Tensor) -> torch.Tensor:
        """On the producer's stream: behind what computes it, before what writes over it."""
        return tensor.detach().clone()

    def wait_for_producer(self) -> None:
        """Whoever waits for the next marker waits for the producer too."""
        self._side.wait_stream(torch.accelerator.current_stream(self._device))

    def mark(self) -> torch.Event:
        """An event of its own for each step: nobody waits for a later one by mistake."""
        return self._side.record_event()

    def wait_on_host(self, marker: torch.Event) -> None:
        """Lets go of the GIL meanwhile."""
        marker.synchronize()

    def wait_on_consumer(self, marker: torch.Event) -> None:
        """On the device: kernels that the caller starts from now on come after the copies."""
        torch.accelerator.current_stream(self._device).wait_event(marker)

    def keep_for_consumer(self, tensor: torch.Tensor) -> None:
        """Whenever the user lets go of it, kernels that still read it keep its memory from reuse.

        So a user may keep any batch for as long as he likes, and nobody has to be told.
        """
        tensor.record_stream(torch.accelerator.current_stream(self._device))


class BlockingBackend(DirectBackend):
    """A device whose streams and events cannot be relied on: a TPU, or Apple's MPS.

    With torch_tpu they have names only. ``Event.wait`` and ``Stream.wait_event`` do nothing,
    ``Stream.query`` is not implemented, and what an event promises to wait for are copies *from*
    the device. So no event says when a copy *to* it has read its source. A ring of staging buffers
    would write the next batch into memory that the last one is still read from, and nobody would
    be told:

        host   stage step 4 | start its copy | wait for the event: at once | stage step 5
        TPU                            ....... reads the buffer: some of step 4, some of step 5

    MPS has no ``record_stream``: nothing would tell the allocator that a batch is still read.

    Two things can be relied on, and this needs no others. A copy that is not ``non_blocking``
    returns when the TPU has the bytes (torch_tpu waits for the future of the transfer), as torch
    promises of any device. And a program starts when the values that it reads are there, and memory
    is freed after the last program that reads it: XLA orders by data, not by streams, and MPS has
    one queue for all threads. So what is written to a tensor later is another value, also to its
    duplicate.

    The copies still overlap the training step: they wait in the prefetch thread, without the GIL.
    A process has one such device, which is the current one in each of its threads.
    """

    def __init__(self, device: torch.device) -> None:
        """Take the one of this process: ``tpu:0``, ``mps:0``."""
        self._device = device

    def holds(self, tensor: torch.Tensor) -> bool:
        """By its device."""
        return tensor.device == self._device

    def copy(self, source: torch.Tensor) -> torch.Tensor:
        """Copy, and return when the source has been read; without its graph."""
        return source.detach().to(self._device, non_blocking=False)


@functools.cache
def _side_stream(device: torch.device) -> torch.Stream:
    """The one stream of a device for copies, kept for the life of the process.

    Torch pools the device memory that is allocated under a stream with that stream: a new one each
    epoch would leave a pool of batches behind with each. Iterators that share it take turns, as
    their copies would on the bus.
    """
    return torch.Stream(device)


def has_streams(device: torch.device) -> bool:
    """Whether copies to it can overlap the host, in streams that the allocator knows of."""
    return device.type not in _WITHOUT_STREAMS


def _pinned(num_bytes: int) -> torch.Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)


def host_memory(devices: Sequence[torch.device]) -> HostMemory | None:
    """How to make host memory that these devices read without a staging copy.

    None where any memory will do: only devices whose copies overlap the host read pinned memory.
    """
    return _pinned if any(map(has_streams, devices)) else None


def backend_for(device: torch.device) -> Backend:
    """Choose by the kind of device."""
    if device.type == "cpu":
        return CpuBackend()
    return AcceleratorBackend(device) if has_streams(device) else BlockingBackend(device)
