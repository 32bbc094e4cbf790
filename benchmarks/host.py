"""Examples in memory: one shuffled epoch, from the order to batches in host memory.

    python benchmarks/host.py [--quick] [--json] [--rounds 5]

There are three workloads. *tensors*: 200,000 rows of 64 float32 with a label, in global batches of
1,024. *images*: 20,000 of 3 x 64 x 64 bytes with a label, in the same batches. *Python examples*:
100,000 from a ``__getitem__`` that returns ``row * 2 + 1`` and a label, in batches of 256. The
floor of the first two draws a permutation and gathers into two buffers used in turn. The floor of
the third is a plain loop over the examples with one ``np.stack`` per batch, in one process.

Peers get the best setup that we know: for tensors and images a dataset that fetches *by batch*
(``__getitems__``). DataLoader is also measured without it, as most scripts use it. For Python
examples all contenders have the floor's own collate function, and loader processes that outlive an
epoch.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from measuring import OURS, Figure, command_line, installed, ranks_named, ratios, run, take_turns
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    TensorDataset,
)

import torch_distinput as tdi

COLUMN_BATCH, PYTHON_BATCH = 1024, 256
COUNTS = {
    "tensors": {"full": 200_000, "quick": 100_000, "tiny": 3000},
    "images": {"full": 20_000, "quick": 10_000, "tiny": 1100},
    "Python examples": {"full": 100_000, "quick": 30_000, "tiny": 600},
}
COLUMN_TARGETS = {"tensors": 1.25, "images": 1.1}
PYTHON_TARGETS = {0: 1.02, 2: 0.75}

Batches = Callable[[], Iterable[Any]]
"""Starts an epoch."""


class Epochs:
    """Plays an epoch at a time."""

    def __init__(self, batches: Batches, sampler: DistributedSampler[Any] | None = None) -> None:
        """Take what starts an epoch, and what must be told its number."""
        self._batches = batches
        self._sampler = sampler
        self.counts: list[int] = []

    def __call__(self) -> None:
        """Play one, and note how many examples came."""
        if self._sampler is not None:
            self._sampler.set_epoch(len(self.counts))
        self.counts.append(sum(len(labels) for _, labels in self._batches()))


def check(cases: Mapping[str, Epochs], expected: int) -> None:
    """Nobody was fast by leaving examples out; accelerate repeats some."""
    for name, epochs in cases.items():
        least, most = min(epochs.counts), max(epochs.counts)
        if least < expected or (name == OURS and most > expected):
            raise SystemExit(f"{name} delivered {least} to {most} examples instead of {expected}")


# ------------------------------------------------------------------------------ tensors, images


@dataclass(frozen=True)
class Columns(Dataset[Any]):
    """A tensor of examples with their labels; fetched by the batch."""

    examples: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        return self.examples[index], self.labels[index]

    def __getitems__(self, indices: Sequence[int]) -> Any:
        chosen = torch.as_tensor(indices)
        return self.examples.index_select(0, chosen), self.labels.index_select(0, chosen)


def columns(name: str, size: str) -> Columns:
    """The data of a workload; the same in every run."""
    count, source = COUNTS[name][size], np.random.default_rng(0)
    if name == "tensors":
        examples = torch.from_numpy(source.standard_normal((count, 64), dtype=np.float32))
    else:
        images = source.integers(0, 255, (count, 3, 64, 64), dtype=np.uint8)
        examples = torch.from_numpy(images)
    return Columns(examples, torch.arange(count))


def rank_and_world() -> tuple[int, int]:
    """Which rank this is, of how many."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def column_floor(data: Columns) -> Callable[[], int]:
    """A permutation, and a gather of both columns into buffers that no batch has to allocate."""
    rank, world = rank_and_world()
    size = COLUMN_BATCH // world
    pair = [
        [column.new_zeros((size, *column.shape[1:])) for column in (data.examples, data.labels)]
        for _ in range(2)
    ]

    def epoch() -> int:
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
        mine = order[rank::world].contiguous()
        for number, chosen in enumerate(torch.split(mine, size)):
            examples, labels = pair[number % 2]
            torch.index_select(data.examples, 0, chosen, out=examples[: len(chosen)])
            torch.index_select(data.labels, 0, chosen, out=labels[: len(chosen)])
        return len(mine)

    return epoch


