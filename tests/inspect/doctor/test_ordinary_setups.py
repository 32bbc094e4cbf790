"""No false alarm: loaders as people write them, in which nothing goes wrong, have no finding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from tests.inspect.doctor.loaders import (
    Augmented,
    AugmentedByExample,
    DataLoaderDispatcher,
    DataLoaderShard,
    DistributedSamplerWrapper,
    DividedStream,
    Evens,
    IterableDatasetShard,
    MadeAtRandom,
    Numbers,
    OwnLoader,
    ReseededByExample,
    Stream,
    Texts,
    UnrepeatedDistributedSampler,
    sampled,
    sharded,
)
from torch_distinput import DataShardDataset, FileShardDataset, explain

TENSORS = TensorDataset(torch.arange(64.0), torch.arange(64))
EVEN = Numbers(64)
WEIGHTS = [1.0] * 64


def own_batches() -> list[list[int]]:
    return [[0, 1], [2], [3, 4, 5]]


# What is written, for how many ranks, and the loader.
ALONE: dict[str, Callable[[], Any]] = {
    "batches": lambda: DataLoader(Numbers(61), 8),
    "shuffle": lambda: DataLoader(Numbers(61), 8, shuffle=True),
    "drop_last": lambda: DataLoader(Numbers(61), 8, shuffle=True, drop_last=True),
    "loader processes": lambda: DataLoader(Numbers(61), 8, num_workers=2),
    "persistent": lambda: DataLoader(Numbers(61), 8, num_workers=2, persistent_workers=True),
    "spawned": lambda: DataLoader(Numbers(61), 8, num_workers=2, multiprocessing_context="spawn"),
    "pinned": lambda: DataLoader(Numbers(61), 8, pin_memory=True),
    "no batches": lambda: DataLoader(Numbers(61), batch_size=None),
    "weighted": lambda: DataLoader(EVEN, 8, sampler=WeightedRandomSampler(WEIGHTS, 100)),
    "replacement": lambda: DataLoader(EVEN, 8, sampler=RandomSampler(EVEN, replacement=True)),
    "subset": lambda: DataLoader(Subset(EVEN, range(10)), 8),
    "some indices": lambda: DataLoader(EVEN, 8, sampler=SubsetRandomSampler(range(10))),
    "concatenated": lambda: DataLoader(ConcatDataset([EVEN, EVEN]), 8),
    "own sampler": lambda: DataLoader(Numbers(100), 8, sampler=Evens()),
    "own batches": lambda: DataLoader(EVEN, batch_sampler=own_batches()),
    "own loader": lambda: OwnLoader(EVEN, 8),
    "a stream": lambda: DataLoader(Stream(61), 8),
    "a stream, one process": lambda: DataLoader(Stream(61), 8, num_workers=1),
    "a stream that divides itself": lambda: DataLoader(DividedStream(61), 8, num_workers=2),
    "a list": lambda: DataLoader(cast(Any, list(range(61))), 8, num_workers=2),
    "few texts": lambda: DataLoader(Texts(100), 8, num_workers=2),
    "a generator for its data": lambda: DataLoader(MadeAtRandom(61), 8, num_workers=2),
    "a generator by example": lambda: DataLoader(AugmentedByExample(61), 8, num_workers=2),
    "a seed by example": lambda: DataLoader(ReseededByExample(61), 8, num_workers=2),
    "a generator that is seeded": lambda: DataLoader(
        Augmented(61), 8, num_workers=2, worker_init_fn=print
    ),
    "evaluation of one rank": lambda: DataLoader(EVEN, 8, sampler=SequentialSampler(EVEN)),
    "sampler of one rank": lambda: sampled(Numbers(61), 1),
}
ON_EIGHT: dict[str, Callable[[], Any]] = {
    "divides": lambda: sampled(EVEN, 8),
    "divides tensors": lambda: sampled(TENSORS, 8),
    "divides, drops nothing": lambda: sampled(EVEN, 8, drops=True, drop_last=True),
    "persistent": lambda: sampled(EVEN, 8, num_workers=2, persistent_workers=True),
    "sampler of Lightning": lambda: DataLoader(
        EVEN, 8, sampler=DistributedSamplerWrapper(EVEN, 8, 0)
    ),
    "predictions of Lightning": lambda: DataLoader(
        Numbers(61), 8, sampler=UnrepeatedDistributedSampler(Numbers(61), 8, 0)
    ),
    "Accelerate": lambda: sharded(64, 8),
    "Accelerate splits": lambda: sharded(64, 8, split=True),
    "Accelerate, not even": lambda: sharded(64, 8, even=False),
    "Accelerate drops nothing": lambda: sharded(64, 8, drop_last=True),
    "Accelerate dispatches": lambda: DataLoaderDispatcher(DataLoader(Stream(61), 8)),
    "Accelerate's stream": lambda: DataLoaderShard(
        DataLoader(IterableDatasetShard(Stream(64), 8), 8)
    ),
    "own batch sampler": lambda: DataLoader(Numbers(61), batch_sampler=own_batches()),
    "own sampler": lambda: DataLoader(Numbers(100), 8, sampler=Evens()),
    "own batches of a divided order": lambda: DataLoader(
        Numbers(61),
        batch_sampler=type("Own", (BatchSampler,), {})(
            DistributedSampler(Numbers(61), 8, 0), 8, drop_last=False
        ),
    ),
    "weighted": lambda: DataLoader(EVEN, 8, sampler=WeightedRandomSampler(WEIGHTS, 64)),
    "part of this rank": lambda: DataLoader(Subset(Numbers(61), range(0, 61, 8)), 8),
    "indices of this rank": lambda: DataLoader(EVEN, 8, sampler=SubsetRandomSampler([0, 8, 16])),
    "a stream that divides itself": lambda: DataLoader(DividedStream(61, 0, 8), 8, num_workers=2),
    "a stream without processes": lambda: DataLoader(Stream(61), 8),
    "our pieces": lambda: DataLoader(DataShardDataset(range(61), 8, 0), 8, num_workers=2),
    "our files": lambda: DataLoader(
        FileShardDataset(["a", "b"], num_shards=2, index=0), 8, num_workers=2
    ),
}


def test_there_are_forty_ordinary_setups() -> None:
    assert len(ALONE) + len(ON_EIGHT) >= 40


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("name", ALONE)
def test_alone_nothing_is_found(name: str) -> None:
    assert () == explain(ALONE[name](), num_workers=1, read_examples=20).findings


@pytest.mark.parametrize("name", ON_EIGHT)
def test_on_eight_ranks_nothing_is_found(name: str) -> None:
    assert () == explain(ON_EIGHT[name](), num_workers=8, read_examples=20).findings
