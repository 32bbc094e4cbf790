"""A prefetcher's thread, its consumer and the streams of a pretended device, who take turns.

The prefetcher and its rings are the real ones; the machine stands for streams, events and the
allocator. A play lets the thread, the consumer and the streams take turns by a seed.
"""

from __future__ import annotations

import random
import weakref
from contextlib import ExitStack
from types import SimpleNamespace
from unittest import mock

import torch

from torch_distinput import PackedStrings
from torch_distinput.device import prefetch
from torch_distinput.device.prefetch import Prefetcher, ReplicaLeaves
from torch_distinput.testing.simulated_device import Machine
from torch_distinput.testing.tracing_backend import TracingBackend


def packed_tensors(values):
    """The bytes of rows of two float32, and where they begin."""
    return values.reshape(-1).view(torch.uint8), 8 * torch.arange(len(values) + 1)


def parts_of(leaf, values):
    """The tensors of a leaf that was made of values, and what they should hold."""
    if isinstance(leaf, PackedStrings):
        return zip(packed_tensors(values), leaf.tensors(), strict=True)
    return [(values, leaf)]


class Ring:
    """Pinned buffers of a source; one is free when nothing refers to what was given out of it."""

    def __init__(self, machine):
        self.machine = machine
        self.places = []

    def give(self, values):
        free = (place for place in self.places if place.given() is None)
        place = next(free, None)
        if place is None:
            place = SimpleNamespace(buffer=self.machine.host_buffer(64), given=None)
            self.places.append(place)
        leaf = place.buffer[: values.nbytes].view(values.dtype).view(values.shape)
        self.machine.write(leaf, values)
        place.given = weakref.ref(leaf)
        return leaf

    def write_all(self):
        """As the next epoch might."""
        for place in self.places:
            if place.given() is None:
                self.machine.write(place.buffer, torch.zeros(64, dtype=torch.uint8))


class Source:
    """Leaves of all kinds of memory; what is not owned is written over for the next step."""

    def __init__(self, play, name):
        self.play, self.name, self.machine = play, name, play.machine
        self.ring = Ring(self.machine)
        self.buffers = [
            # Of ordinary memory a machine of streams knows nothing: its copies never read it.
            self.machine.host_buffer(32) if play.orders_by_data else torch.empty(32).byte(),
            self.machine.host_buffer(32),
        ]
        self.bytes = torch.empty(99, dtype=torch.uint8)
        self.offsets = torch.empty(9, dtype=torch.int64)
        self.there = None

    def leaves(self, values):
        if self.name == "cpu":
            return [values.clone()]
        stream = self.play.stream(self.name)
        if self.machine.party == "prefetch":
            found = self.machine.read(self.play.columns[self.name], stream)
            self.play.seen.append((torch.ones(2), found))
        there = self.machine.copy(values, stream)
        if self.play.owned:
            fresh = self.machine.host_copy if self.play.orders_by_data else torch.clone
            return [fresh(values), self.ring.give(values), there, *self.packed(values)]
        floats = [buffer.view(torch.float32) for buffer in self.buffers]
        written = [buffer[: values.numel()].view(values.shape) for buffer in floats]
        for leaf in written:
            self.machine.write(leaf, values)
        if self.there is None or self.there.shape != values.shape:
            self.there = there
        self.machine.fill(self.there, values, stream)
        return [*written, self.there, *self.packed(values)]

    def packed(self, values):
        """A string of the bytes of each row, behind one of other bytes; TPUs take none."""
        if self.play.orders_by_data:
            return []
        data, offsets = packed_tensors(values)
        data, offsets = torch.cat([data.new_ones(3), data]), offsets + 3
        if not self.play.owned:
            data = self.bytes[: len(data)].copy_(data)
            offsets = self.offsets[: len(offsets)].copy_(offsets)
        return [PackedStrings(data, offsets, dtype=bytes)]


