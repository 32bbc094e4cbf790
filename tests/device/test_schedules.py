"""Random schedules on a traced machine: no copy is read early, no memory is written in use.

The prefetcher and its rings are the real ones; the machine stands for streams, events and the
allocator. A play lets the thread, the consumer and the streams take turns by a seed. Each mutant
drops one wait or one reference, and the same plays must notice, twice: as a race, and, with the
clocks turned off, as wrong values.
"""

from __future__ import annotations

import random
import weakref
from contextlib import ExitStack
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torch_distinput import PackedStrings
from torch_distinput.device import prefetch
from torch_distinput.device.prefetch import Prefetcher, ReplicaLeaves
from torch_distinput.device.staging import StagingRing, StagingSlot
from torch_distinput.testing.simulated_device import Machine, RaceError
from torch_distinput.testing.tracing_backend import TracingBackend

LAYOUTS = [["cuda:0"], ["cuda:0", "cuda:0"], ["cuda:0", "cuda:1"], ["cuda:1", "cpu"]]


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

    def __init__(self, machine, backend, *, owned):
        self.machine, self.backend, self.owned = machine, backend, owned
        self.ring = Ring(machine)
        self.plain = torch.empty(8)
        self.pinned = machine.host_buffer(32).view(torch.float32)
        self.bytes = torch.empty(99, dtype=torch.uint8)
        self.offsets = torch.empty(9, dtype=torch.int64)
        self.there = None

    def leaves(self, values):
        if not isinstance(self.backend, TracingBackend):
            return [values.clone()]
        there = self.machine.copy(values, self.backend.stream)
        if self.owned:
            return [values.clone(), self.ring.give(values), there, self.packed(values)]
        plain = self.plain[: values.numel()].view(values.shape).copy_(values)
        pinned = self.pinned[: values.numel()].view(values.shape)
        self.machine.write(pinned, values)
        if self.there is None or self.there.shape != values.shape:
            self.there = there
        self.machine.fill(self.there, values, self.backend.stream)
        return [plain, pinned, self.there, self.packed(values)]

    def packed(self, values):
        """A string of the bytes of each row, behind one of other bytes."""
        data, offsets = packed_tensors(values)
        data, offsets = torch.cat([data.new_ones(3), data]), offsets + 3
        if not self.owned:
            data = self.bytes[: len(data)].copy_(data)
            offsets = self.offsets[: len(offsets)].copy_(offsets)
        return PackedStrings(data, offsets, dtype=bytes)


class Play:
    """The thread, the consumer and the streams of a prefetcher."""

    def __init__(self, seed, devices, *, owned, buffer_size):
        self.random = random.Random(seed)
        self.machine = Machine(seed)
        self.machine.party = "consumer"
        self.backends = {
            name: TracingBackend(self.machine, name) for name in devices if name != "cpu"
        }
        self.devices, self.owned, self.buffer_size = devices, owned, buffer_size
        self.sources = [
            Source(self.machine, self.backends.get(name), owned=owned) for name in devices
        ]
        self.thread = None
        self.seen = []

    def steps(self):
        for number in range(self.random.randrange(12)):
            rows = self.random.randrange(4)
            values = [torch.full((rows, 2), 10.0 * number + r) for r in range(len(self.devices))]
            pairs = zip(self.sources, values, strict=True)
            leaves = tuple(source.leaves(value) for source, value in pairs)
            yield ReplicaLeaves(leaves=leaves, note=values, owned=self.owned)

    def start_thread(self, _, ahead, copies, **__):
        """Stand for the thread, which takes its turns in :meth:`turn`."""
        self.thread = SimpleNamespace(ahead=ahead, copies=copies, goes_on=True, join=lambda _: None)
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
                    stream = self.backends[name].stream
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
            for backend in self.backends.values():
                backend.current["consumer"] = self.random.choice(["main", "other"])
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
            prefetch._fill(self.thread.ahead, self.thread.copies)
        prefetcher.join()
        for source in self.sources:
            source.ring.write_all()  # whoever starts the source again has joined the thread
        self.machine.party = "consumer"
        self.kept.clear()
        self.machine.finish()


def play(seed, devices=("cuda:0",), *, owned=False, buffer_size=1):
    """One play; AssertionError if a value is wrong, RaceError if two accesses race."""
    one = Play(seed, list(devices), owned=owned, buffer_size=buffer_size)
    real = prefetch.backend_for

    def backend_for(device):
        return one.backends.get(str(device)) or real(device)

    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(prefetch, "backend_for", backend_for))
        patches.enter_context(mock.patch.object(prefetch, "start_thread", one.start_thread))
        for expected, found in one.run():
            assert torch.equal(expected, found)