def our_columns(data: Columns) -> Epochs:
    """What a user writes."""
    strategy = tdi.MultiWorkerMirroredStrategy(["cpu"])
    dataset = strategy.distribute_dataset(
        (data.examples, data.labels), global_batch_size=COLUMN_BATCH, shuffle=True
    )
    return Epochs(lambda: dataset)


def as_it_is(batch: Any) -> Any:
    """Collate nothing: the dataset has made the batch."""
    return batch


def sampler_of(data: Columns) -> DistributedSampler[Any]:
    """How peers deal out examples."""
    rank, world = rank_and_world()
    return DistributedSampler(data, num_replicas=world, rank=rank)


def torch_plain(data: Columns) -> Epochs:
    """Example by example, and torch's default_collate."""
    sampler = sampler_of(data)
    size = COLUMN_BATCH // rank_and_world()[1]
    loader = DataLoader(TensorDataset(data.examples, data.labels), size, sampler=sampler)
    return Epochs(lambda: loader, sampler)


def torch_by_batch(data: Columns) -> Epochs:
    """The dataset fetches whole batches."""
    sampler = sampler_of(data)
    size = COLUMN_BATCH // rank_and_world()[1]
    loader = DataLoader(data, size, sampler=sampler, collate_fn=as_it_is)
    return Epochs(lambda: loader, sampler)


def stateful_by_batch(data: Columns) -> Epochs:
    """The same, and its state could be saved."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    sampler = sampler_of(data)
    size = COLUMN_BATCH // rank_and_world()[1]
    loader = StatefulDataLoader(data, size, sampler=sampler, collate_fn=as_it_is)
    return Epochs(lambda: loader, sampler)


def nodes_by_batch(data: Columns) -> Epochs:
    """Nodes of torchdata over lists of indices."""
    from torchdata import nodes

    sampler = sampler_of(data)
    size = COLUMN_BATCH // rank_and_world()[1]
    indices = nodes.Batcher(nodes.SamplerWrapper(sampler), size, drop_last=False)
    loader = nodes.Loader(nodes.Mapper(indices, data.__getitems__))
    return Epochs(lambda: loader, sampler)


def accelerate_by_batch(data: Columns) -> Epochs:
    """Its shards of the global batch sampler; it fills the last batch up by repetition."""
    loader = DataLoader(data, COLUMN_BATCH, shuffle=True, collate_fn=as_it_is)
    prepared = accelerated(loader)
    return Epochs(lambda: prepared)


def accelerated(loader: DataLoader[Any]) -> Iterable[Any]:
    """Prepare a DataLoader that has the global batch size."""
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    configuration = DataLoaderConfiguration(split_batches=True, dispatch_batches=False)
    accelerator = Accelerator(cpu=True, dataloader_config=configuration)
    prepared: Iterable[Any] = accelerator.prepare_data_loader(loader)
    return prepared


COLUMN_CASES: dict[str, Callable[[Columns], Epochs]] = {
    OURS: our_columns,
    "DataLoader": torch_plain,
    "DataLoader, by batch": torch_by_batch,
    "StatefulDataLoader, by batch": stateful_by_batch,
    "torchdata nodes, by batch": nodes_by_batch,
    "accelerate, by batch": accelerate_by_batch,
}


def measure_columns(name: str, arguments: argparse.Namespace) -> list[Figure]:
    """One workload of tensors."""
    data = columns(name, arguments.size)
    cases = installed(COLUMN_CASES, data)
    turns = take_turns(column_floor(data), cases, arguments.rounds)
    check(cases, len(data) // rank_and_world()[1])
    workload = f"{name}, {ranks_named()}"
    return ratios(workload, turns, target=COLUMN_TARGETS[name], count=len(data))


# ------------------------------------------------------------------------------ Python examples


class PythonExamples(Dataset[Any]):
    """What most datasets are: a method that makes one example."""

    def __init__(self, count: int) -> None:
        self._rows = np.random.default_rng(0).standard_normal((count, 64), dtype=np.float32)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self._rows[index] * 2 + 1, int(index)


def stacked(examples: Sequence[tuple[Any, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """The least that makes a batch of such examples."""
    rows, labels = zip(*examples, strict=True)
    return torch.from_numpy(np.stack(rows)), torch.tensor(labels)


def python_floor(data: PythonExamples) -> Callable[[], int]:
    """A loop."""

    def epoch() -> int:
        order = np.random.default_rng(0).permutation(len(data)).tolist()
        starts = range(0, len(order), PYTHON_BATCH)
        chosen = (order[start : start + PYTHON_BATCH] for start in starts)
        return sum(len(stacked([data[index] for index in some])[1]) for some in chosen)

    return epoch


def options(processes: int) -> dict[str, Any]:
    """What every loader gets."""
    return {
        "collate_fn": stacked, "num_workers": processes, "persistent_workers": processes > 0
    }  # fmt: skip


def loader_of(data: PythonExamples, processes: int) -> DataLoader[Any]:
    """What a script has, with the global batch size."""
    return DataLoader(data, PYTHON_BATCH, shuffle=True, **options(processes))


def our_python(data: PythonExamples, processes: int) -> Epochs:
    """What a user writes."""
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(loader_of(data, processes))
    return Epochs(lambda: dataset)


def torch_python(data: PythonExamples, processes: int) -> Epochs:
    """DataLoader."""
    loader = loader_of(data, processes)
    return Epochs(lambda: loader)


def stateful_python(data: PythonExamples, processes: int) -> Epochs:
    """StatefulDataLoader."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = StatefulDataLoader(data, PYTHON_BATCH, shuffle=True, **options(processes))
    return Epochs(lambda: loader)