class Play:
    """The thread, the consumer and the streams of a prefetcher.

    ``make_backend(machine, name)`` makes the backend of a device that is not the CPU.
    """

    def __init__(
        self,
        seed,
        devices,
        *,
        owned,
        buffer_size,
        make_backend=TracingBackend,
        orders_by_data=False,
    ):
        self.random = random.Random(seed)
        self.machine = Machine(seed, orders_by_data=orders_by_data)
        self.machine.party = "consumer"
        self.devices, self.owned, self.buffer_size = devices, owned, buffer_size
        self.orders_by_data = orders_by_data
        self.backends = {
            name: make_backend(self.machine, name) for name in devices if name != "cpu"
        }
        self.current = dict.fromkeys(self.backends, "main")  # the consumer's streams
        self.columns = {}  # what the consumer has made there before its first step
        self.sources = [Source(self, name) for name in devices]
        self.thread = None
        self.seen = []

    def stream(self, name):
        """The current stream of a device for whoever asks: the thread has none of its own."""
        return f"{name}/{self.current[name] if self.machine.party == 'consumer' else 'main'}"

    def steps(self):
        for number in range(self.random.randrange(12)):
            rows = self.random.randrange(4)
            values = [torch.full((rows, 2), 10.0 * number + r) for r in range(len(self.devices))]
            pairs = zip(self.sources, values, strict=True)
            leaves = tuple(source.leaves(value) for source, value in pairs)
            yield ReplicaLeaves(leaves=leaves, note=values, owned=self.owned)

    def start_thread(self, _, ahead, copies, marker, **__):
        """Stand for the thread, which takes its turns in :meth:`turn`."""
        self.thread = SimpleNamespace(
            ahead=ahead, copies=copies, marker=marker, goes_on=True, join=lambda _: None
        )
        self.machine.party = "prefetch"
        copies.enter_thread(marker)
        self.machine.party = "consumer"
        self.turn()
        return self.thread

    def turn(self):
        """The thread pulls a step and starts its copies, if there is room."""
        thread = self.thread
        if thread and thread.goes_on and not thread.ahead._room.empty():
            thread.ahead.wait_for_room()
            self.machine.party = "prefetch"
            thread.goes_on = prefetch._fill_one(thread.ahead, thread.copies)
            self.machine.party = "consumer"

    def use(self, step):
        """Read each leaf where it was handed over; perhaps once more much later, or never."""
        for name, leaves, values in zip(self.devices, step.leaves, step.note, strict=True):
            for expected, tensor in (p for leaf in leaves for p in parts_of(leaf, values)):
                if name == "cpu":
                    self.seen.append((expected, tensor))
                else:
                    stream = self.stream(name)
                    self.kept.append((stream, tensor, expected))
                    self.seen.append((expected, self.machine.read(tensor, stream)))
        while self.kept and self.random.random() < 0.8:
            stream, leaf, values = self.kept.pop(self.random.randrange(len(self.kept)))
            if self.random.random() < 0.3:
                self.seen.append((values, self.machine.read(leaf, stream)))

    def run(self):
        """Play all steps or the first ones, then leave; return what the consumer has read."""
        devices = [torch.device(name) for name in self.devices]
        prefetcher = Prefetcher(self.steps(), devices, buffer_size=self.buffer_size)
        self.kept = []
        num_steps = self.random.randrange(12)
        for _ in range(num_steps):
            for _ in range(self.random.randrange(self.buffer_size + 2)):
                self.turn()
            while self.thread and self.thread.goes_on and self.thread.ahead._left.empty():
                self.turn()
            for name, backend in self.backends.items():
                self.current[name] = self.random.choice(["main", "other"])
                if isinstance(backend, TracingBackend):
                    backend.current["consumer"] = self.current[name]
            if not self.columns:
                values = torch.ones(2)
                self.columns = {
                    name: self.machine.copy(values, self.stream(name)) for name in self.backends
                }
            step = next(prefetcher, None)
            if step is None:
                break
            self.use(step)
            del step
        self.leave(prefetcher)
        return self.seen

    def leave(self, prefetcher):
        """End the thread; from then on the source may write where it likes."""
        prefetcher.stop()
        if self.thread:
            self.machine.party = "prefetch"
            prefetch._fill(self.thread.ahead, self.thread.copies, self.thread.marker)
        prefetcher.join()
        for source in self.sources:
            source.ring.write_all()  # whoever starts the source again has joined the thread
        self.machine.party = "consumer"
        self.kept.clear()
        self.machine.finish()


def play(seed, devices=("cuda:0",), *, owned=False, buffer_size=1, **kind):
    """One play; AssertionError if a value is wrong, RaceError if two accesses race."""
    one = Play(seed, list(devices), owned=owned, buffer_size=buffer_size, **kind)
    real = prefetch.backend_for

    def backend_for(device):
        return one.backends.get(str(device)) or real(device)

    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(prefetch, "backend_for", backend_for))
        patches.enter_context(mock.patch.object(prefetch, "start_thread", one.start_thread))
        for expected, found in one.run():
            assert torch.equal(expected, found)


def has_outcome(failure, mutations, seeds, **kind):
    """Whether a play ends with this kind of failure, of four for each seed; it may be the first."""
    with ExitStack() as mutated:
        for mutation in mutations:
            mutated.enter_context(mock.patch.object(*mutation))
        return failure in outcomes(seeds, **kind)


def outcomes(seeds, **kind):
    """How plays end, four for each seed."""
    return (
        outcome(seed, owned=owned, buffer_size=size, **kind)
        for seed in range(seeds)
        for owned in (False, True)
        for size in (0, 2)
    )


def outcome(seed, **settings):
    """The type of the failure of a play; None if there is none."""
    try:
        play(seed, **settings)
    except AssertionError as error:
        return type(error)
    return None


def nothing(*_, **__):
    """What is left of a dropped operation."""


NO_CLOCKS = (Machine, "_access", nothing)
"""A mutation of the machine, which then fails by wrong values only."""
