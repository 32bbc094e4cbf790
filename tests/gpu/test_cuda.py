"""What only a CUDA device can show: values, overlap of streams, devices."""

from __future__ import annotations

import pytest
import torch

import torch_distinput as tdi

pytestmark = pytest.mark.gpu


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
