"""How long a training step takes with batches from the host, beside other inputs.

    python benchmarks/device.py [--quick] [--json] [--rounds 5]

Every contender gets the same batches of 64 MiB, in ordinary host memory, and feeds a step whose
kernel takes as long as a bare copy of a batch from pinned memory. The floor is the kernels alone:
nothing can be faster. Plain copies come after the kernel, so they take the sum. Without a GPU there
are no figures.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from measuring import OURS, Figure, command_line, is_installed, ratios, run, take_turns
from torch.utils.data import DataLoader, Dataset

import torch_distinput as tdi

cuda: Any = torch.cuda  # its stubs lack types
BATCH_BYTES = 64 << 20
STEPS = {"full": 100, "quick": 20, "tiny": 3}
TARGET = 1.03


class Batches(Dataset[torch.Tensor]):
    """Ready batches, over and over: no time goes into making them."""

    def __init__(self, num_steps: int) -> None:
        """Make a few, so that none stays in a cache."""
        self._made = [torch.full((BATCH_BYTES,), k, dtype=torch.uint8) for k in range(4)]
        self._num_steps = num_steps

    def __len__(self) -> int:
        return self._num_steps

    def __getitem__(self, number: int) -> torch.Tensor:
        if number >= self._num_steps:
            raise IndexError(number)
        return self._made[number % 4]


def loader(batches: Batches, *, pin_memory: bool = False) -> DataLoader[torch.Tensor]:
    """A DataLoader that hands the batches on as they are."""
    return DataLoader(batches, batch_size=None, pin_memory=pin_memory)


def plain(batches: Batches) -> Iterator[torch.Tensor]:
    """What scripts begin with."""
    for batch in loader(batches):
        yield batch.to("cuda")


def pinned(batches: Batches) -> Iterator[torch.Tensor]:
    """What the tutorials say."""
    for batch in loader(batches, pin_memory=True):
        yield batch.to("cuda", non_blocking=True)


def side_stream(batches: Batches) -> Iterator[torch.Tensor]:
    """The prefetcher of many training scripts: a side stream, one batch ahead, no thread."""
    stream = cuda.Stream()
    ahead = None
    for batch in loader(batches, pin_memory=True):
        with cuda.stream(stream):
            copied = batch.to("cuda", non_blocking=True)
        if ahead is not None:
            yield ahead
        cuda.current_stream().wait_stream(stream)
        copied.record_stream(cuda.current_stream())
        ahead = copied
    if ahead is not None:
        yield ahead


def accelerate(batches: Batches) -> Iterable[torch.Tensor]:
    """Hugging Face Accelerate's prepared loader."""
    from accelerate import Accelerator

    prepared: Iterable[torch.Tensor] = Accelerator().prepare(loader(batches, pin_memory=True))
    return prepared


def nodes(batches: Batches) -> Iterator[torch.Tensor]:
    """The nodes of torchdata."""
    from torchdata import nodes as tn

    node = tn.PinMemory(tn.IterableWrapper(loader(batches)))
    for batch in tn.Loader(node):
        yield batch.to("cuda", non_blocking=True)


def ours(batches: Batches) -> Iterable[torch.Tensor]:
    """This project, with its defaults."""

    def stream() -> Iterator[torch.Tensor]:
        yield from (batches[number] for number in range(len(batches)))

    dataset: Iterable[torch.Tensor] = tdi.OneDeviceStrategy("cuda").distribute_dataset(stream)
    return dataset


Contender = Callable[[Batches], Iterable[torch.Tensor]]


CONTENDERS: dict[str, Contender] = {
    OURS: ours,
    "DataLoader + .to": plain,
    "DataLoader(pin_memory) + non_blocking": pinned,
    "side stream, one ahead": side_stream,
    "torchdata nodes PinMemory": nodes,
    "accelerate": accelerate,
}
NEEDED = {"accelerate": "accelerate"}


def milliseconds(work: Callable[[], object]) -> float:
    """By the device's clock."""
    start, end = (cuda.Event(enable_timing=True) for _ in range(2))
    cuda.synchronize()
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def copy_milliseconds() -> float:
    """A bare copy from pinned memory."""
    source = torch.empty(BATCH_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(BATCH_BYTES, dtype=torch.uint8, device="cuda")
    target.copy_(source)
    return milliseconds(lambda: [target.copy_(source, non_blocking=True) for _ in range(10)]) / 10


def train(batches: Iterable[torch.Tensor], cycles: int) -> None:
    """A kernel for each batch."""
    for _ in batches:
        cuda._sleep(cycles)  # noqa: SLF001


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """All contenders, where there is a device."""
    if not cuda.is_available():
        print("No CUDA device is here: there is nothing to measure.", file=sys.stderr)
        return []
    steps, trial = STEPS[arguments.size], 10_000_000
    cuda._sleep(trial)  # noqa: SLF001
    per_trial = milliseconds(lambda: cuda._sleep(trial))  # noqa: SLF001
    cycles = int(trial * copy_milliseconds() / per_trial)
    batches = Batches(steps)

    def trained(make: Contender) -> Callable[[], None]:
        return lambda: train(make(batches), cycles)

    def kernels() -> None:
        for _ in range(steps):
            cuda._sleep(cycles)  # noqa: SLF001

    cases = {
        name: trained(make)
        for name, make in CONTENDERS.items()
        if is_installed(name, NEEDED.get(name))
    }
    turns = take_turns(kernels, cases, arguments.rounds, clock=lambda w: milliseconds(w) / 1000)
    return ratios("steps on a GPU", turns, target=TARGET, count=steps, per="step")


if __name__ == "__main__":
    run(measure, command_line(__doc__).parse_args())
