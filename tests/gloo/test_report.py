"""Real ranks and real delays: the report says who waited for whom."""

from __future__ import annotations

import time
from functools import partial

import pytest
import torch

import torch_distinput as tdi
from tests.gloo.meshes import strategy_on
from torch_distinput.testing import run_ranks

OPTIONS = tdi.InputOptions(trace=True)


class SlowOnOne(torch.utils.data.Dataset):
    """Rank 1 needs 80 ms for a step, which are long beside a stall; rank 0 nothing."""

    def __init__(self, rank):
        self._seconds = 0.040 * rank

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


def slow_numbers(seconds):
    """A stream of examples, which takes its time."""
    for number in range(60):
        time.sleep(seconds)
        yield torch.tensor(number)


def measure_stream(strategy):
    """The report of a run whose ranks agree on steps, each with a stream of its own."""
    options = tdi.InputOptions(trace=True, auto_shard_policy="off")
    source = partial(slow_numbers, 0.010 * strategy.worker_index)
    for _ in strategy.distribute_dataset(source, global_batch_size=4, options=options):
        pass
    return strategy.report()


@pytest.mark.slow
def test_where_ranks_vote_the_others_wait_in_the_agreement():
    """Rank 0 has its steps ready; what it waits for is not its own source."""
    verdict, (fast, slow) = (report := run_ranks(measure_stream, 2)[0]).verdict, report.ranks
    assert ("input", 1, "source") == (verdict.bound, verdict.rank, verdict.station)
    assert "agreement" == verdict.others_wait_in
    assert fast.waits["agreement"] > fast.input_wait
    assert slow.waits["source"] > 0.010


def measure_broadcast(strategy):
    """The report of each of two ranks that share data, of which the first one reads."""
    shared = strategy_on((1, 2), ("dp", "tp"), replicate_input="broadcast")
    for _ in shared.distribute_dataset(SlowOnOne(0.125), global_batch_size=4, options=OPTIONS):
        pass
    return shared.report().ranks


def test_a_rank_waits_in_the_agreement_for_the_one_that_reads_for_it():
    (reader,), (partner,) = run_ranks(measure_broadcast, 2)
    assert reader.waits["source"] >= 0.020
    assert 0 == partner.waits["source"]
    assert partner.waits["agreement"] >= 0.010


@pytest.mark.slow
def test_the_slow_rank_is_named_and_the_others_wait_in_the_all_reduce():
    """A measured wait: most of 80 ms of a step, and on rank 0 as much in its own step."""
    reports = run_ranks(measure, 2)
    assert reports[0] == reports[1]
    verdict, (fast, slow) = reports[0].verdict, reports[0].ranks
    assert ("input", 1, "source") == (verdict.bound, verdict.rank, verdict.station)
    assert "your step" == verdict.others_wait_in
    assert slow.waits["source"] >= 0.060
    assert fast.own_step >= 0.060
