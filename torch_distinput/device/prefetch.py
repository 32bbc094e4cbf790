"""Host steps in, device steps out, copied ahead of use.

With an accelerator, one thread pulls host steps and starts their copies, up to ``buffer_size``
steps beyond the one in use; the host work and the copies overlap the training step. With
``buffer_size=0`` everything happens at the call, in the caller's thread. On the CPU there is
nothing to do, and nothing is done.

    thread      does                                        waits for
    prefetch    pulls a step, starts its copies on the      room: a token for each step that may
                side stream, puts it into ``_left``         be ready (``_room``)
    consumer    takes a step from ``_left``, puts a token   a step (``_left``); on the device, its
                into ``_room``, hands the step over         current stream for the copies
    any         ``stop`` puts a token and the end           nothing

Two queues and no lock; a step belongs to one thread at a time, and the queue hands it on.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from torch_distinput.device.backend import Backend, backend_for
from torch_distinput.device.staging import StagingRing
from torch_distinput.threads import Thread, start_thread


class ReplicaLeaves(NamedTuple):
    """One step: the leaves of a batch for each local replica, and whatever belongs to it.

    Attributes:
        leaves: for each local replica its leaves. Tensors are moved, also jagged ones; arrays,
            lists and None pass through.
        note: passes through.
        owned: the host memory of the leaves is never written again while anybody refers to it: it
            is fresh, or of a ring whose buffers are free when nothing refers to them. False: the
            source may write over it as soon as the next step is pulled.
        markers: for each replica the marker behind its copies, once they have been started.
    """

    leaves: tuple[Sequence[Any], ...]
    note: Any = None
    owned: bool = False
    markers: tuple[Any, ...] = ()


class Prefetcher:
    """Iterates steps on the devices; ``stop`` and ``join`` end the thread and drop what is ready.

    Each is safe to use on the streams that are current where ``next`` is called.
    """

    def __init__(
        self,
        steps: Iterator[ReplicaLeaves],
        devices: Sequence[torch.device],
        *,
        buffer_size: int,
    ) -> None:
        """Start nothing yet: the thread, if there is something to copy ahead, comes with a step."""
        self._steps = steps
        self._copies: _Copies | None = None
        self._ahead: _Ahead | None = None
        self._thread: Thread | None = None
        if any(device.type != "cpu" for device in devices):
            self._copies = _Copies(steps, devices, num_slots=buffer_size + 1)
            self._ahead = _Ahead(buffer_size) if buffer_size else None

    def __iter__(self) -> Iterator[ReplicaLeaves]:
        """Return itself."""
        return self

    def __next__(self) -> ReplicaLeaves:
        """Return the next step, safe to use on the caller's current streams."""
        if self._copies is None:
            return next(self._steps)
        started = self._copies.start() if self._ahead is None else self._take(self._ahead)
        return self._copies.hand_over(started)

    def stop(self) -> None:
        """Tell the thread to leave after the step that it is at."""
        if self._ahead is not None:
            self._ahead.stop()

    def join(self) -> None:
        """Wait for the thread, so that nobody else is in the source when it is started again.

        Then no copy is under way, and neither host nor device memory is left.
        """
        if self._thread is None:
            if self._copies is not None:
                self._copies.drain()
        elif self._thread is not threading.current_thread():
            self._thread.join(_LEAVE_SECONDS)
        if self._ahead is not None:
            self._ahead.clear()

    def _take(self, ahead: _Ahead) -> ReplicaLeaves:
        if self._thread is None:
            assert self._copies is not None, "or there is nothing to copy ahead"
            markers = self._copies.mark_caller()
            self._thread = start_thread(
                _fill, ahead, self._copies, markers, name="prefetch", stop=ahead.stop
            )
        return ahead.take()


@dataclass(frozen=True, slots=True)
class _Failed:
    """What the thread could not do; raised where the step would have come."""

    error: BaseException


_END = object()
_LEAVE_SECONDS = 5.0


