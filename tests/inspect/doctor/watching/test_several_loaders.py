"""Loaders that are begun in several lines, and random numbers of the loaders of several ranks."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

from tests.inspect.doctor.loaders import Numbers
from tests.inspect.doctor.watching.jobs import findings, said


class Random(Numbers):
    """Draws from the global generator of torch."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + torch.rand(())


def divided(dataset: Numbers, rank: int, num_ranks: int, num_workers: int = 0) -> DataLoader:
    sampler: DistributedSampler[Numbers] = DistributedSampler(dataset, num_ranks, rank)
    return DataLoader(dataset, 4, sampler=sampler, num_workers=num_workers)


def cycled(rank: int, num_ranks: int) -> None:
    """As beside a longer loader: begun before the loop, and in it."""
    loader = divided(Numbers(16), rank, num_ranks)
    batches = iter(loader)
    for _ in range(4):
        try:
            next(batches)
        except StopIteration:
            batches = iter(loader)
            next(batches)


def test_a_loader_that_is_begun_in_two_lines_is_one() -> None:
    (explanation,) = said(cycled, 2)
    assert ["same order in each epoch"] == [one.kind for one in explanation.findings]


def test_what_is_evaluated_elsewhere_is_another_one() -> None:
    def script(rank: int, num_ranks: int) -> None:
        loader = divided(Numbers(16), rank, num_ranks)
        list(loader)
        with torch.no_grad():
            list(loader)

    assert [0, 0] == [len(one.findings) for one in said(script, 2)]


def drawing(rank: int, num_ranks: int, seed: int) -> None:
    torch.manual_seed(seed)
    list(divided(Random(36), rank, num_ranks, num_workers=1))


def test_ranks_whose_processes_draw_the_same_numbers_are_found() -> None:
    (finding,) = findings(lambda rank, num_ranks: drawing(rank, num_ranks, 0), 3)
    assert ("shared random numbers", 3) == (finding.kind, finding.number)
    assert "of 3 ranks, such as 0 and 1, have drawn the same random numbers (torch)" in finding.text


@pytest.mark.parametrize("script", [
    lambda rank, num_ranks: drawing(rank, num_ranks, rank),
    lambda rank, num_ranks: list(divided(Numbers(32), rank, num_ranks, num_workers=1)),
])  # fmt: skip
def test_nothing_is_found_where_they_draw_others_or_none(script) -> None:
    assert [] == findings(script, 2)
