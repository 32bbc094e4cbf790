"""Iterators that are made before the loop over epochs have one epoch, and say so in the second."""

from __future__ import annotations

import itertools

import pytest
import torch

import torch_distinput as tdi

MAKERS = {
    "iter": iter,
    "steps": lambda dataset: dataset.steps(),
    "groups": lambda dataset: tdi.accumulate(dataset.steps(), 2),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_a_second_loop_over_an_iterator(kind, caplog):
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(torch.arange(6), global_batch_size=2)
    made = MAKERS[kind](dataset)
    assert next(made) is not None
    assert sum(1 for _ in made)
    assert not list(itertools.islice(made, 2))
    assert not caplog.records
    for _ in range(3):
        assert not list(made)
    (record,) = caplog.records
    assert "got that of epoch 0, of which all were delivered" in record.getMessage()
