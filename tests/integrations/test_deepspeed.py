"""The examples for DeepSpeed: every row once, and the gradients of one process, by torchrun."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

import torch_distinput as tdi
from tests.commands import output_of

EXAMPLES = Path(__file__).parents[2] / "examples"
ROWS, GROUP = 41, 12


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Where DeepSpeed builds its collectives, once for all tests.

    In the user's own cache, the lock of a build that was killed would let all later ones wait.
    """
    return tmp_path_factory.mktemp("built")


@pytest.fixture(autouse=True)
def on_cpus(monkeypatch, built):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(built))


def run(num_ranks, script, *arguments):
    """What rank 0 has printed: the examples that were trained, and what follows from them."""
    torchrun = ("torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}")
    command = [sys.executable, "-m", *torchrun, str(EXAMPLES / script), *map(str, arguments)]
    printed = output_of(command)
    (line,) = [line for line in printed.splitlines() if line.startswith('{"trained"')]
    return json.loads(line)


def train_alone(make_model, learning_rate):
    """The losses of one process that takes each group as one batch, and its first weights."""
    torch.manual_seed(0)
    features = torch.randn(ROWS, 4)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(
        (features, features.sum(1, keepdim=True)), global_batch_size=GROUP, shuffle=True, seed=0
    )
    losses = []
    for x, y in dataset:
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, next(model.parameters()).flatten().tolist()


def linear():
    return torch.nn.Linear(4, 1)


def two_layers():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))


@pytest.mark.parametrize(("num_ranks", "zero_stage"), [(2, 2), (3, 0)])
def test_an_epoch_goes_on_behind_a_checkpoint(num_ranks, zero_stage, tmp_path):
    """On as many ranks and on others, and ends with the weights of one process.

    The last group has two steps of three, and the last of them one example, on one rank.
    """
    arguments = ["train_deepspeed.py", "--folder", tmp_path, "--zero-stage", zero_stage]
    begun = run(2, *arguments, "--stop-after", 2)
    rest = run(num_ranks, *arguments)
    assert 2 * GROUP == len(begun["trained"])
    assert list(range(ROWS)) == sorted(begun["trained"] + rest["trained"])
    _, weights = train_alone(linear, 0.1)
    assert pytest.approx(weights, abs=1e-6) == rest["weights"]


def test_a_pipeline_ends_on_a_whole_group():
    """Two stages of two ranks; the loss of each step is that of one process."""
    piped = run(4, "train_deepspeed_pipeline.py")
    assert list(range(ROWS)) == sorted(piped["trained"])
    losses, _ = train_alone(two_layers, 0.01)
    assert pytest.approx(losses, abs=1e-5) == piped["losses"]

