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


def made_by(kind):
    return MAKERS[kind](
        tdi.OneDeviceStrategy("cpu").distribute_dataset(torch.arange(12), global_batch_size=2)
    )


@pytest.mark.parametrize("kind", MAKERS)
def test_a_second_loop_over_an_iterator(kind, caplog):
    made = made_by(kind)
    assert sum(1 for _ in made)
    assert not caplog.records
    for _ in range(3):
        assert not list(made)
    (record,) = caplog.records
    assert "got that of epoch 0, of which all were delivered" in record.getMessage()


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("kind", MAKERS)
def test_groups_of_an_iterator(kind, size, caplog):
    """The last of them is empty, as nobody knows before; what comes after it are other loops."""
    made = made_by(kind)
    while list(itertools.islice(made, size)):
        pass
    assert not caplog.records
    assert not list(made)
    assert not list(made)
    (record,) = caplog.records
    assert "got that of epoch 0, of which all were delivered" in record.getMessage()
