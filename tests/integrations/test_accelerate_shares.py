"""The arithmetic of the doctor, against what Accelerate's sampler of batches yields."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler

from tests.inspect.doctor.test_shares import counted
from torch_distinput.inspect.doctor.shares import share_batches, share_split


@pytest.mark.parametrize(
    ("is_split", "drop_last", "even_batches"), [*product([False, True], repeat=3)]
)
def test_shares_are_those_of_accelerate(is_split, drop_last, even_batches) -> None:
    share = share_split if is_split else share_batches
    for num_examples, num_ranks, per_rank in product(range(1, 40), range(1, 5), range(1, 5)):
        batch_size = per_rank * num_ranks if is_split else per_rank
        ranks: list[Any] = [
            [
                list(batch)  # it goes on with a list that it has yielded
                for batch in BatchSamplerShard(
                    BatchSampler(range(num_examples), batch_size, drop_last),
                    *(num_ranks, rank, is_split, even_batches),
                )
            ]
            for rank in range(num_ranks)
        ]
        expected = counted(ranks, num_examples)
        assert expected == share(
            *(num_examples, num_ranks, batch_size), drop_last=drop_last, even_batches=even_batches
        ), (num_examples, num_ranks, batch_size)
