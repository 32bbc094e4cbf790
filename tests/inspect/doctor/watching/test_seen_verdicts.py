"""Each verdict that needs a run: scripts with the fault, and ordinary ones that have no finding.

The ranks of a job play one after the other in this process; what they need of their rank they get.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    Sampler,
    SequentialSampler,
    Subset,
    WeightedRandomSampler,
)

from tests.inspect.doctor.loaders import (
    BatchSamplerShard,
    DistributedSamplerWrapper,
    DividedStream,
    Numbers,
    SamplerAsDataset,
    Stream,
    UnrepeatedDistributedSampler,
)
from tests.inspect.doctor.watching.jobs import Script, findings, said
from torch_distinput import DataShardDataset


def divided(rank: int, num_ranks: int, size: int = 64, **keywords: Any) -> DataLoader:
    sampler: DistributedSampler[Any] = DistributedSampler(
        Numbers(size), num_ranks, rank, **keywords
    )
    return DataLoader(Numbers(size), 4, sampler=sampler)


def epochs_of(loader: Any, *, tells: bool = False, number: int = 2) -> object:
    for epoch in range(number):
        if tells:
            loader.sampler.set_epoch(epoch)
        list(loader)
    return loader


def weighted(size: int) -> DataLoader:
    return DataLoader(Numbers(9), 4, sampler=WeightedRandomSampler([1.0] * 9, size))


def drawn_together(rank: int, num_ranks: int) -> DistributedSamplerWrapper:
    torch.manual_seed(0)
    return DistributedSamplerWrapper(SamplerAsDataset(weighted(48).sampler), num_ranks, rank)


def trained_twice(loader: Any) -> None:
    epochs_of(loader, tells=True)
    epochs_of(loader, tells=True)


def reseeded(loader: DataLoader) -> None:
    for _ in range(2):
        torch.manual_seed(0)
        list(loader)


class OnTwoRanks(Sampler):
    """A sampler of the user's, which gives one index to both ranks."""

    def __init__(self, rank: int, *, overlap: int) -> None:
        first = (10 - overlap) * rank
        self.indices = range(first, first + 10)

    def __iter__(self):
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)


class Drawn(Sampler):
    """A sampler of the user's, which draws with replacement."""

    def __iter__(self):
        return iter([3, 3, 7, 9])

    def __len__(self) -> int:
        return 4


def without_gradients(loader: DataLoader) -> object:
    with torch.no_grad():
        return list(loader)


class Part(Numbers):
    """The data of a rank, which has its own files."""

    def __init__(self, size: int, rank: int) -> None:
        super().__init__(size)
        self.rank = rank

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, self.rank])


class Sampled(IterableDataset):
    """Endless examples at random."""

    def __iter__(self):
        while True:
            yield torch.rand(2)


def shard(rank: int, num_ranks: int, size: int, sampler: Any = None) -> DataLoader:
    inner = BatchSampler(sampler or SequentialSampler(Numbers(size)), 4, drop_last=False)
    return DataLoader(Numbers(size), batch_sampler=BatchSamplerShard(inner, num_ranks, rank))


