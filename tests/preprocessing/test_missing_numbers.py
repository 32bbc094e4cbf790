"""adapt: the state does not depend on which batch has a missing number, or whole ones only."""

from __future__ import annotations

import pytest
from torch.utils.data import IterableDataset

from torch_distinput import preprocessing as pp
from torch_distinput.testing import simulate


class Listed(IterableDataset):
    """A list as a stream."""

    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


def numbers(gaps):
    """Floats, whole numbers among them, and perhaps one that is missing."""
    rows = [{"age": float(i) if i % 3 else i} for i in range(40)]
    return [*rows[:17], {"age": None}, *rows[18:]] if gaps else rows


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [4, 8, 40])
@pytest.mark.parametrize("gaps", [0, 1])
def test_where_a_missing_number_lies_changes_nothing(workers, batch_size, gaps):
    """Nor where a batch has whole numbers only."""

    def run(strategy):
        features = pp.Features(age=pp.Normalization(missing="ignore"))
        features.adapt(Listed(numbers(gaps)), strategy=strategy, batch_size=batch_size)
        return features.fingerprint()

    whole = pp.Features(age=pp.Normalization(missing="ignore"))
    whole.adapt(numbers(gaps), batch_size=40)
    assert {whole.fingerprint()} == set(simulate(run, num_workers=workers))


@pytest.mark.parametrize("beside", [[], [0.5], [None]])
def test_a_large_integer_is_rounded_once(beside):
    """Beside floats, which NumPy would make float64 of all, as in a batch of integers."""
    large = 2**60 + 2**36 + 1
    layer = pp.Normalization(mean=0.0, variance=1.0, missing="ignore")
    assert 2.0**60 + 2**37 == layer([large, *beside])[0].item()