class _Copies:
    """The two ends of the copies: ``start`` pulls a step, ``hand_over`` gives it to the consumer.

    They may be in different threads. Replicas on one device share its backend and so its stream;
    each has its own ring, with a slot for each step that may be ready and one for the step whose
    copies the consumer is waiting for.
    """

    def __init__(
        self, steps: Iterator[ReplicaLeaves], devices: Sequence[torch.device], *, num_slots: int
    ) -> None:
        backends: dict[torch.device, Backend] = {device: backend_for(device) for device in devices}
        self._steps = steps
        accelerators = [backend for device, backend in backends.items() if device.type != "cpu"]
        self._accelerators = accelerators[::-1]  # the first one last
        self._rings = [StagingRing(backends[device], num_slots=num_slots) for device in devices]

    def mark_caller(self) -> list[Any]:
        """Markers behind what the caller has started on each accelerator."""
        return [backend.mark_caller() for backend in self._accelerators]

    def enter_thread(self, markers: list[Any]) -> None:
        """The source runs behind those, and on the first accelerator, as in the caller's thread."""
        for backend, marker in zip(self._accelerators, markers, strict=True):
            backend.enter_thread(marker)

    def start(self) -> ReplicaLeaves:
        for ring in self._rings:
            ring.open()
        step = next(self._steps)
        pairs = zip(self._rings, step.leaves, strict=True)
        started = [ring.start(leaves, owned=step.owned) for ring, leaves in pairs]
        leaves, markers = zip(*started, strict=True)
        return step._replace(leaves=leaves, markers=markers)

    def hand_over(self, step: ReplicaLeaves) -> ReplicaLeaves:
        for ring, leaves, marker in zip(self._rings, step.leaves, step.markers, strict=True):
            ring.hand_over(leaves, marker)
        return step

    def drain(self) -> None:
        for ring in self._rings:
            ring.drain()


class _Ahead:
    """Where the thread leaves steps for the consumer: at most ``size`` pulled and not yet taken.

    Two queues and no lock: a garbage collection in either thread, at any moment, may call ``stop``.
    """

    def __init__(self, size: int) -> None:
        self._stopped = False
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._left: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for _ in range(size):
            self._room.put(None)

    def wait_for_room(self) -> bool:
        """Called by the thread before it pulls a step; False when it has to leave."""
        self._room.get()
        return not self._stopped

    def leave(self, item: Any) -> None:
        """Called by the thread."""
        self._left.put(item)

    def take(self) -> ReplicaLeaves:
        """Called by the consumer; raises what the thread met, where the step would have come."""
        if not self._stopped:
            item = self._left.get()
            if isinstance(item, ReplicaLeaves):
                self._room.put(None)
                return item
            self.stop()
            if isinstance(item, _Failed):
                raise item.error
        raise StopIteration

    def stop(self) -> None:
        """Free both sides from waiting."""
        self._stopped = True
        self._room.put(None)
        self._left.put(_END)

    def clear(self) -> None:
        """Called when the thread has left: drop what nobody will take, but not the end."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._left.get_nowait()
        self._left.put(_END)  # the consumer may be another thread, still waiting


def _fill(ahead: _Ahead, copies: _Copies, markers: list[Any]) -> None:
    """The thread holds the places, never the prefetcher, which can so be collected."""
    try:
        copies.enter_thread(markers)
    except BaseException as error:  # noqa: BLE001 - as below
        ahead.leave(_Failed(error))
        return
    while ahead.wait_for_room() and _fill_one(ahead, copies):
        pass
    copies.drain()


def _fill_one(ahead: _Ahead, copies: _Copies) -> bool:
    """Leave one more step; False after the last. When it returns, nothing here refers to it."""
    try:
        item: Any = copies.start()
    except StopIteration:
        item = _END
    except BaseException as error:  # noqa: BLE001 - it is raised again where next() is called
        item = _Failed(error)
    ahead.leave(item)
    return isinstance(item, ReplicaLeaves)
