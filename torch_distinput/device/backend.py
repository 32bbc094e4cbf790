"""What the prefetcher asks of a device: copies on a side stream, and the waits between streams.

:class:`AcceleratorBackend` speaks torch's device-neutral stream API; :class:`CpuBackend` has
nothing to copy and nothing to wait for.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch


class Backend(Protocol):
    """The operations whose order makes a prefetcher correct."""

    def start(self, tensor: torch.Tensor) -> torch.Tensor:
        """Start bringing a tensor to the device; the result may not be read yet."""

    def mark(self) -> Any:
        """A marker behind all copies started so far."""

    def hand_over(self, tensors: list[torch.Tensor], marker: Any) -> None:
        """Make the consumer's current stream wait for a marker, and keep memory for it."""

    def enter_thread(self) -> None:
        """Prepare the calling thread to start copies."""


class CpuBackend:
    """Batches stay where they are."""

    def start(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor."""
        return tensor

    def mark(self) -> None:
        """Nothing is under way."""

    def hand_over(self, tensors: list[torch.Tensor], marker: None) -> None:
        """Nothing to wait for."""

    def enter_thread(self) -> None:
        """Nothing to prepare."""


class AcceleratorBackend:
    """Copies on one side stream, which lives as long as the backend."""

    def __init__(self, device: torch.device) -> None:
        """Make the side stream of a device."""
        self._device = device
        self._stream = torch.Stream(device)

    def start(self, tensor: torch.Tensor) -> torch.Tensor:
        """Pin a host tensor and copy it on the side stream; one that is there already stays.

        The copy overlaps the consumer's kernels. torch's pinned-memory allocator records the copy
        and does not reuse the pinned block before it is done, so the host tensor need not be kept.
        The device memory is fresh and was last used on this same stream or recorded below, so the
        allocator itself orders its reuse.

        What is on the device already may still be computed on this thread's current stream: the
        side stream waits for that, and with it whoever waits for the next marker.
        """
        if tensor.device == self._device:
            self._stream.wait_stream(torch.accelerator.current_stream(self._device))
            return tensor
        staged = _pinned(tensor) if tensor.device.type == "cpu" else tensor
        with self._stream:
            return staged.to(self._device, non_blocking=True)

    def mark(self) -> torch.Event:
        """Record an event behind the copies of one batch."""
        return self._stream.record_event()

    def hand_over(self, tensors: list[torch.Tensor], marker: torch.Event) -> None:
        """Let the consumer's current stream wait, on the device, for the copies.

        The host does not wait. ``record_stream`` keeps the memory from being reused by the side
        stream while kernels that the consumer starts from now on still read it.
        """
        current = torch.accelerator.current_stream(self._device)
        current.wait_event(marker)
        for tensor in tensors:
            tensor.record_stream(current)

    def enter_thread(self) -> None:
        """Current devices are per thread."""
        torch.accelerator.set_device_index(self._device)


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    """A pinned copy, dense and in the same memory format.

    A copy also of what is pinned: the source may write over its buffer while it is copied.
    """
    if tensor.is_nested:  # torch pins its parts
        return tensor.pin_memory()
    return torch.empty_like(tensor, pin_memory=True).copy_(tensor)


def backend_for(device: torch.device) -> Backend:
    """Choose by the kind of device."""
    return CpuBackend() if device.type == "cpu" else AcceleratorBackend(device)
