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
