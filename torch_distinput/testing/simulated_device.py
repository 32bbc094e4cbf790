"""A machine without a device, to prove a prefetcher right: vector clocks, and late copies.

:class:`Machine` has host threads, streams and memory. What a stream is told to do is done later, at
moments that a seed chooses, with real values: a missing wait gives wrong ones. And each access to
memory must come after those it conflicts with, not by luck but by waits: happens-before, by vector
clocks, whatever moments were chosen. Freed device memory is given out again as torch's caching
allocator does: to the same stream at once, unless ``record_stream`` was called for it.

With ``orders_by_data`` it is a machine of TPUs, as torch_tpu drives them. Events stand for nothing,
so that whoever waits for one goes on at once. The device needs none: what it does comes after the
values that it reads, and its memory is given out again after the last use. But nothing ties the
host to it, except a copy that blocks: host memory may be written over, or let go of, too early.

    thread           calls                                    guarded by
    any host thread  every method, and a finalizer of memory  ``_lock``, which it may hold already
"""

from __future__ import annotations

import random
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from torch_distinput.threads import new_rlock

Clock = dict[str, int]
"""For each party, how many of its accesses are known to be over."""


class RaceError(AssertionError):
    """Two accesses to the same memory with no wait between them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Access:
    """Who did what, as the how-manieth thing."""

    party: str
    time: int
    what: str


@dataclass(kw_only=True, eq=False, slots=True)
class _Block:
    """Memory that is given out as a whole; ``stream`` is None for the host's."""

    memory: torch.Tensor
    name: str
    stream: str | None = None
    write: _Access | None = None
    reads: list[_Access] = field(default_factory=list)
    users: set[str] = field(default_factory=set)
    fences: list[Marker] = field(default_factory=list)
    uses: list[Marker] = field(default_factory=list)


@dataclass(kw_only=True, eq=False, slots=True)
class Marker:
    """A place in a stream; what waits for it comes after all before it."""

    stream: str
    clock: Clock
    done: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class _Task:
    """What a stream still has to do: an action, a marker to set or one to wait for."""

    action: Callable[[], object] | None = None
    sets: Marker | None = None
    waits: Marker | None = None


