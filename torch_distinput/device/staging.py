"""How the leaves of a replica get to its device: what waits for what, and what is kept for whom.

Host memory is written by the host and read by the side stream, so it is kept and left alone until
the copies from it are done. Device memory is written by the side stream and read by the consumer,
who waits for that on the device; it is fresh for each step, so that users may keep their batches.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from torch_distinput.device.backend import Backend
from torch_distinput.packed_strings import PackedStrings, strings_over

_Place = int | tuple[Any, int]
"""The number of a leaf, and of a tensor in it where it consists of several."""


class StagingSlot:
    """The host memory of one step under way: buffers to stage leaves in, and leaves read in place.

    It serves one step after another, and opens for the next when the copies of the last are done.
    """

    def __init__(self, backend: Backend) -> None:
        """Hold nothing; buffers come with the first leaves, and grow with them."""
        self._backend = backend
        self._buffers: dict[_Place, torch.Tensor] = {}
        self._kept: list[torch.Tensor] = []
        self._copied: Any = None

    def open(self) -> None:
        """Let the host wait for the copies of the slot's last step before it writes again.

        They overlap the steps in the other slots. Until here ``_kept`` refers to what they read: a
        ring whose buffers are free when nothing refers to them does not write into those.
        """
        if self._copied is not None:
            self._backend.wait_on_host(self._copied)
        self._copied = None
        self._kept.clear()

    def keep(self, source: torch.Tensor) -> torch.Tensor:
        """Refer to what is read in place, until the slot opens again."""
        self._kept.append(source)
        return source

    def stage(self, position: _Place, source: torch.Tensor) -> torch.Tensor:
        """Copy a leaf into the slot's buffer for its position: dense, in the same memory format."""
        num_bytes = source.numel() * source.element_size()
        buffer = self._buffers.get(position)
        if buffer is None or buffer.numel() < num_bytes:
            buffer = self._buffers[position] = self._backend.host_buffer(num_bytes)
        flat = buffer[:num_bytes].view(source.dtype)
        staged = flat.as_strided(source.shape, _dense_strides(source))
        self._backend.write(staged, source)
        return staged

    def close(self) -> Any:
        """Put a marker behind the copies of the step."""
        self._copied = self._backend.mark()
        return self._copied

    def drop(self) -> None:
        """Let go of all memory; nothing is under way."""
        self._buffers.clear()
        self._kept.clear()
        self._copied = None


class StagingRing:
    """The way of one replica to its device: a ring of slots, used in turn."""

    def __init__(self, backend: Backend, *, num_slots: int) -> None:
        """Make the ring."""
        self._backend = backend
        self._slots = deque(StagingSlot(backend) for _ in range(num_slots))

    def open(self) -> None:
        """Make the next slot free, before the step is pulled: the source may get a buffer back."""
        self._slots.rotate(-1)
        self._slots[0].open()

    def start(self, leaves: Sequence[Any], *, owned: bool) -> tuple[list[Any], Any]:
        """Start the copies of a step; also the marker behind them."""
        moved = [self._start(leaf, place, owned) for place, leaf in enumerate(leaves)]
        if any(self._is_there(leaf) for leaf in leaves):
            # What is on the device may still be computed there. The marker comes behind it.
            self._backend.wait_for_producer()
        return moved, self._slots[0].close()

    def hand_over(self, leaves: Sequence[Any], marker: Any) -> None:
        """Make leaves safe to use on the consumer's current stream."""
        self._backend.wait_on_consumer(marker)
        for leaf in leaves:
            for tensor in _tensors_of(leaf):
                self._backend.keep_for_consumer(tensor)

    def drain(self) -> None:
        """Wait for all copies, also of a step that failed half-way, then let go of the memory."""
        with contextlib.suppress(RuntimeError):  # of a device that failed; raised at next()
            self._backend.wait_on_host(self._backend.mark())
        for slot in self._slots:
            slot.drop()

    def _is_there(self, leaf: Any) -> bool:
        return any(map(self._backend.holds, _tensors_of(leaf)))

    def _start(self, leaf: Any, place: _Place, owned: bool) -> Any:
        """Start the copy of a leaf; other leaves than tensors stay on the host."""
        backend, slot = self._backend, self._slots[0]
        if isinstance(leaf, PackedStrings):  # tensor by tensor; from the host its own rows alone
            own = leaf if self._is_there(leaf) else leaf.narrow()
            pairs = enumerate(own.tensors())
            moved = [self._start(tensor, (place, number), owned) for number, tensor in pairs]
            return strings_over(moved, leaf.dtype)
        if not isinstance(leaf, torch.Tensor):
            return leaf.copy() if isinstance(leaf, np.ndarray) and not owned else leaf
        if backend.holds(leaf):
            return leaf if owned else backend.duplicate(leaf)
        if leaf.device.type != "cpu" or not leaf.numel():
            return backend.copy(leaf)  # torch orders devices among each other; no rows, no bytes
        if backend.copies_at_once:
            return backend.copy(leaf)
        if leaf.layout is not torch.strided:
            return backend.copy(slot.keep(backend.pin(leaf)))
        if owned and backend.is_pinned(leaf) and leaf.stride() == _dense_strides(leaf):
            return backend.copy(slot.keep(leaf))
        return backend.copy(slot.stage(place, leaf))


def _tensors_of(leaf: Any) -> Sequence[torch.Tensor]:
    if isinstance(leaf, PackedStrings):
        return leaf.tensors()
    return (leaf,) if isinstance(leaf, torch.Tensor) else ()


def _dense_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """The strides of a copy without gaps and overlaps that keeps the memory format."""
    if tensor.is_contiguous():
        return tensor.stride()
    return torch.empty_like(tensor, device="meta").stride()