ORDERS_DIFFER = [("repeated", 20)]
FAULTS: dict[str, tuple[Script, int, list[tuple[str, int]]]] = {
    "no set_epoch": (
        lambda rank, num: epochs_of(divided(rank, num)), 2, [("same order in each epoch", 32)],
    ),
    "a generator seeded anew": (
        lambda *_: reseeded(DataLoader(Numbers(40), 4, shuffle=True)),
        1,
        [("same order in each epoch", 40)],
    ),
    "repeats, in evaluation too": (
        lambda rank, num: without_gradients(divided(rank, num, 61)), 2, [("repeated", 1)],
    ),
    "every rank reads all, in order": (
        lambda *_: list(DataLoader(Numbers(40), 4)), 3, [("not divided", 3)],
    ),
    "every rank reads all, shuffled": (
        lambda *_: list(DataLoader(Numbers(40), 4, shuffle=True)), 2, [("not divided", 2)],
    ),
    "of a shuffled order only the first steps are seen": (
        lambda *_: list(islice(DataLoader(Numbers(100), 4, shuffle=True), 10)),
        2,
        [("not divided", 2)],
    ),
    "every rank reads the stream": (
        lambda *_: list(DataLoader(Stream(40), 4)), 3, [("stream read several times", 3)],
    ),
    "every loader process reads the stream": (
        lambda *_: list(DataLoader(Stream(40), 4, num_workers=2)),
        1,
        [("stream read several times", 2)],
    ),
    "every process of every rank reads the stream": (
        lambda *_: list(DataLoader(Stream(40), 4, num_workers=2)),
        2,
        [("stream read several times", 4)],
    ),
    "ranks of different lengths": (
        lambda rank, _: list(DataLoader(DividedStream(40 - 20 * rank, rank, 2), 4)),
        2,
        [("ranks end at different steps", 2)],
    ),
    "a seed of each rank": (
        lambda rank, num: epochs_of(divided(rank, num, seed=rank), tells=True), 2, ORDERS_DIFFER,
    ),
    "a seed of each rank, first steps": (
        lambda rank, num: list(islice(divided(rank, num, seed=rank), 6)), 2, [("repeated", 11)],
    ),
    "set_epoch on one rank": (
        lambda rank, num: epochs_of(divided(rank, num), tells=rank == 0), 2, ORDERS_DIFFER,
    ),
    "one subset on every rank": (
        lambda *_: list(DataLoader(Subset(Numbers(40), range(5, 35)), 4, shuffle=True)),
        2,
        [("not divided", 2)],
    ),
    "only what fills up is repeated": (
        lambda rank, num: epochs_of(divided(rank, num, 61), tells=True), 4, [("repeated", 3)],
    ),
    "every rank draws the same": (
        lambda *_: torch.manual_seed(0) and list(weighted(48)), 2, [("not divided", 2)],
    ),
    "an own sampler of NumPy's integers": (
        lambda *_: list(DataLoader(Numbers(20), 4, sampler=np.random.permutation(20))),
        2,
        [("repeated", 20)],
    ),
    "an own sampler that repeats": (
        lambda rank, _: list(DataLoader(Numbers(20), 4, sampler=OnTwoRanks(rank, overlap=3))),
        2,
        [("repeated", 3)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_seen_with_its_number(name: str) -> None:
    script, num_ranks, expected = FAULTS[name]
    found = findings(script, num_ranks)
    assert expected == [(finding.kind, finding.number) for finding in found]


def test_no_number_of_one_rank_is_said_of_all() -> None:
    """The steps of each were seen; what an epoch comes to follows from no one length."""
    (one,) = said(lambda rank, _: list(DataLoader(Part(20 + 20 * rank, rank), 4)), 2)
    assert "20 examples" not in one.title
    assert any("5 to 10 steps" in line for line in one.facts)
    assert not any("An epoch has" in line for line in one.facts)
    assert ["ranks end at different steps"] == [finding.kind for finding in one.findings]


class Labels(Part):
    """Its own rows, of which few differ."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index % 3)


def test_parts_of_few_different_rows_are_not_said_to_be_one() -> None:
    """They may be, or not; and that is said."""
    (one,) = said(lambda rank, _: list(DataLoader(Labels(48, rank), 4)), 2)
    assert not one.findings
    assert any("too few rows could be told apart" in line for line in one.unseen)


ORDINARY: dict[str, tuple[Script, int]] = {
    "alone": (lambda *_: epochs_of(DataLoader(Numbers(61), 4, shuffle=True)), 1),
    "alone, in order": (lambda *_: epochs_of(DataLoader(Numbers(61), 4)), 1),
    "alone, weighted": (lambda *_: epochs_of(weighted(50)), 1),
    "alone, a stream": (lambda *_: epochs_of(DataLoader(Stream(61), 4, num_workers=1)), 1),
    "set_epoch is called": (lambda rank, num: epochs_of(divided(rank, num), tells=True), 2),
    "two trainings": (lambda rank, num: trained_twice(divided(rank, num)), 2),
    "not shuffled": (lambda rank, num: epochs_of(divided(rank, num, shuffle=False)), 2),
    "one epoch": (lambda rank, num: epochs_of(divided(rank, num), number=1), 2),
    "evaluation in one order": (
        lambda rank, num: [without_gradients(divided(rank, num)) for _ in range(2)], 2,
    ),
    "evaluation of everything on every rank": (
        lambda *_: without_gradients(DataLoader(Numbers(61), 4)), 2,
    ),
    "evaluation on one rank": (
        lambda rank, _: rank == 0 and list(DataLoader(Numbers(61), 4)), 2,
    ),
    "predictions": (
        lambda rank, num: without_gradients(
            DataLoader(
                Numbers(61), 1, sampler=UnrepeatedDistributedSampler(Numbers(61), num, rank)
            )
        ),
        2,
    ),
    "files of each rank": (lambda rank, _: list(DataLoader(Part(40, rank), 4)), 2),
    "files of each rank, shuffled": (
        lambda rank, _: epochs_of(DataLoader(Part(40, rank), 4, shuffle=True)), 2,
    ),
    "a subset of each rank": (
        lambda rank, num: list(DataLoader(Subset(Numbers(40), range(rank, 40, num)), 4)), 2,
    ),
    "too few to tell": (lambda *_: torch.manual_seed(0) and list(weighted(4)), 2),
    "weighted on each rank": (lambda *_: list(weighted(48)), 2),
    "a divided stream": (
        lambda rank, num: list(DataLoader(DividedStream(64, rank, num), 4, num_workers=2)), 2,
    ),
    "examples at random": (lambda *_: list(islice(DataLoader(Sampled(), 4), 12)), 2),
    "examples at random, in processes": (
        lambda *_: list(islice(DataLoader(Sampled(), 4, num_workers=2), 12)), 2,
    ),
    "an own sampler": (
        lambda rank, _: list(DataLoader(Numbers(20), 4, sampler=OnTwoRanks(rank, overlap=0))), 2,
    ),
    "an own sampler, with replacement": (
        lambda *_: list(DataLoader(Numbers(20), 4, sampler=Drawn())), 2,
    ),
    "Lightning's, around one that draws": (
        lambda rank, num: list(DataLoader(Numbers(9), 4, sampler=drawn_together(rank, num))), 2,
    ),
    "Accelerate's, around one that repeats": (
        lambda rank, num: list(shard(rank, num, 64, sampler=[3, 3, 7, 9] * 16)), 2,
    ),
    "Accelerate's batches": (lambda rank, num: list(shard(rank, num, 64)), 2),
    "two trainings, each of an epoch": (
        lambda rank, num: [epochs_of(divided(rank, num), number=1) for _ in range(2)], 2,
    ),
    "our pieces": (
        lambda rank, num: list(DataLoader(DataShardDataset(range(40), num, rank), 4)), 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ORDINARY)
def test_in_an_ordinary_script_nothing_is_found(name: str) -> None:
    script, num_ranks = ORDINARY[name]
    assert [] == findings(script, num_ranks)


@pytest.mark.parametrize("other_seed", [0, 1])
def test_loaders_that_are_made_anew_may_be_epochs_or_trainings(other_seed) -> None:
    """Which of them, only the user knows: it is no finding."""
    (explanation,) = said(
        lambda rank, num: [
            epochs_of(divided(rank, num, seed=seed), number=1) for seed in (0, other_seed)
        ],
        2,
    )
    is_said = any(line.startswith("Whether epochs differ: 2") for line in explanation.unseen)
    assert is_said == (other_seed == 0)


def test_ranks_that_read_one_part_are_named() -> None:
    """A finding would be a false alarm: under tensor parallelism it is as it should be."""
    facts = said(lambda rank, _: epochs_of(divided(0, 1), tells=True), 2)[0].facts
    assert facts[0].startswith("Ranks 0, 1 read the same part: each has part 0 of 1.")


@pytest.mark.parametrize(("num_ranks", "is_said"), [(1, True), (2, False)])
def test_ranks_that_were_not_watched_are_not_seen(num_ranks, is_said) -> None:
    """A script may start its other ranks by itself, as Lightning does, without the doctor."""
    (explanation,) = said(lambda rank, _: epochs_of(divided(rank, 2), tells=True), num_ranks)
    assert is_said == any("start them with torchrun" in line for line in explanation.unseen)


def test_two_epochs_that_are_not_seen_prove_nothing() -> None:
    """Fewer steps than an epoch has: whether set_epoch is called cannot be known."""
    assert [] == findings(lambda rank, num: epochs_of(divided(rank, num)), 2, steps=5)


@pytest.mark.parametrize("early", [0, 1])
def test_a_rank_that_ends_early_hides_no_order_that_another_has_shown(early) -> None:
    def script(rank: int, num_ranks: int) -> object:
        loader = divided(rank, num_ranks)
        return epochs_of(loader, number=1) if rank == early else epochs_of(loader)

    (explanation,) = said(script, 2)
    assert ["same order in each epoch"] == [finding.kind for finding in explanation.findings]
    assert not any("set_epoch" in line for line in explanation.unseen)
