"""The backend that proves, without a device, that no wait is missing; see ``simulated_device``."""

from __future__ import annotations

import torch

from torch_distinput.testing.simulated_device import Machine, Marker


class TracingBackend:
    """A device of a :class:`Machine`, with the streams ``side`` and ``main``.

    Attributes:
        machine: what it runs on.
        current: the current stream of each thread; ``main`` where none is named.
    """

    copies_at_once = False

    def __init__(self, machine: Machine, device: str) -> None:
        """Name the device, as in ``cuda:0``."""
        self.machine = machine
        self.current: dict[str, str] = {}
        self._device = device
        self._side = f"{device}/side"

    @property
    def stream(self) -> str:
        """The calling thread's current stream."""
        return f"{self._device}/{self.current.get(self.machine.party, 'main')}"

    def mark_caller(self) -> Marker:
        """By an event."""
        return self.machine.mark(self.stream)

    def enter_thread(self, marker: Marker) -> None:
        """Threads are parties by themselves; the stream waits."""
        self.machine.let_stream_wait(self.stream, marker)

    def holds(self, tensor: torch.Tensor) -> bool:
        """By who allocated it."""
        return self.machine.is_on(tensor, self._device)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """By who allocated it."""
        return self.machine.is_pinned(tensor)

    def host_buffer(self, num_bytes: int) -> torch.Tensor:
        """Pinned bytes."""
        return self.machine.host_buffer(num_bytes)

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """The machine has plain arrays only."""
        raise NotImplementedError

    def write(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """By the calling thread."""
        self.machine.write(target, source)

    def copy(self, source: torch.Tensor) -> torch.Tensor:
        """On the side stream."""
        return self.machine.copy(source, self._side)

    def duplicate(self, tensor: torch.Tensor) -> torch.Tensor:
        """On the calling thread's current stream."""
        return self.machine.copy(tensor, self.stream)

    def wait_for_producer(self) -> None:
        """By an event."""
        self.machine.let_stream_wait(self._side, self.machine.mark(self.stream))

    def mark(self) -> Marker:
        """By an event."""
        return self.machine.mark(self._side)

    def wait_on_host(self, marker: Marker) -> None:
        """By the calling thread."""
        self.machine.let_host_wait(marker)

    def wait_on_consumer(self, marker: Marker) -> None:
        """By the calling thread's current stream."""
        self.machine.let_stream_wait(self.stream, marker)

    def keep_for_consumer(self, tensor: torch.Tensor) -> None:
        """For the calling thread's current stream."""
        self.machine.record_stream(tensor, self.stream)
