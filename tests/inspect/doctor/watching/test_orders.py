"""Epochs in one order, and ranks that begin with a loader in lines of their own."""

from __future__ import annotations

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    SequentialSampler,
)

from tests.inspect.doctor.loaders import BatchSamplerShard
from tests.inspect.doctor.watching.jobs import findings, said


class Numbers(Dataset):
    """Examples that are all different."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


def divided(rank: int, num: int) -> DataLoader:
    return DataLoader(Numbers(), 4, sampler=DistributedSampler(Numbers(), num, rank))


def seeded_but_first(*_: int) -> None:
    loader = DataLoader(Numbers(), 4, shuffle=True)
    for seed in (1, 0, 0):
        torch.manual_seed(seed)
        list(loader)


def test_some_epochs_are_in_one_order() -> None:
    (found,) = findings(seeded_but_first, 1)
    assert "same order in each epoch" == found.kind
    assert found.text.startswith("2 of 3 epochs have begun with the same 48 examples")


def told_late(rank: int, num: int) -> None:
    loader = divided(rank, num)
    for epoch in range(3):
        list(loader)
        loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]


def test_the_first_two_epochs_are_named_if_they_are_alike() -> None:
    """The first may have been a pass of another kind."""
    (one,) = said(told_late, 2)
    assert not one.findings
    assert any("Whether the first two epochs differ" in line for line in one.unseen)


def with_a_pass(rank: int, num: int) -> None:
    """Without gradients, before the first epoch."""
    loader = divided(rank, num)
    for trains in (False, True):
        with torch.set_grad_enabled(trains):
            list(loader)


def test_a_pass_without_gradients_is_no_epoch() -> None:
    (one,) = said(with_a_pass, 2)
    assert not one.findings
    assert not any("first two epochs" in line for line in one.unseen)


def with_statistics(rank: int, num: int) -> None:
    loader = divided(rank, num)
    if rank == 0:
        for _ in loader:
            pass
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        for _ in loader:
            pass


def test_a_pass_of_one_rank_alone() -> None:
    """Its loader is first iterated in another line; nothing is said of what was not compared."""
    explanations = said(with_statistics, 2)
    first, second = (one.title.split(": ")[0] for one in explanations)
    assert first != second
    for one, other in zip(explanations, (f"1 at {second}", f"0 at {first}"), strict=True):
        assert not one.findings
        assert any(f"first iterated elsewhere by rank {other}." in line for line in one.unseen)
        assert not any("started by itself" in line for line in one.unseen)


def uneven(rank: int, num: int) -> None:
    inner = BatchSampler(SequentialSampler(Numbers()), 16, drop_last=False)
    shard = BatchSamplerShard(inner, num, rank, even=False)
    list(DataLoader(Numbers(), batch_sampler=shard))


def test_what_arithmetic_finds_is_not_found_again() -> None:
    assert ["ranks end at different steps"] == [found.kind for found in findings(uneven, 2)]
