"""Loaders that are begun in several lines, and random numbers of the loaders of several ranks."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, Sampler

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


def looked_at(rank: int, num_ranks: int) -> None:
    """One rank has a look at a batch, as at its shape, in a line of its own."""
    loader = DataLoader(Numbers(16), 4, shuffle=True)
    if rank == 0:
        next(iter(loader))
    list(loader)


def test_a_look_of_one_rank_hides_nothing() -> None:
    (finding,) = findings(looked_at, 2)
    assert ("not divided", 2) == (finding.kind, finding.number)


def test_a_look_is_no_epoch() -> None:
    def script(rank: int, num_ranks: int) -> None:
        loader = divided(Numbers(64), rank, num_ranks)
        next(iter(loader))
        list(loader)

    (explanation,) = said(script, 2)
    assert [] == [one.kind for one in explanation.findings]
    assert any("only one epoch was begun" in line for line in explanation.unseen)


def validated_first(rank: int, num_ranks: int, is_right: bool) -> None:
    """One rank looks at other data first, by the same function."""
    if rank == 0:
        play(DataLoader(Numbers(12), 4))
    loader = divided(Numbers(60), rank, num_ranks) if is_right else DataLoader(Numbers(60), 4)
    play(loader)


def play(loader: DataLoader) -> None:
    list(loader)


@pytest.mark.parametrize("is_right", [True, False])
def test_loaders_of_ranks_go_by_their_sizes(is_right) -> None:
    found = said(lambda rank, num_ranks: validated_first(rank, num_ranks, is_right), 3)
    assert [[], [] if is_right else ["not divided"]] == sorted(
        [finding.kind for finding in one.findings] for one in found
    )


def test_a_rank_whose_data_has_nothing_is_seen() -> None:
    def script(rank: int, num_ranks: int) -> None:
        list(DataLoader(Parts(rank), 4))

    (finding,) = findings(script, 3)
    assert ("ranks end at different steps", 4) == (finding.kind, finding.number)


class Parts(IterableDataset):
    """Divided among two ranks."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __iter__(self):
        return (torch.tensor(number) for number in range(32) if number % 2 == self.rank)


def test_ranks_that_are_given_the_same_by_a_sampler_of_their_own() -> None:
    """Also where no epoch comes to its end under the watch."""

    class Own(Sampler):
        def __iter__(self):
            return iter(torch.randperm(400, generator=torch.Generator().manual_seed(0)).tolist())

    def script(rank: int, num_ranks: int) -> None:
        batches = iter(DataLoader(Numbers(400), 4, sampler=Own()))
        for _ in range(5):
            next(batches)

    (finding,) = findings(script, 3)
    assert ("repeated", 40) == (finding.kind, finding.number)


def test_pictures_in_a_list_are_not_taken_for_rows() -> None:
    """Three colours are no three examples."""

    class Pictures(Numbers):
        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.full((3, 2, 2), float(index))

    def script(rank: int, num_ranks: int) -> None:
        torch.manual_seed(rank)
        list(DataLoader(Pictures(16), 4, shuffle=True, collate_fn=list))

    (explanation,) = said(script, 2)
    assert [] == [one.kind for one in explanation.findings]
    assert any("too few rows could be told apart" in line for line in explanation.unseen)


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


@pytest.mark.slow
def test_ranks_whose_processes_draw_the_same_numbers_are_found() -> None:
    (finding,) = findings(lambda rank, num_ranks: drawing(rank, num_ranks, 0), 3)
    assert ("shared random numbers", 3) == (finding.kind, finding.number)
    assert "of 3 ranks, such as 0 and 1, have drawn the same random numbers (torch)" in finding.text


@pytest.mark.slow
def test_ranks_that_share_a_part_may_draw_alike() -> None:
    """As with tensor parallelism: it is the same example, too."""

    def script(rank: int, num_ranks: int) -> None:
        torch.manual_seed(0)
        list(divided(Random(36), 0, 1, num_workers=1))

    assert [] == findings(script, 2)


@pytest.mark.slow
@pytest.mark.parametrize("script", [
    lambda rank, num_ranks: drawing(rank, num_ranks, rank),
    lambda rank, num_ranks: list(divided(Numbers(32), rank, num_ranks, num_workers=1)),
])  # fmt: skip
def test_nothing_is_found_where_they_draw_others_or_none(script) -> None:
    assert [] == findings(script, 2)


def test_ranks_whose_sizes_differ_read_all_the_same() -> None:
    """No number is said, which would be of one of them."""
    (one,) = said(lambda rank, _: list(DataLoader(Numbers(40), 4 + 4 * rank)), 2)
    (found,) = [one for one in one.findings if one.kind == "not divided"]
    assert "reads all of them, as if it were alone." in found.text


def test_a_large_dataset_of_which_ranks_have_seen_other_parts() -> None:
    """Each reads all of it, but what came to both is too little to tell."""

    def script(rank: int, _: int) -> None:
        torch.manual_seed(rank)
        list(islice(DataLoader(Numbers(1_000_000), 4, shuffle=True), 10))

    (one,) = said(script, 2)
    assert not one.findings
    assert any("came to more than one rank" in line for line in one.unseen)
