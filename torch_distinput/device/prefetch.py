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

from torch_distinput.background import Thread, start_thread
from torch_distinput.device.backend import Backend, backend_for


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaLeaves:
    """One step: the leaves of a batch for each local replica, and whatever belongs to it."""

    leaves: tuple[Sequence[Any], ...]
    note: Any = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Copied:
    """A step whose copies have been started."""

    step: ReplicaLeaves
    tensors: tuple[list[torch.Tensor], ...]
    markers: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Failed:
    """What the thread could not do; raised where the step would have come."""

    error: BaseException


_END = object()
_POLL_SECONDS = 0.1
_LEAVE_SECONDS = 5.0


class Prefetcher:
    """Iterates steps on the devices; ``close`` ends the thread and drops what it had ready."""

    def __init__(
        self,
        steps: Iterator[ReplicaLeaves],
        devices: Sequence[torch.device],
        *,
        buffer_size: int,
    ) -> None:
        """Start nothing yet: the thread, if there is something to copy ahead, comes with a step."""
        made: dict[torch.device, Backend] = {device: backend_for(device) for device in devices}
        self._backends = tuple(made[device] for device in devices)
        self._host = steps if all(device.type == "cpu" for device in devices) else None
        self._steps = (_copied(step, self._backends) for step in steps)
        ahead = buffer_size if any(device.type != "cpu" for device in devices) else 0
        self._ahead = _Ahead(ahead) if ahead else None
        self._thread: Thread | None = None

    def __iter__(self) -> Iterator[ReplicaLeaves]:
        """Return itself."""
        return self

    def __next__(self) -> ReplicaLeaves:
        """Return the next step, safe to use on the caller's current streams."""
        if self._host is not None:
            return next(self._host)
        copied = next(self._steps) if self._ahead is None else self._taken(self._ahead)
        parts = zip(self._backends, copied.tensors, copied.markers, strict=True)
        for backend, tensors, marker in parts:
            backend.hand_over(tensors, marker)
        return copied.step

    def stop(self) -> None:
        """Tell the thread to leave after the step that it is at."""
        if self._ahead is not None:
            self._ahead.stopped.set()

    def join(self) -> None:
        """Wait for the thread, so that nobody else is in the source when it is started again."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_LEAVE_SECONDS)

    def _taken(self, ahead: _Ahead) -> _Copied:
        if self._thread is None:
            self._thread = start_thread(
                _fill, ahead, self._steps, self._backends, name="prefetch", stop=ahead.stopped.set
            )
        return ahead.take()


class _Ahead:
    """Where the thread leaves steps for the consumer: at most ``size`` pulled and not yet taken."""

    def __init__(self, size: int) -> None:
        self.stopped = threading.Event()
        self._free = threading.Semaphore(size)
        self._left: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def wait_for_room(self) -> bool:
        """Called by the thread before it pulls a step; False when it has to leave."""
        while not self.stopped.is_set():
            if self._free.acquire(timeout=_POLL_SECONDS):
                return True
        return False

    def leave(self, item: Any) -> None:
        """Called by the thread."""
        self._left.put(item)

    def take(self) -> _Copied:
        """Called by the consumer; raises what the thread met, where the step would have come."""
        while not self.stopped.is_set():
            try:
                item = self._left.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                continue
            self._free.release()
            if isinstance(item, _Failed):
                raise item.error
            if item is _END:
                break
            return item  # type: ignore[no-any-return]
        raise StopIteration


def _copied(step: ReplicaLeaves, backends: Sequence[Backend]) -> _Copied:
    """Start the copies of a step: all tensors, also without rows; other leaves pass through."""
    moved, tensors, markers = [], [], []
    for leaves, backend in zip(step.leaves, backends, strict=True):
        moved.append([_start(leaf, backend) for leaf in leaves])
        tensors.append([leaf for leaf in moved[-1] if isinstance(leaf, torch.Tensor)])
        markers.append(backend.mark())
    moved_step = ReplicaLeaves(leaves=tuple(moved), note=step.note)
    return _Copied(step=moved_step, tensors=tuple(tensors), markers=tuple(markers))


def _start(leaf: Any, backend: Backend) -> Any:
    return backend.start(leaf) if isinstance(leaf, torch.Tensor) else leaf


def _fill(ahead: _Ahead, steps: Iterator[_Copied], backends: Sequence[Backend]) -> None:
    """The thread: it holds the places, never the prefetcher, so that that can be collected."""
    for backend in backends:
        backend.enter_thread()
    while ahead.wait_for_room():
        try:
            item: Any = next(steps, _END)
        except BaseException as error:  # noqa: BLE001 - it is raised again where next() is called
            item = _Failed(error)
        ahead.leave(item)
        if item is _END or isinstance(item, _Failed):
            return
