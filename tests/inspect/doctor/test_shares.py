"""The arithmetic of shares, against what torch's own samplers yield."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DistributedSampler

from torch_distinput.inspect.doctor.shares import (
    EpochShares,
    share_batches,
    share_padded,
    share_split,
    share_whole,
)

COUNTS = {
    "num_examples": st.integers(1, 60),
    "num_ranks": st.integers(1, 9),
    "batch_size": st.integers(1, 9),
}


def counted(ranks: list[list[list[int]]], num_examples: int) -> EpochShares:
    """What the batches of all ranks come to."""
    seen = Counter(index for batches in ranks for batch in batches for index in batch)
    return EpochShares(
        delivered=seen.total(),
        repeated=seen.total() - len(seen),
        dropped=num_examples - len(seen),
        fewest_steps=min(map(len, ranks)),
        most_steps=max(map(len, ranks)),
    )


@given(**COUNTS, sampler_drops=st.booleans(), loader_drops=st.booleans())
def test_padded_shares_are_those_of_torch(
    num_examples, num_ranks, batch_size, sampler_drops, loader_drops
) -> None:
    examples: Any = range(num_examples)
    samplers: list[DistributedSampler[int]] = [
        DistributedSampler(examples, num_ranks, rank, shuffle=False, drop_last=sampler_drops)
        for rank in range(num_ranks)
    ]
    ranks = [list(BatchSampler(sampler, batch_size, loader_drops)) for sampler in samplers]
    shares = share_padded(
        *(num_examples, num_ranks, batch_size),
        sampler_drops=sampler_drops,
        loader_drops=loader_drops,
    )
    assert counted(ranks, num_examples) == shares


@given(**COUNTS, drop_last=st.booleans())
def test_undivided_shares_are_those_of_torch(
    num_examples, num_ranks, batch_size, drop_last
) -> None:
    batches = list(BatchSampler(range(num_examples), batch_size, drop_last))
    shares = share_whole(num_examples, num_ranks, batch_size, drop_last=drop_last)
    assert counted([batches] * num_ranks, num_examples) == shares


def test_the_drawn_examples_of_whole_batches() -> None:
    """Those of the docstring, where the last round is filled, dropped, or left uneven."""
    filled = [[[0, 1, 2, 3], [8, 9, 0, 1]], [[4, 5, 6, 7], [2, 3, 4, 5]]]
    assert counted(filled, 10) == share_batches(10, 2, 4, drop_last=False, even_batches=True)
    dropped = [[[0, 1, 2, 3]], [[4, 5, 6, 7]]]
    assert counted(dropped, 10) == share_batches(10, 2, 4, drop_last=True, even_batches=True)
    uneven = [[[0, 1, 2, 3], [8, 9]], [[4, 5, 6, 7]]]
    assert counted(uneven, 10) == share_batches(10, 2, 4, drop_last=False, even_batches=False)


def test_the_drawn_examples_of_batches_that_are_cut() -> None:
    filled = [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [0, 1]]]
    assert counted(filled, 10) == share_split(10, 2, 4, drop_last=False, even_batches=True)
    uneven = [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7]]]
    assert counted(uneven, 10) == share_split(10, 2, 4, drop_last=False, even_batches=False)
    dropped = [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    assert counted(dropped, 10) == share_split(10, 2, 4, drop_last=True, even_batches=True)
