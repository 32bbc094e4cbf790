"""Training with collectives beside the copies: NCCL with one rank, gloo with two on one device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

SCRIPT = """
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torch_distinput as tdi

torch.cuda.set_device(0)
dist.init_process_group(sys.argv[1])
strategy = tdi.MultiWorkerMirroredStrategy(["cuda:0"])
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 1).cuda(), device_ids=[0])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.arange(640.0).view(80, 8) / 640
dataset = strategy.distribute_dataset(data, global_batch_size=8)
seen = 0
for epoch in range(3):
    for batch in dataset:
        losses = model(batch).square().sum(1)
        loss, alike = tdi.compute_average_loss(losses), torch.full_like(losses, 0.5)
        by_weight = tdi.compute_average_loss(losses.detach(), weights=alike)
        torch.testing.assert_close(by_weight, loss.detach())
        optimizer.zero_grad()
        (loss * strategy.num_workers).backward()
        optimizer.step()
        seen += len(batch)
assert seen * strategy.num_workers == 240, seen
weights = torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()
if dist.get_rank() == 0:
    print("weights", *weights.tolist())
del model
dist.destroy_process_group()
"""


def weights_of(folder: Path, backend: str, num_ranks: int) -> list[float]:
    """Train on one device; the weights that rank 0 prints."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
    result = subprocess.run(
        [sys.executable, *command, str(script), backend],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("weights")]
    return [float(word) for word in line.split()[1:]]


def test_ranks_train_like_one_process(tmp_path):
    """The same weights from one NCCL rank and from two gloo ranks that share a device."""
    alone = weights_of(tmp_path, "nccl", 1)
    assert alone == pytest.approx(weights_of(tmp_path, "gloo", 2), abs=1e-5)
