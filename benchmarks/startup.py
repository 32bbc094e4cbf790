"""From the start of a script to its first batch, imports included.

    python benchmarks/startup.py [--quick] [--json] [--rounds 5]

Each turn is a new Python process that imports what it needs and takes 256 of 100,000 shuffled rows.
The clock starts when Python is up. The floor imports torch and gathers the rows by hand.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial

from measuring import OURS, Figure, command_line, is_installed, ratios, run, take_turns

TARGET = 1.15
ROUNDS = {"full": 9, "quick": 3, "tiny": 1}

START = "import time; start = time.perf_counter()\nimport torch\ntorch.set_num_threads(1)\n"
DATA = "data = torch.zeros(100_000, 64)\n"
END = "assert len(batch) == 256; print(time.perf_counter() - start)"
FLOOR = "batch = data[torch.randperm(len(data))[:256]]\n"
LOADER = "batch = next(iter({name}(data, 256, shuffle=True)))\n"
CASES = {
    OURS: """
import torch_distinput as tdi
dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(data, global_batch_size=256, shuffle=True)
with iter(dataset) as iterator:
    batch = next(iterator)
""",
    "DataLoader": "from torch.utils.data import DataLoader\n" + LOADER.format(name="DataLoader"),
    "StatefulDataLoader": "from torchdata.stateful_dataloader import StatefulDataLoader\n"
    + LOADER.format(name="StatefulDataLoader"),
    "torchdata nodes": """
from torchdata import nodes
from torch.utils.data import RandomSampler
indices = nodes.Batcher(nodes.SamplerWrapper(RandomSampler(data)), 256)
batch = next(iter(nodes.Loader(nodes.Mapper(indices, data.__getitem__))))
""",
    "accelerate": """
from accelerate import Accelerator
from torch.utils.data import DataLoader
loader = Accelerator(cpu=True).prepare_data_loader(DataLoader(data, 256, shuffle=True))
batch = next(iter(loader))
""",
}
NEEDED = {
    "StatefulDataLoader": "torchdata", "torchdata nodes": "torchdata", "accelerate": "accelerate"
}  # fmt: skip


def first_batch(code: str) -> float:
    """Seconds in a new process, which finds all modules compiled, but perhaps in the first turn."""
    command = [sys.executable, "-W", "ignore", "-c", START + DATA + code + END]
    compiling = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}  # pip has compiled those of the peers
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=compiling)
    return float(done.stdout)


def own_clock(turn: Callable[[], float]) -> float:
    """The process has measured itself."""
    return turn()


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """All that are installed."""
    cases = {}
    for name, code in CASES.items():
        measured = arguments.size != "tiny" or name == OURS
        if is_installed(name, NEEDED.get(name)) and measured:
            cases[name] = partial(first_batch, code)
    floor = partial(first_batch, FLOOR)
    turns = take_turns(floor, cases, arguments.rounds, clock=own_clock)
    return ratios("start-up", turns, target=TARGET, count=1, per="process")


if __name__ == "__main__":
    run(measure, command_line(__doc__, rounds=ROUNDS).parse_args())
