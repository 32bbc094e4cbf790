"""Loaders as people write them, and stand-ins for what frameworks make of them."""

from __future__ import annotations

from itertools import islice
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Sampler,
    get_worker_info,
)


class Numbers(Dataset):
    """A map-style dataset that notes what it is asked."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        self.asked.append(index)
        return torch.tensor([index])


class Stream(IterableDataset):
    """Yields all of its numbers in every process."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self):
        yield from range(self.size)


class DividedStream(Stream):
    """Yields a part of its own in each loader process of each rank."""

    def __init__(self, size: int, rank: int = 0, num_ranks: int = 1) -> None:
        super().__init__(size)
        self.rank, self.num_ranks = rank, num_ranks

    def __iter__(self):
        info = get_worker_info()
        process, processes = (info.id, info.num_workers) if info else (0, 1)
        first = self.rank * processes + process
        yield from range(first, self.size, self.num_ranks * processes)


class Augmented(Numbers):
    """Draws from a generator of its own, of which each loader process has a copy."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.rng = np.random.default_rng(0)

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + self.rng.normal()


class AugmentedByExample(Augmented):
    """Draws what depends on the example alone."""

    def __getitem__(self, index: int) -> torch.Tensor:
        self.rng = np.random.default_rng(index)
        return torch.tensor([index]) + self.rng.normal()


class ReseededByExample(Numbers):
    """Seeds its generator for each example."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.generator = torch.Generator()

    def __getitem__(self, index: int) -> torch.Tensor:
        self.generator.manual_seed(index)
        return torch.rand(1, generator=self.generator)


class MadeAtRandom(Numbers):
    """Has a generator that only its constructor has drawn from."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.rng = np.random.default_rng(0)
        self.offset = self.rng.normal()


class Texts(Dataset):
    """Holds many Python objects."""

    def __init__(self, size: int) -> None:
        self.texts = [f"{number:060d}" for number in range(size)]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> int:
        return len(self.texts[index])


class Evens(Sampler):
    """A sampler of the user's own."""

    def __iter__(self):
        return iter(range(0, 100, 2))

    def __len__(self) -> int:
        return 50


class BatchSamplerShard(BatchSampler):
    """Accelerate's, by name and attributes."""

    def __init__(self, inner: Any, num: int, index: int = 0, *, even=True, split=False) -> None:
        self.batch_size: Any = getattr(inner, "batch_size", None)
        self.batch_sampler, self.num_processes, self.process_index = inner, num, index
        self.even_batches, self.split_batches = even, split
        self.drop_last = getattr(inner, "drop_last", False)

    def __iter__(self):
        """Where the batches are full, and as many on each rank."""
        return islice(self.batch_sampler, self.process_index, None, self.num_processes)

    def __len__(self) -> int:
        return len(self.batch_sampler) // self.num_processes


class IterableDatasetShard(IterableDataset):
    """Accelerate's and transformers', by name and attributes."""

    def __init__(self, dataset: Any, num_processes: int) -> None:
        self.dataset, self.num_processes, self.process_index = dataset, num_processes, 0
        self.drop_last = False

    def __iter__(self):
        return iter(self.dataset)


class DataLoaderShard:
    """Accelerate's: it wraps a loader."""

    def __init__(self, base_dataloader: DataLoader) -> None:
        self.base_dataloader = base_dataloader


class DataLoaderDispatcher(DataLoaderShard):
    """Accelerate's, of which one rank reads for all."""


class SamplerAsDataset(Dataset):
    """What Lightning makes of a sampler that it wraps."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def __len__(self) -> int:
        return len(self._sampler)


class DistributedSamplerWrapper(DistributedSampler):
    """Lightning's, around any sampler."""

    def __iter__(self):
        drawn = list(cast(Any, self.dataset)._sampler)
        return (drawn[index] for index in super().__iter__())


class UnrepeatedDistributedSampler(DistributedSampler):
    """Lightning's for predictions: ranks may have different lengths."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        size = len(cast(Any, self.dataset))
        self.num_samples = len(range(self.rank, size, self.num_replicas))
        self.total_size = size


class OwnLoader(DataLoader):
    """A class that iterates in a way of its own."""

    def __iter__(self):
        return iter(())


def sampled(
    dataset: Any, num_ranks: int, *, batch_size: int = 8, drops: bool = False, **keywords: Any
) -> DataLoader:
    """A loader of rank 0 with a DistributedSampler."""
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, num_ranks, 0, drop_last=drops)
    return DataLoader(dataset, batch_size, sampler=sampler, **keywords)


def sharded(size: int, num_ranks: int, *, batch_size: int = 8, drop_last=False, **how) -> Any:
    """A loader as Accelerate prepares it."""
    inner = BatchSampler(range(size), batch_size, drop_last)
    shard = BatchSamplerShard(inner, num_ranks, **how)
    return DataLoaderShard(DataLoader(Numbers(size), batch_sampler=shard))
