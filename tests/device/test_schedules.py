"""Random schedules on a traced machine: no copy is read early, no memory is written in use.

The plays are those of ``plays.py``. Each mutant drops one wait or one reference, and they must
notice, twice: as a race, and, with the clocks turned off, as wrong values.
"""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.device.plays import NO_CLOCKS, Play, has_outcome, nothing, parts_of, play
from torch_distinput.device import prefetch
from torch_distinput.device.prefetch import Prefetcher, ReplicaLeaves
from torch_distinput.device.staging import StagingRing, StagingSlot
from torch_distinput.testing.simulated_device import RaceError
from torch_distinput.testing.tracing_backend import TracingBackend

LAYOUTS = [["cuda:0"], ["cuda:0", "cuda:0"], ["cuda:0", "cuda:1"], ["cuda:1", "cpu"]]


@pytest.mark.slow
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
    "the thread does not wait for its caller": [(TracingBackend, "enter_thread", nothing)],
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


@pytest.mark.parametrize("name", MUTANTS)
def test_a_dropped_wait_is_a_race(name):
    """The clocks notice, whatever moment a copy was really done at."""
    assert has_outcome(RaceError, MUTANTS[name], seeds=20)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_dropped_wait_gives_wrong_values(name):
    """With the clocks turned off: the machine really runs late."""
    assert has_outcome(AssertionError, [NO_CLOCKS, *MUTANTS[name]], seeds=40)


@pytest.mark.slow
def test_the_machine_is_right_without_its_clocks():
    """And the plays above fail for no other reason."""
    assert not has_outcome(AssertionError, [NO_CLOCKS], seeds=40)


@pytest.mark.slow
def test_a_thread_of_its_own():
    """The same over the real thread, whose moments nobody chooses."""
    for seed in range(20):
        settings = {"owned": seed % 2 == 0, "buffer_size": 1 + seed % 3}
        one = Play(seed, ["cuda:0"], **settings)
        backend, source = one.backends["cuda:0"], one.sources[0]
        steps = (
            ReplicaLeaves(leaves=(source.leaves(value),), note=value, owned=one.owned)
            for value in torch.arange(40.0).view(20, 1, 2)
        )
        with mock.patch.object(prefetch, "backend_for", lambda _, backend=backend: backend):
            prefetcher = Prefetcher(
                steps, [torch.device("cuda:0")], buffer_size=one.buffer_size
            )
        seen = [
            (expected, one.machine.read(tensor, one.stream("cuda:0")))
            for step in prefetcher
            for leaf in step.leaves[0]
            for expected, tensor in parts_of(leaf, step.note)
        ]
        prefetcher.join()
        one.machine.finish()
        assert 100 == len(seen)
        assert all(torch.equal(expected, found) for expected, found in seen)
