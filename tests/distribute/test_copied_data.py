"""A ``dataset_fn`` that does not take its part is told of: each worker would train everything."""

from __future__ import annotations

import threading

import pytest
import torch

import torch_distinput as tdi
from torch_distinput.testing import simulate

ROWS = torch.arange(12)
SAID = "got the same from"


class Closed:
    """Of which nothing but the class can be told."""

    def __init__(self):
        self.lock = threading.Lock()


def own(context):
    """The part of a pipeline."""
    return ROWS[context.input_pipeline_id :: context.num_input_pipelines]


def told(caplog, choose, *, num_epochs=1, state=None, **options):
    """What is logged by three workers, whose functions return the batches of what is chosen."""

    def work(strategy):
        dataset = strategy.distribute_datasets_from_function(
            lambda context: list(choose(context).split(2)), tdi.InputOptions(**options)
        )
        if state is not None:
            dataset.load_state_dict(state)
        for _ in range(num_epochs):
            for _ in dataset:
                pass
        return dataset.state_dict()

    states = simulate(work, num_workers=3)
    said = [record.getMessage() for record in caplog.records if SAID in record.getMessage()]
    caplog.clear()
    return said, states[0]


@pytest.mark.parametrize("options", [{}, {"audit": True}])
def test_everything_on_each_worker(caplog, options):
    """One worker says it, once."""
    (said,), state = told(caplog, lambda _: ROWS, num_epochs=2, **options)
    assert "got the same from workers 0, 1, 2" in said
    assert "context.input_pipeline_id" in said
    said, _ = told(caplog, lambda _: ROWS, state=state, **options)
    assert not said


def test_its_part_for_each_worker(caplog):
    said, _ = told(caplog, own)
    assert not said


def test_one_part_twice(caplog):
    (said,), _ = told(caplog, lambda context: ROWS[4 * (context.input_pipeline_id % 2) :])
    assert "workers 0, 2" in said


def test_workers_without_data(caplog):
    """They have no first batch."""
    said, _ = told(caplog, lambda context: ROWS[: 0 if context.input_pipeline_id else 12])
    assert not said


def test_what_cannot_be_compared(caplog):
    def work(strategy):
        dataset = strategy.distribute_datasets_from_function(lambda _: [[Closed(), Closed()]])
        return sum(1 for _ in dataset)

    assert [1, 1] == simulate(work, num_workers=2)
    assert SAID not in caplog.text


@pytest.mark.parametrize("policy", ["data", "off"])
def test_one_stream_for_all_workers(caplog, policy):
    """It is meant so."""

    def work(strategy):
        stream = lambda: iter(ROWS)
        dataset = strategy.distribute_dataset(
            stream, global_batch_size=4, options=tdi.InputOptions(auto_shard_policy=policy)
        )
        return sum(1 for _ in dataset)

    simulate(work, num_workers=2)
    assert SAID not in caplog.text
