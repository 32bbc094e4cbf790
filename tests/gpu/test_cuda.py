"""What only a CUDA device can show: values, races that are forced, devices, peers beside it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap

import pytest
import torch

import torch_distinput as tdi
from torch_distinput.device.backend import host_memory
from torch_distinput.device.prefetch import Prefetcher, ReplicaLeaves

pytestmark = pytest.mark.gpu

LONG_CYCLES = 20_000_000  # about 10 ms on any of today's devices


@pytest.mark.parametrize("buffer_size", [0, 1, 3])
def test_values_arrive_whole(buffer_size):
    """Large batches, read by kernels right after ``next`` while more are being copied."""
    data = torch.arange(64 * 1000, dtype=torch.float32).reshape(64, 1000)
    strategy = tdi.OneDeviceStrategy("cuda")
    options = tdi.InputOptions(per_replica_buffer_size=buffer_size)
    sums = []
    for batch in strategy.distribute_dataset(data, global_batch_size=4, options=options):
        assert "cuda" == batch.device.type
        torch.cuda._sleep(1_000_000)
        sums.append(batch.sum(dtype=torch.float64))
        del batch  # its memory may be reused as soon as the sum is done, not before
    expected = data.double().reshape(16, -1).sum(1)
    assert torch.equal(expected, torch.stack(sums).cpu())


@pytest.mark.parametrize("pinned", [False, True])
def test_a_buffer_that_is_written_again(pinned):
    """Its copy may be under way when the source goes on."""

    def stream():
        buffer = torch.empty(1 << 20, pin_memory=pinned)
        for number in range(20):
            yield buffer.fill_(number)

    strategy = tdi.OneDeviceStrategy("cuda")
    means = [batch.mean().item() for batch in strategy.distribute_dataset(stream)]
    assert list(range(20)) == means


def test_packed_strings():
    """Their tensors are there; a slice brings its own bytes, and rows that are None stay so."""
    texts = [None if number % 7 == 3 else f"{number} " * (number % 50) for number in range(400)]
    packed = tdi.PackedStrings.from_list(texts)
    seen = []
    for batch in tdi.OneDeviceStrategy("cuda").distribute_dataset(packed, global_batch_size=64):
        assert {"cuda"} == {tensor.device.type for tensor in batch.tensors()}
        assert batch.num_bytes() == batch.data.shape[0]
        seen += [batch[0], *batch[1:].to_list()[::-1]]
    assert sorted(map(str, texts)) == sorted(map(str, seen))


def test_batches_of_the_device_itself():
    """Views, and what was computed there."""

    def stream():
        for number in range(4):
            yield torch.full((1, 3), number, device="cuda").expand(2, 3) + 0
            yield torch.full((1, 3), number).expand(2, 3)

    strategy = tdi.OneDeviceStrategy("cuda")
    sums = [batch.sum().item() for batch in strategy.distribute_dataset(stream)]
    assert [6 * number for number in range(4) for _ in range(2)] == sums


def test_several_replicas_on_one_device():
    """Logical replicas, zero rows included."""
    strategy = tdi.MirroredStrategy(["cuda:0"] * 3)
    steps = [
        [b.tolist() for b in strategy.local_results(step)]
        for step in strategy.distribute_dataset(range(5), global_batch_size=4)
    ]
    assert [[[0, 1], [2, 3], []], [[4], [], []]] == steps


def test_host_memory_on_request():
    """``fetch_to_device=False``."""
    strategy = tdi.OneDeviceStrategy("cuda")
    options = tdi.InputOptions(fetch_to_device=False)
    (batch,) = strategy.distribute_dataset(range(2), global_batch_size=2, options=options)
    assert "cpu" == batch.device.type


class TestForcedRaces:
    """Streams held up by a kernel that sleeps: a missing wait would show in the values."""

    SIZE = 1 << 20

    def prefetcher(self, steps, buffer_size):
        return Prefetcher(iter(steps), [torch.device("cuda:0")], buffer_size=buffer_size)

    @pytest.mark.parametrize("buffer_size", [0, 1, 3])
    def test_the_side_stream_is_late(self, buffer_size):
        """The consumer reads at once; the host writes the next step at once."""
        buffer = torch.empty(self.SIZE)

        def steps():
            for number in range(12):
                with one._copies._accelerators[0]._side:
                    torch.cuda._sleep(LONG_CYCLES)
                yield ReplicaLeaves(leaves=([buffer.fill_(number)],), note=number)

        one = self.prefetcher((), buffer_size)
        one._copies._steps = steps()
        means = [(step.note, step.leaves[0][0].mean()) for step in one]
        assert list(range(12)) == [int(mean.item()) for _, mean in means]

    @pytest.mark.parametrize("buffer_size", [0, 1, 3])
    @pytest.mark.parametrize("owned", [False, True])
    def test_the_consumer_is_late(self, buffer_size, owned):
        """It lets go of each batch while kernels that read it have not begun."""
        pinned = host_memory([torch.device("cuda:0")])

        def steps():
            for number in range(12):
                values = pinned(4 * self.SIZE).view(torch.float32).fill_(number)
                yield ReplicaLeaves(leaves=([values],), note=number, owned=owned)

        other = torch.cuda.Stream()
        means = []
        with torch.cuda.stream(other):
            for step in self.prefetcher(steps(), buffer_size):
                torch.cuda._sleep(LONG_CYCLES)
                means.append(step.leaves[0][0].mean())
                del step
        torch.cuda.synchronize()
        assert list(range(12)) == [int(mean.item()) for mean in means]

    def test_the_producer_is_late(self):
        """What the source computes on the device, in the buffer of the step before."""

        def steps():
            buffer = torch.empty(self.SIZE, device="cuda")
            for number in range(12):
                torch.cuda._sleep(LONG_CYCLES)
                yield ReplicaLeaves(leaves=([buffer.fill_(number)],), note=number)

        other = torch.cuda.Stream()
        with torch.cuda.stream(other):
            means = [step.leaves[0][0].mean() for step in self.prefetcher(steps(), 2)]
        torch.cuda.synchronize()
        assert list(range(12)) == [int(mean.item()) for mean in means]

    def test_a_user_may_keep_every_batch(self):
        """None changes while later ones are copied."""
        steps = [
            ReplicaLeaves(leaves=([torch.full((self.SIZE,), float(number))],))
            for number in range(8)
        ]
        kept = [step.leaves[0][0] for step in self.prefetcher(steps, 3)]
        assert list(range(8)) == [int(batch.mean().item()) for batch in kept]


def test_kinds_of_leaves():
    """Memory formats, dtypes, jagged leaves, no rows, and what stays on the host."""
    jagged = torch.nested.nested_tensor([torch.ones(2, 3), torch.zeros(1, 3)], layout=torch.jagged)
    images = torch.rand(4, 3, 8, 8).to(memory_format=torch.channels_last)
    leaves = [images, torch.ones(3, dtype=torch.bfloat16), jagged, torch.empty(0, 7), ["a"], None]
    steps = [ReplicaLeaves(leaves=(leaves,))]
    (step,) = Prefetcher(iter(steps), [torch.device("cuda:0")], buffer_size=1)
    moved = step.leaves[0]
    assert ["cuda"] * 4 == [leaf.device.type for leaf in moved[:4]]
    assert moved[0].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images, moved[0].cpu())
    assert torch.bfloat16 is moved[1].dtype
    assert torch.equal(jagged.values(), moved[2].values().cpu())
    assert (0, 7) == moved[3].shape
    assert leaves[4:] == moved[4:]


def test_no_memory_is_left():
    """Device memory is back at where it was when iterators are left in the middle."""
    strategy = tdi.OneDeviceStrategy("cuda:0")
    dataset = strategy.distribute_dataset(torch.rand(64, 1 << 12), global_batch_size=4)
    for _ in dataset:
        break
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for _ in range(50):
        for _ in dataset:
            break
    gc.collect()
    torch.cuda.synchronize()
    assert before[0] >= torch.cuda.memory_allocated()
    assert before[1] >= torch.cuda.memory_reserved() - (2 << 20)


@pytest.mark.filterwarnings("default")  # of the compiler, about settings that it would like
def test_a_compiled_step():
    """Addresses differ from step to step; shapes do not, so it is compiled once."""
    step = torch.compile(lambda batch: (batch * 2).sum(), fullgraph=True)
    strategy = tdi.OneDeviceStrategy("cuda:0")
    dataset = strategy.distribute_dataset(torch.ones(32, 8), global_batch_size=4)
    assert [64.0] * 8 == [step(batch).item() for batch in dataset]


def test_a_captured_step():
    """The graph reads a tensor of its own; each batch is copied there before it is replayed."""
    strategy = tdi.OneDeviceStrategy("cuda:0")
    dataset = strategy.distribute_dataset(torch.arange(32.0).view(32, 1), global_batch_size=4)
    static = torch.zeros(4, 1, device="cuda:0")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total = static.sum()
    totals = []
    for batch in dataset:
        static.copy_(batch)
        graph.replay()
        totals.append(total.item())
    assert torch.arange(32.0).view(8, 4).sum(1).tolist() == totals


SCRIPT = """
import torch
import torch_distinput as tdi

for buffer_size in (0, 2):
    options = tdi.InputOptions(per_replica_buffer_size=buffer_size)
    strategy = tdi.OneDeviceStrategy("cuda:0")
    data = torch.arange(4096.0).view(64, 64)
    dataset = strategy.distribute_dataset(data, global_batch_size=4, options=options)
    for epoch in range(2):
        total = 0.0
        for batch in dataset:
            total += (batch * 1.0).sum().item()
        assert total == data.sum().item(), total
"""


def test_the_sanitizer_finds_nothing():
    """Torch's own detector of unsynchronized accesses; it sees the thread that it is made in."""
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        env={**os.environ, "TORCH_CUDA_SANITIZER": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "data race" not in result.stderr
