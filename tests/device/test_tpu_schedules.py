"""Random schedules on a pretended TPU, whose events do nothing: the plays of ``plays.py`` again.

The backend is the real one. What it says to torch is done by the machine, and only where a copy
blocks does the host wait for the device. An accelerator's way fails there, and so does each mutant
that drops what makes the TPU's way sound, or puts something weaker in its place.
"""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import LONG
from tests.device.plays import NO_CLOCKS, Play, has_outcome, outcomes, play
from torch_distinput.device import prefetch
from torch_distinput.device.backend import BlockingBackend, backend_for, host_memory
from torch_distinput.device.prefetch import Prefetcher, ReplicaLeaves
from torch_distinput.device.staging import StagingRing, StagingSlot
from torch_distinput.testing.simulated_device import RaceError
from torch_distinput.testing.tracing_backend import TracingBackend

TPU = torch.device("xla:0")  # a kind of device that torch knows without torch_tpu
LAYOUTS = [["xla:0"], ["xla:0", "xla:0"], ["xla:0", "cpu"]]

real_clone = torch.Tensor.clone
now = SimpleNamespace(machine=None)
"""The machine of the play under way, which the calls of the backend reach."""


def make_tpu(machine, _):
    now.machine = machine
    return BlockingBackend(TPU)


def to(tensor, device, *, non_blocking):
    """What ``Tensor.to`` does: to torch_tpu a device has one stream."""
    return now.machine.copy(tensor, f"{device}/main", blocking=not non_blocking)


def clone(tensor):
    """What ``Tensor.clone`` does: on the device, where the tensor is there."""
    there = now.machine is not None and now.machine.is_on(tensor, str(TPU))
    return now.machine.copy(tensor, f"{TPU}/main") if there else real_clone(tensor)


def holds(_, tensor):
    """By who allocated it."""
    return now.machine.is_on(tensor, str(TPU))


TPUS = {"make_backend": make_tpu, "orders_by_data": True, "devices": LAYOUTS[0]}


@pytest.fixture(autouse=True, scope="module")
def _torch_reaches_the_machine():
    pretended = [(torch.Tensor, "to", to), (torch.Tensor, "clone", clone)]
    with ExitStack() as patches:
        for call in [*pretended, (BlockingBackend, "holds", holds)]:
            patches.enter_context(mock.patch.object(*call))
        yield


@given(
    seed=st.integers(0, 2**32),
    devices=st.sampled_from(LAYOUTS),
    owned=st.booleans(),
    buffer_size=st.integers(0, 3),
)
def test_no_schedule_has_a_race(seed, devices, owned, buffer_size):
    """Nor a wrong value: whatever memory the leaves are in, and whatever the consumer keeps."""
    play(seed, **{**TPUS, "devices": devices}, owned=owned, buffer_size=buffer_size)


@pytest.mark.slow
def test_many_schedules():
    """Of the settings with which the mutants below are played."""
    seeds = 250 if LONG else 60
    assert [None] * 4 * seeds == list(outcomes(seeds, **TPUS))


# ------------------------------------------------------------------------------ the danger


def test_an_accelerators_way_is_a_race_where_events_do_nothing():
    """Staged in buffers that are used again, and copied while the host goes on."""
    way = {**TPUS, "make_backend": TracingBackend}
    assert has_outcome(RaceError, [], seeds=20, **way)


def test_an_accelerators_way_gives_wrong_values_where_events_do_nothing():
    """Nobody would be told: with the clocks turned off, batches are mixed up silently."""
    way = {**TPUS, "make_backend": TracingBackend}
    assert has_outcome(AssertionError, [NO_CLOCKS], seeds=40, **way)


@pytest.mark.slow
def test_the_same_way_is_sound_where_events_work():
    """It is the events that make the difference, not the plays."""
    assert not has_outcome(RaceError, [], seeds=20)


# ------------------------------------------------------------------------------ mutants


def start(backend, source):
    return source.detach().to(backend._device, non_blocking=True)


def start_and_wait_for_an_event(backend, source):
    copied = start(backend, source)
    now.machine.let_host_wait(now.machine.mark(f"{TPU}/main"))
    return copied


def start_from_memory_of_its_own(backend, source):
    return start(backend, now.machine.host_copy(source))


KEPT: list[torch.Tensor] = []


def start_from_memory_that_is_kept(backend, source):
    KEPT.append(now.machine.host_copy(source))
    return start(backend, KEPT[-1])


def let_go(*_):
    KEPT.clear()


STAGED = [
    (BlockingBackend, "copies_at_once", False),
    (BlockingBackend, "host_buffer", lambda _, num_bytes: now.machine.host_buffer(num_bytes)),
    (BlockingBackend, "write", lambda _, *both: now.machine.write(*both)),
]

