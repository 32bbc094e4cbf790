"""A stream that all workers read has one length: else the end of the longer one would be lost."""

from __future__ import annotations

import itertools

import pytest
import torch

import torch_distinput as tdi
from tests.distribute.street import options
from torch_distinput.testing import simulate

SIZE = 4


def batches(count):
    for start in range(0, count, SIZE):
        yield torch.arange(start, min(count, start + SIZE))


LENGTHS = [(30, 29), (29, 30), (30, 31), (31, 32), (30, 32), (32, 33)]
RULES = ["split", "even", "cycle", None]


@pytest.mark.parametrize(
    ("rebatch", "lengths", "processes"),
    [
        *itertools.product(RULES, LENGTHS, [0]),
        *itertools.product(["cycle", None], [(30, 29), (31, 32)], [1]),
    ],
)
def test_a_worker_whose_stream_is_a_little_longer(rebatch, lengths, processes):
    """Both may end within the same step, where each takes its own rows and none is missed."""
    own = options(auto_shard_policy="data", **({"rebatch": rebatch} if rebatch else {}))

    def work(strategy):
        count = lengths[strategy.worker_index]
        dataset = strategy.distribute_dataset(
            (lambda: iter(range(count))) if rebatch else (lambda: batches(count)),
            global_batch_size=SIZE if rebatch else None,
            num_workers=processes,
            options=own,
        )
        with pytest.raises(tdi.MismatchError, match="differs from that of the others"):
            list(dataset)
        return True

    assert all(simulate(work, num_workers=2))