@given(
    seed=st.integers(0, 2**32),
    devices=st.sampled_from(LAYOUTS),
    owned=st.booleans(),
    buffer_size=st.integers(0, 3),
)
def test_no_schedule_has_a_race(seed, devices, owned, buffer_size):
    """Nor a wrong value: whatever memory the leaves are in, and whatever the consumer keeps."""
    play(seed, devices, owned=owned, buffer_size=buffer_size)


# ------------------------------------------------------------------------------ mutants


def nothing(*_, **__):
    """What is left of a dropped operation."""


def marks_too_early(backend):
    """The marker in front of the copies: the one that stood there when the last step ended."""
    machine, side = backend.machine, backend._side
    early = getattr(backend, "early", None) or machine.mark(f"{side} before")
    backend.early = machine.mark(side)
    return early


def waits_in_the_thread(copies, real=prefetch._Copies.start):
    """Hand over where the copies are started: on the thread's streams, not on the consumer's."""
    started = real(copies)
    real_hand_over(copies, started)
    return started


def drops_without_waiting(ring):
    for slot in ring._slots:
        slot.drop()


real_hand_over, real_start = prefetch._Copies.hand_over, StagingRing.start

MUTANTS = {
    "the consumer does not wait for the copies": [(TracingBackend, "wait_on_consumer", nothing)],
    "device memory is not kept for the consumer": [(TracingBackend, "keep_for_consumer", nothing)],
    "the host does not wait before it writes again": [(TracingBackend, "wait_on_host", nothing)],
    "the marker is in front of the copies": [(TracingBackend, "mark", marks_too_early)],
    "the producer is not waited for": [(TracingBackend, "wait_for_producer", nothing)],
    "what is read in place is not kept": [(StagingSlot, "keep", lambda _, source: source)],
    "what is not owned is read in place": [
        (StagingRing, "start", lambda ring, leaves, owned: real_start(ring, leaves, owned=True))
    ],
    "the thread waits instead of the consumer": [
        (prefetch._Copies, "start", waits_in_the_thread),
        (prefetch._Copies, "hand_over", lambda _, step: step),
    ],
    "nobody waits when it is left": [(StagingRing, "drain", drops_without_waiting)],
}


def failures(kind, mutations, seeds):
    """How many plays end with this kind of failure."""
    with ExitStack() as mutated:
        for mutation in mutations:
            mutated.enter_context(mock.patch.object(*mutation))
        return sum(
            outcome(seed, owned=owned, buffer_size=size) is kind
            for seed in range(seeds)
            for owned in (False, True)
            for size in (0, 2)
        )


def outcome(seed, **settings):
    try:
        play(seed, **settings)
    except AssertionError as error:
        return type(error)
    return None


@pytest.mark.parametrize("name", MUTANTS)
def test_a_dropped_wait_is_a_race(name):
    """The clocks notice, whatever moment a copy was really done at."""
    assert failures(RaceError, MUTANTS[name], seeds=20) > 0


@pytest.mark.parametrize("name", MUTANTS)
def test_a_dropped_wait_gives_wrong_values(name):
    """With the clocks turned off: the machine really runs late."""
    no_clocks = (Machine, "_access", nothing)
    assert failures(AssertionError, [no_clocks, *MUTANTS[name]], seeds=40) > 0


def test_the_machine_is_right_without_its_clocks():
    """And the plays above fail for no other reason."""
    assert failures(AssertionError, [(Machine, "_access", nothing)], seeds=40) == 0


def test_a_thread_of_its_own():
    """The same over the real thread, whose moments nobody chooses."""
    for seed in range(20):
        machine = Machine(seed)
        backend = TracingBackend(machine, "cuda:0")
        source = Source(machine, backend, owned=seed % 2 == 0)
        steps = (
            ReplicaLeaves(leaves=(source.leaves(value),), note=value, owned=source.owned)
            for value in torch.arange(40.0).view(20, 1, 2)
        )
        with mock.patch.object(prefetch, "backend_for", lambda _, backend=backend: backend):
            prefetcher = Prefetcher(steps, [torch.device("cuda:0")], buffer_size=1 + seed % 3)
        seen = [
            (expected, machine.read(tensor, backend.stream))
            for step in prefetcher
            for leaf in step.leaves[0]
            for expected, tensor in parts_of(leaf, step.note)
        ]
        prefetcher.join()
        machine.finish()
        assert 100 == len(seen)
        assert all(torch.equal(expected, found) for expected, found in seen)