MUTANTS = {
    "the copy does not block": [(BlockingBackend, "copy", start)],
    "an event is waited for instead": [(BlockingBackend, "copy", start_and_wait_for_an_event)],
    "a slot is used again": [*STAGED, (BlockingBackend, "copy", start)],
    "a slot is used again, after an event": [
        *STAGED,
        (BlockingBackend, "copy", start_and_wait_for_an_event),
    ],
    "the reference is dropped at once": [(BlockingBackend, "copy", start_from_memory_of_its_own)],
    "the reference is dropped when the step is handed over": [
        (BlockingBackend, "copy", start_from_memory_that_is_kept),
        (BlockingBackend, "wait_on_consumer", let_go),
    ],
    "the reference is dropped when the slot opens": [
        (BlockingBackend, "copy", start_from_memory_that_is_kept),
        (StagingSlot, "open", let_go),
    ],
}
NOT_DUPLICATED = [(BlockingBackend, "duplicate", lambda _, leaf: leaf)]


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_a_race(name):
    """The clocks notice, whatever moment a copy was really done at."""
    assert has_outcome(RaceError, MUTANTS[name], seeds=40, **TPUS)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_gives_wrong_values(name):
    """With the clocks turned off: the machine really runs late."""
    assert has_outcome(AssertionError, [NO_CLOCKS, *MUTANTS[name]], seeds=60, **TPUS)


def test_what_is_on_the_device_and_not_owned_is_duplicated():
    """Else the consumer gets a later value: no race, as the device orders by data."""
    assert has_outcome(AssertionError, NOT_DUPLICATED, seeds=40, **TPUS)


# ------------------------------------------------------------------------------ one step


class TestOneStep:
    """What the plays cannot tell: that nothing is staged, kept or pinned on the way."""

    @pytest.fixture
    def ring(self, monkeypatch):
        """A replica on a TPU, and what was copied there."""
        self.copied = []

        def to(tensor, device, *, non_blocking):
            self.copied.append((tensor, device, non_blocking))
            return real_clone(tensor)

        monkeypatch.setattr(torch.Tensor, "to", to)
        monkeypatch.setattr(BlockingBackend, "holds", lambda *_: False)
        return StagingRing(BlockingBackend(TPU), num_slots=2)

    @pytest.mark.parametrize("owned", [False, True])
    def test_leaves_are_copied_from_where_they_are(self, ring, owned):
        """Also views and rows with gaps, by a call that blocks."""
        leaves = [torch.ones(2), torch.ones(4, 4)[:, ::2], torch.empty(0, 3)]
        ring.open()
        moved, _ = ring.start(leaves, owned=owned)
        assert [leaf.data_ptr() for leaf in leaves] == [one[0].data_ptr() for one in self.copied]
        assert {(TPU, False)} == {one[1:] for one in self.copied}
        assert [leaf.shape for leaf in leaves] == [leaf.shape for leaf in moved]
        assert not any(slot._buffers or slot._kept for slot in ring._slots)

    def test_gradients_stay_behind(self, ring):
        """A leaf that requires them does not bring a graph along."""
        ring.open()
        (moved,), _ = ring.start([torch.ones(2, requires_grad=True)], owned=True)
        assert not moved.requires_grad

    def test_other_leaves_stay_on_the_host(self, ring):
        ring.open()
        leaves = [["a"], np.array(["a"]), None]
        moved, _ = ring.start(leaves, owned=True)
        assert leaves == moved
        assert [] == self.copied


def test_a_tpu_gets_its_backend_and_ordinary_memory():
    """By the name that torch_tpu gives it, which torch knows only with torch_tpu."""
    tpu = SimpleNamespace(type="tpu")
    assert isinstance(backend_for(tpu), BlockingBackend)
    assert host_memory([tpu, torch.device("cpu")]) is None
    assert host_memory([tpu, torch.device("cuda")]) is not None


@pytest.mark.slow
def test_a_thread_of_its_own():
    """The plays over the real thread, whose moments nobody chooses."""
    for seed in range(20):
        settings = {"owned": seed % 2 == 0, "buffer_size": 1 + seed % 3}
        one = Play(seed, ["xla:0"], make_backend=make_tpu, orders_by_data=True, **settings)
        backend, source = one.backends["xla:0"], one.sources[0]
        steps = (
            ReplicaLeaves(leaves=(source.leaves(value),), note=value, owned=one.owned)
            for value in torch.arange(40.0).view(20, 1, 2)
        )
        with mock.patch.object(prefetch, "backend_for", lambda _, backend=backend: backend):
            prefetcher = Prefetcher(steps, [TPU], buffer_size=one.buffer_size)
        seen = [
            (step.note, one.machine.read(leaf, one.stream("xla:0")))
            for step in prefetcher
            for leaf in step.leaves[0]
        ]
        prefetcher.join()
        one.machine.finish()
        assert 60 == len(seen)
        assert all(torch.equal(expected, found) for expected, found in seen)
