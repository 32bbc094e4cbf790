"""How long a training step takes with batches from the host, beside what others do.

    python benchmarks/device.py [--quick] [--json] [--mebibytes 64]

Every contender gets the same batches, in ordinary host memory, and feeds a step whose kernel takes
as long as a bare copy of a batch from pinned memory. One number each: ms per step, the median over
rounds in which the contenders take turns. Nothing can be below the kernel's time; plain copies
come after the kernel, so they take the sum. Contenders that are not installed are left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import torch_distinput as tdi

Contender = Callable[[], Iterable[torch.Tensor]]


class Batches(Dataset[torch.Tensor]):
    """Ready batches, over and over: no time goes into making them."""

    def __init__(self, num_steps: int, num_bytes: int) -> None:
        """Make a few, so that none stays in a cache."""
        self._made = [torch.full((num_bytes,), k, dtype=torch.uint8) for k in range(4)]
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
    stream = torch.cuda.Stream()
    ahead = None
    for batch in loader(batches, pin_memory=True):
        with torch.cuda.stream(stream):
            copied = batch.to("cuda", non_blocking=True)
        if ahead is not None:
            yield ahead
        torch.cuda.current_stream().wait_stream(stream)
        copied.record_stream(torch.cuda.current_stream())
        ahead = copied
    if ahead is not None:
        yield ahead


def accelerate(batches: Batches) -> Iterable[torch.Tensor]:
    """Hugging Face Accelerate's prepared loader."""
    from accelerate import Accelerator  # type: ignore[import-not-found]  # noqa: PLC0415

    prepared: Iterable[torch.Tensor] = Accelerator().prepare(loader(batches, pin_memory=True))
    return prepared


def nodes(batches: Batches) -> Iterator[torch.Tensor]:
    """The nodes of torchdata."""
    from torchdata import nodes as tn  # noqa: PLC0415

    node = tn.PinMemory(tn.IterableWrapper(loader(batches)))
    for batch in tn.Loader(node):
        yield batch.to("cuda", non_blocking=True)


def ours(batches: Batches) -> Iterable[torch.Tensor]:
    """This project, with its defaults."""

    def stream() -> Iterator[torch.Tensor]:
        yield from (batches[number] for number in range(len(batches)))

    dataset: Iterable[torch.Tensor] = tdi.OneDeviceStrategy("cuda").distribute_dataset(stream)
    return dataset


def contenders(batches: Batches) -> dict[str, Contender]:
    """By name, those that are installed."""
    found: dict[str, Contender] = {
        "DataLoader + .to": lambda: plain(batches),
        "DataLoader(pin_memory) + non_blocking": lambda: pinned(batches),
        "side stream, one ahead": lambda: side_stream(batches),
        "torchdata nodes PinMemory": lambda: nodes(batches),
        "torch_distinput": lambda: ours(batches),
    }
    if importlib.util.find_spec("accelerate"):
        found["accelerate"] = lambda: accelerate(batches)
    return found


def milliseconds(work: Callable[[], object]) -> float:
    """By the device's clock."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def copy_milliseconds(num_bytes: int) -> float:
    """A bare copy from pinned memory."""
    source = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(num_bytes, dtype=torch.uint8, device="cuda")
    target.copy_(source)
    return milliseconds(lambda: [target.copy_(source, non_blocking=True) for _ in range(10)]) / 10


def train(batches: Iterable[torch.Tensor], cycles: int) -> None:
    """A kernel for each batch."""
    for _ in batches:
        torch.cuda._sleep(cycles)  # noqa: SLF001


def measure(num_steps: int, num_bytes: int, rounds: int) -> dict[str, Any]:
    """All figures."""
    copy = copy_milliseconds(num_bytes)
    torch.cuda._sleep(1_000_000)  # noqa: SLF001
    trial = milliseconds(lambda: torch.cuda._sleep(10_000_000))  # noqa: SLF001
    cycles = int(10_000_000 * copy / trial)
    found = contenders(Batches(num_steps, num_bytes))
    times: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(rounds + 1):
        for name, make in found.items():
            times[name].append(milliseconds(lambda make=make: train(make(), cycles)) / num_steps)
    return {
        "bytes_per_step": num_bytes,
        "copy_ms": round(copy, 4),
        "kernel_ms": round(copy, 4),
        # The first round warms caches and pools up.
        "step_ms": {name: round(statistics.median(t[1:]), 4) for name, t in times.items()},
    }


def table(figures: dict[str, Any]) -> str:
    """The figures as a table."""
    lines = ["| input | ms per step | x kernel |", "|---|---:|---:|"]
    for name, step in figures.get("step_ms", {}).items():
        lines.append(f"| {name} | {step:.3f} | {step / figures['kernel_ms']:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps and rounds")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--mebibytes", type=int, default=64, help="size of a batch")
    args = parser.parse_args()
    figures: dict[str, Any] = {}
    if torch.cuda.is_available():
        steps, rounds = (20, 2) if args.quick else (100, 7)
        figures = measure(steps, args.mebibytes << 20, rounds)
    elif not args.json:
        print("No CUDA device is here: there is nothing to measure.")
    print(json.dumps(figures) if args.json else table(figures))


if __name__ == "__main__":
    main()
