"""Per-replica host batches in, per-replica device batches out, copied ahead of use.

With an accelerator, one thread pulls host steps and starts their copies, up to ``buffer_size``
steps beyond the one in use; the host work and the copies overlap the training step. On the CPU, or
with ``buffer_size=0``, everything happens at the call, in the caller's thread.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_distinput.background import start_thread
from torch_distinput.data.structure import Batch, flatten, unflatten
from torch_distinput.device.backend import Backend, backend_for


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaBatches:
    """One step: a batch for each local replica, and whatever belongs to it."""

    batches: tuple[Batch, ...]
    note: Any = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Copied:
    """A step whose copies have been started."""

    step: ReplicaBatches
    tensors: tuple[list[torch.Tensor], ...]
    markers: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Failed:
    """What the thread could not do; raised where the step would have come."""

    error: BaseException


_END = object()
_PATIENCE_SECONDS = 0.1


class Prefetcher:
    """Iterates steps on the devices; ``close`` ends the thread and drops what it had ready."""

    def __init__(
        self,
        steps: Iterator[ReplicaBatches],
        devices: Sequence[torch.device],
        *,
        buffer_size: int,
    ) -> None:
        """Start the thread if there is something to copy ahead."""
        made: dict[torch.device, Backend] = {device: backend_for(device) for device in devices}
        self._backends = tuple(made[device] for device in devices)
        copied = (_copied(step, self._backends) for step in steps)
        self._stop = threading.Event()
        self._source: Iterator[_Copied] = copied
        if buffer_size and any(device.type != "cpu" for device in devices):
            self._source = _ahead(copied, self._backends, buffer_size, self._stop)

    def __iter__(self) -> Iterator[ReplicaBatches]:
        """Return itself."""
        return self

    def __next__(self) -> ReplicaBatches:
        """Return the next step, safe to use on the caller's current streams."""
        copied = next(self._source)
        parts = zip(self._backends, copied.tensors, copied.markers, strict=True)
        for backend, tensors, marker in parts:
            backend.hand_over(tensors, marker)
        return copied.step

    def close(self) -> None:
        """End the thread; it leaves at its next hand-over."""
        self._stop.set()


def _copied(step: ReplicaBatches, backends: Sequence[Backend]) -> _Copied:
    """Start the copies of a step: all tensors with rows; other leaves pass through."""
    batches, tensors, markers = [], [], []
    for batch, backend in zip(step.batches, backends, strict=True):
        leaves, structure = flatten(batch)
        moved = [_start(leaf, backend) for leaf in leaves]
        batches.append(unflatten(structure, moved))
        tensors.append([leaf for leaf in moved if isinstance(leaf, torch.Tensor)])
        markers.append(backend.mark())
    moved_step = ReplicaBatches(batches=tuple(batches), note=step.note)
    return _Copied(step=moved_step, tensors=tuple(tensors), markers=tuple(markers))


def _start(leaf: Any, backend: Backend) -> Any:
    return backend.start(leaf) if isinstance(leaf, torch.Tensor) else leaf


def _ahead(
    copied: Iterator[_Copied],
    backends: Sequence[Backend],
    buffer_size: int,
    stop: threading.Event,
) -> Iterator[_Copied]:
    """Run an iterator in a thread that stays ``buffer_size`` items ahead."""
    # One step is always in the thread's hands, so the queue holds one fewer than are ahead.
    handed: queue.Queue[Any] = queue.Queue(maxsize=max(1, buffer_size - 1))
    start_thread(_fill, handed, copied, backends, stop, name="prefetch", stop=stop.set)
    return _emptied(handed, stop)


def _emptied(handed: queue.Queue[Any], stop: threading.Event) -> Iterator[_Copied]:
    while not stop.is_set():
        item = handed.get()
        if item is _END:
            return
        if isinstance(item, _Failed):
            raise item.error
        yield item


def _fill(
    handed: queue.Queue[Any],
    copied: Iterator[_Copied],
    backends: Sequence[Backend],
    stop: threading.Event,
) -> None:
    """The thread: it holds the queue, never the prefetcher, so that that can be collected."""
    for backend in backends:
        backend.enter_thread()
    last: Any = _END
    try:
        for item in copied:
            if not _put(handed, item, stop):
                return
    except BaseException as error:  # noqa: BLE001 - it is raised again where next() is called
        last = _Failed(error)
    _put(handed, last, stop)


def _put(handed: queue.Queue[Any], item: Any, stop: threading.Event) -> bool:
    """Hand an item over, unless nobody will take it."""
    while not stop.is_set():
        try:
            handed.put(item, timeout=_PATIENCE_SECONDS)
        except queue.Full:
            continue
        return True
    return False
