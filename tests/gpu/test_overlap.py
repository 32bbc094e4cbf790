"""How long a step takes, by the device's clock: the longer of compute and copy, not their sum."""

from __future__ import annotations

import statistics

import pytest
import torch

from torch_distinput.device.backend import host_memory
from torch_distinput.device.prefetch import Prefetcher, ReplicaLeaves

pytestmark = pytest.mark.gpu

NUM_STEPS = 30
ROWS = 64 << 20  # bytes a step: some ms on any bus, far above what a launch costs
CUDA = torch.device("cuda:0") if torch.cuda.is_available() else torch.device("cpu")


def milliseconds(work) -> float:
    """By events around it on the current stream; the median of five, after one to warm up."""
    times = []
    for _ in range(6):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[1:])


@pytest.fixture(scope="module")
def buffers():
    """Pinned memory of the source."""
    pinned = host_memory([CUDA])
    return [pinned(ROWS).fill_(number) for number in range(4)]


@pytest.fixture(scope="module")
def copying(buffers) -> float:
    """A bare pinned copy, in ms: what all copies are measured by."""
    target = torch.empty(ROWS, dtype=torch.uint8, device=CUDA)

    def copies():
        for number in range(NUM_STEPS):
            target.copy_(buffers[number % 4], non_blocking=True)

    return milliseconds(copies) / NUM_STEPS


def cycles_for(target_ms: float) -> int:
    """How long a kernel has to sleep."""
    trial = 10_000_000
    return int(trial * target_ms / milliseconds(lambda: torch.cuda._sleep(trial)))


def prefetched(buffers, cycles):
    steps = (
        ReplicaLeaves(leaves=([buffers[number % 4]],), owned=True) for number in range(NUM_STEPS)
    )
    prefetcher = Prefetcher(steps, [CUDA], buffer_size=2)
    for _ in prefetcher:
        if cycles:
            torch.cuda._sleep(cycles)
    prefetcher.join()


@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
def test_copies_overlap_the_step(buffers, copying, ratio):
    """At most 1.03 of the longer of the two, beside what the first copy takes alone.

    Plain ``.to(non_blocking=True)`` on the same stream takes their sum.
    """
    cycles = cycles_for(ratio * copying)
    compute = milliseconds(lambda: [torch.cuda._sleep(cycles) for _ in range(NUM_STEPS)])
    longer = max(compute, copying * NUM_STEPS)
    first_or_last = min(compute / NUM_STEPS, copying)  # a pipeline fills, or empties, once
    found = milliseconds(lambda: prefetched(buffers, cycles))

    def plain():
        for number in range(NUM_STEPS):
            buffers[number % 4].to(CUDA, non_blocking=True)
            torch.cuda._sleep(cycles)

    assert found - first_or_last <= 1.03 * longer
    assert milliseconds(plain) >= 0.97 * (compute + copying * NUM_STEPS)


def test_copies_run_at_the_speed_of_the_bus(buffers, copying):
    """At least 95 % of the throughput of bare copies from pinned memory."""
    found = milliseconds(lambda: prefetched(buffers, 0)) / NUM_STEPS
    assert copying / found >= 0.95