def nodes_python(data: PythonExamples, processes: int) -> Epochs:
    """Nodes of torchdata; with two threads where the others have two loader processes."""
    from torchdata import nodes

    def batch_of(indices: Sequence[int]) -> Any:
        return stacked([data[index] for index in indices])

    sampler: Sampler[int] = RandomSampler(data)
    indices = nodes.Batcher(nodes.SamplerWrapper(sampler), PYTHON_BATCH, drop_last=False)
    if processes:
        batches = nodes.ParallelMapper(indices, batch_of, num_workers=processes, method="thread")
    else:
        batches = nodes.Mapper(indices, batch_of)
    loader = nodes.Loader(batches)
    return Epochs(lambda: loader)


def accelerate_python(data: PythonExamples, processes: int) -> Epochs:
    """Its wrapper around a DataLoader."""
    loader = accelerated(loader_of(data, processes))
    return Epochs(lambda: loader)


PYTHON_CASES: dict[str, Callable[[PythonExamples, int], Epochs]] = {
    OURS: our_python,
    "DataLoader": torch_python,
    "StatefulDataLoader": stateful_python,
    "torchdata nodes, threads": nodes_python,
    "accelerate": accelerate_python,
}


def measure_python(processes: int, arguments: argparse.Namespace) -> list[Figure]:
    """Python examples, in this process or in loader processes."""
    data = PythonExamples(COUNTS["Python examples"][arguments.size])
    cases = installed(PYTHON_CASES, data, processes)
    turns = take_turns(python_floor(data), cases, arguments.rounds)
    check(cases, len(data))
    workload = f"Python examples, {processes} loader processes"
    return ratios(workload, turns, target=PYTHON_TARGETS[processes], count=len(data))


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """All workloads with one rank; those of tensors with more."""
    work = [partial(measure_columns, name) for name in COLUMN_TARGETS]
    if not dist.is_initialized():
        work += [partial(measure_python, processes) for processes in PYTHON_TARGETS]
    return [figure for one in work for figure in one(arguments)]


if __name__ == "__main__":
    run(measure, command_line(__doc__).parse_args(), num_ranks=(1, 2))