class Machine:
    """Threads, streams and memory under one schedule; each method is called by a thread.

    ``party`` names the calling thread; a test may set it to play several threads in one.
    """

    def __init__(self, seed: int, *, orders_by_data: bool = False) -> None:
        """Choose the schedule, and what keeps it in order."""
        self._orders_by_data = orders_by_data
        self._races: list[RaceError] = []
        self._random = random.Random(seed)  # noqa: S311 - a schedule, no secret
        self._haste = self._random.choice((0, 1, 3))  # 0: streams move only if waited for
        self._lock = new_rlock()
        self._clocks: defaultdict[str, Clock] = defaultdict(dict)
        self._tasks: defaultdict[str, deque[_Task]] = defaultdict(deque)
        self._blocks: dict[int, _Block] = {}
        self._free: list[_Block] = []
        self._current = threading.local()

    @property
    def party(self) -> str:
        """The calling thread."""
        return getattr(self._current, "party", None) or threading.current_thread().name

    @party.setter
    def party(self, name: str) -> None:
        self._current.party = name

    def host_buffer(self, num_bytes: int) -> torch.Tensor:
        """Pinned memory, never given out again: its accesses stay comparable."""
        with self._lock:
            return self._new_block("host buffer", None, num_bytes).memory[:num_bytes]

    def host_copy(self, values: torch.Tensor) -> torch.Tensor:
        """Ordinary memory of the host: let go of, it is somebody else's, who writes into it."""
        with self._lock:
            block = self._new_block("host memory", None, values.nbytes)
            given = block.memory[: values.nbytes].view(values.dtype).view(values.shape)
            self.write(given, values)
            weakref.finalize(given, self._let_go, block).atexit = False
            return given

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether it is in a host buffer."""
        block = self._block_of(tensor)
        return block is not None and block.stream is None

    def is_on(self, tensor: torch.Tensor, device: str) -> bool:
        """Whether it was allocated for a stream of a device, as in ``cuda:0/side``."""
        block = self._block_of(tensor)
        return block is not None and (block.stream or "").startswith(f"{device}/")

    def write(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """The calling thread copies at once."""
        with self._lock:
            self._drift()
            self._access(source, self.party, "read")
            self._access(target, self.party, "write")
            target.copy_(source)

    def copy(
        self, source: torch.Tensor, stream: str, *, blocking: bool = False
    ) -> torch.Tensor:
        """Launch a copy to memory allocated on the stream that does it; blocking, wait for it."""
        with self._lock:
            target = self._allocate(stream, source)
            self.fill(target, source, stream)
            if blocking:
                self.let_host_wait(self._mark(stream))
            return target

    def fill(self, target: torch.Tensor, source: torch.Tensor, stream: str) -> None:
        """Launch a copy; like any kernel, it keeps nothing alive."""
        with self._lock:
            self._drift()
            into, out_of = self._raw(target), self._raw(source)
            accesses = [(source, "read"), (target, "write")]
            self._launch(stream, accesses, lambda: into.copy_(out_of))

    def read(self, tensor: torch.Tensor, stream: str) -> torch.Tensor:
        """Launch a kernel that reads; the result is filled when it runs."""
        with self._lock:
            self._drift()
            result, out_of = torch.empty_like(tensor), self._raw(tensor)
            self._launch(stream, [(tensor, "read")], lambda: result.copy_(out_of))
            return result

    def mark(self, stream: str) -> Marker:
        """Record an event."""
        with self._lock:
            if self._orders_by_data:
                return Marker(stream=stream, clock={}, done=True)
            return self._mark(stream)

    def let_stream_wait(self, stream: str, marker: Marker) -> None:
        """What is launched on the stream from now on comes after the marker."""
        with self._lock:
            self._drift()
            _join(self._clocks[stream], marker.clock)
            self._tasks[stream].append(_Task(waits=marker))

    def let_host_wait(self, marker: Marker) -> None:
        """The calling thread goes on after the marker."""
        with self._lock:
            self._drift()
            self._run_until(marker)
            _join(self._clocks[self.party], marker.clock)

    def record_stream(self, tensor: torch.Tensor, stream: str) -> None:
        """Freed, the memory is not reused before what the stream has been told by then is done."""
        with self._lock:
            block = self._block_of(tensor)
            assert block is not None
            block.users.add(stream)

    def finish(self) -> None:
        """Let all streams do what they were told."""
        with self._lock:
            while ready := self._ready():
                self._step(self._random.choice(ready))
            if self._races:
                raise self._races[0]

    # ------------------------------------------------------------------ happens before

    def _launch(
        self,
        stream: str,
        accesses: Sequence[tuple[torch.Tensor, str]],
        action: Callable[[], object],
    ) -> None:
        """Accesses of a stream come after all that the thread knew when it launched them.

        Ordered by data, they also come after what the device did with the same memory before.
        """
        _join(self._clocks[stream], self._clocks[self.party])
        blocks = [self._block_of(tensor) for tensor, _ in accesses]
        on_device = [block for block in blocks if block is not None and block.stream is not None]
        for use in (use for block in on_device for use in block.uses):
            _join(self._clocks[stream], use.clock)
            self._tasks[stream].append(_Task(waits=use))
        for tensor, kind in accesses:
            self._access(tensor, stream, kind)
        self._tasks[stream].append(_Task(action=action))
        if self._orders_by_data:
            done = self._mark(stream)
            for block in on_device:
                block.uses.append(done)

    def _mark(self, stream: str) -> Marker:
        _join(self._clocks[stream], self._clocks[self.party])
        marker = Marker(stream=stream, clock=dict(self._clocks[stream]))
        self._tasks[stream].append(_Task(sets=marker))
        return marker

    def _access(self, tensor: torch.Tensor, party: str, kind: str) -> None:
        block = self._block_of(tensor)
        if block is None or not tensor.numel():
            return  # ordinary memory of the host, which only its own thread touches; or none
        clock = self._clocks[party]
        clock[party] = clock.get(party, 0) + 1
        access = _Access(party=party, time=clock[party], what=f"{kind} of {block.name}")
        conflicting = [*([block.write] if block.write else []), *block.reads]
        for earlier in conflicting if kind == "write" else conflicting[: bool(block.write)]:
            if clock.get(earlier.party, 0) < earlier.time:
                msg = (
                    f"Expected a wait between two accesses, found none: {earlier.what} by "
                    f"{earlier.party}, then {access.what} by {party}."
                )
                raise RaceError(msg)
        if kind == "write":
            block.write, block.reads = access, []
        else:
            block.reads.append(access)

    # ------------------------------------------------------------------ memory

    def _block_of(self, tensor: torch.Tensor) -> _Block | None:
        return self._blocks.get(tensor.untyped_storage().data_ptr())

    def _raw(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same bytes; whoever holds this does not hold the tensor."""
        block = self._block_of(tensor)
        if block is None:
            return tensor if self._orders_by_data else tensor.clone()
        whole = block.memory.view(tensor.dtype)
        return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def _new_block(self, name: str, stream: str | None, num_bytes: int) -> _Block:
        padded = max(16, -(-num_bytes // 16) * 16)  # whole numbers of any dtype
        memory = torch.full((padded,), 0xEE, dtype=torch.uint8)
        name = f"{name} {len(self._blocks)}"
        block = _Block(memory=memory, name=name, stream=stream)
        self._blocks[memory.untyped_storage().data_ptr()] = block
        return block

    def _allocate(self, stream: str, like: torch.Tensor) -> torch.Tensor:
        """Reuse the first free block of the stream that is large enough and has no open fences."""
        num_bytes = like.numel() * like.element_size()
        for block in self._free:
            fits = block.stream == stream and block.memory.numel() >= num_bytes
            if fits and all(fence.done for fence in block.fences):
                self._free.remove(block)
                for fence in block.fences:  # the allocator has asked for them, on this thread
                    _join(self._clocks[self.party], fence.clock)
                break
        else:
            block = self._new_block("device memory", stream, num_bytes)
        block.users, block.fences, block.uses = set(), [], []
        flat = block.memory[:num_bytes].view(like.dtype)
        given = flat.as_strided(like.shape, torch.empty_like(like, device="meta").stride())
        weakref.finalize(given, self._freed, block).atexit = False
        return given

    def _freed(self, block: _Block) -> None:
        """Nothing refers to it: the allocator records an event on each stream that was recorded."""
        with self._lock:
            block.fences = block.uses or [self._mark(stream) for stream in sorted(block.users)]
            self._free.append(block)

    def _let_go(self, block: _Block) -> None:
        """Nothing refers to it: the next owner writes. A race here is told in the end."""
        with self._lock:
            try:
                self._access(block.memory, self.party, "write")
            except RaceError as race:
                self._races.append(race)
            block.memory.fill_(0xEE)

    # ------------------------------------------------------------------ the schedule

    def _drift(self) -> None:
        """Let streams do some of what they were told, before the calling thread goes on."""
        for _ in range(self._random.randrange(self._haste + 1)):
            if ready := self._ready():
                self._step(self._random.choice(ready), forced=False)

    def _ready(self) -> list[str]:
        return [stream for stream, tasks in self._tasks.items() if tasks]

    def _step(self, stream: str, *, forced: bool = True) -> None:
        """Do the next thing of a stream; one that waits lets others go on first if it is forced."""
        task = self._tasks[stream][0]
        if task.waits is not None and not task.waits.done:
            if not forced:
                return
            self._run_until(task.waits)
        self._tasks[stream].popleft()
        if task.action is not None:
            task.action()
        if task.sets is not None:
            task.sets.done = True

    def _run_until(self, marker: Marker) -> None:
        while not marker.done:
            self._step(marker.stream)


def _join(clock: Clock, other: Clock) -> None:
    for party, time in other.items():
        clock[party] = max(clock.get(party, 0), time)
