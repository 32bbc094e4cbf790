"""Meshes of gloo ranks, sources that count how often they are read, and what a rank has got."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.distributed.device_mesh import init_device_mesh

import torch_distinput as tdi
from tests.distribute.street import shown

TWO_BY_TWO = ((2, 2), ("dp_shard", "tp"))
THREE_DIMENSIONS = ((2, 2, 2), ("dp_replicate", "dp_shard", "tp"))
TWO_BESIDE = ((2, 2, 2), ("dp", "cp", "tp"))


def strategy_on(shape, names, *, replicate_input="read", devices=("cpu",), **settings):
    """A strategy of this rank on a mesh of all ranks."""
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    return tdi.MultiWorkerMirroredStrategy(
        list(devices), device_mesh=mesh, replicate_input=replicate_input, **settings
    )


class Noted(torch.utils.data.Dataset):
    """Examples by index; each that is fetched is noted in a file that all ranks share."""

    def __init__(self, folder, count, broken=None):
        self.path, self.count, self.broken = Path(folder) / "fetched", count, broken

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index == self.broken:
            raise ValueError(f"example {index} is broken")
        note(self.path, index)
        return torch.tensor(index)


class NotedStream(torch.utils.data.IterableDataset):
    """The same without an index."""

    def __init__(self, folder, count, broken=None):
        self.path, self.count, self.broken = Path(folder) / "fetched", count, broken

    def __iter__(self):
        for index in range(self.count):
            if index == self.broken:
                raise ValueError(f"example {index} is broken")
            note(self.path, index)
            yield torch.tensor(index)


def note(path, index):
    with path.open("a") as file:  # a short line is written at once, whoever else writes
        file.write(f"{index}\n")


def fetched(folder):
    """How often each example was fetched, over all ranks."""
    return sorted(map(int, (Path(folder) / "fetched").read_text().split()))


def played(strategy, dataset, stop=None):
    """What this rank has got of an epoch, step by step, and everything that is told of it."""
    steps = []
    with iter(dataset) as iterator:
        for batch in iterator:
            told = iterator.last_step
            steps.append(
                (
                    shown(strategy, batch),
                    told.index,
                    told.num_examples,
                    told.local_counts,
                    [ids.tolist() for ids in strategy.local_results(told.ids)],
                    dataset.state_dict(),
                    str(iterator.element_spec),
                )
            )
            if len(steps) == stop:
                break
    return steps


def examples(steps):
    """The examples of steps."""
    return [x for batches, *_ in steps for batch in batches for x in batch]
