"""Real ranks and real delays: the report says who waited for whom."""

from __future__ import annotations

import time

import torch

import torch_distinput as tdi
from torch_distinput.testing import run_ranks

OPTIONS = tdi.InputOptions(trace=True)


class SlowOnOne(torch.utils.data.Dataset):
    """Rank 1 needs 10 ms for a step, rank 0 nothing."""

    def __init__(self, rank):
        self._seconds = 0.005 * rank

    def __len__(self):
        return 60

    def __getitem__(self, index):
        time.sleep(self._seconds)
        return index


def measure(strategy):
    """The report of a run whose steps end with an all-reduce."""
    source = SlowOnOne(strategy.worker_index)
    for batch in strategy.distribute_dataset(source, global_batch_size=4, options=OPTIONS):
        strategy.reduce("sum", batch.sum())
    return strategy.report()


def test_the_slow_rank_is_named_and_the_others_wait_in_the_all_reduce():
    """A measured wait: 10 ms or more of a step, and on rank 0 as much in its own step."""
    reports = run_ranks(measure, 2)
    assert reports[0] == reports[1]
    verdict, (fast, slow) = reports[0].verdict, reports[0].ranks
    assert ("input", 1, "source") == (verdict.bound, verdict.rank, verdict.station)
    assert "your step" == verdict.others_wait_in
    assert slow.waits["source"] >= 0.010
    assert fast.own_step >= 0.009
