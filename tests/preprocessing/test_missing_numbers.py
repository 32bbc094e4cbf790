"""adapt: the state does not depend on which batch has a missing number, or whole ones only."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
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


LISTS = [{"x": [1, None]}, {"x": [2, 5]}, {"x": [None, 7]}]
LAYERS = {
    "Normalization": lambda: pp.Normalization(missing="ignore"),
    "Discretization": lambda: pp.Discretization(num_bins=2, missing="ignore"),
    "IntegerLookup": lambda: pp.IntegerLookup(missing="oov"),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("wrap", [pd.Series, lambda rows: rows])
def test_lists_with_missing_numbers(name, wrap):
    """Of examples or in a column; NumPy makes an array of lists of them, which it cannot see."""
    rows = [row["x"] for row in LISTS]
    of_rows, of_columns = pp.Features(x=LAYERS[name]()), pp.Features(x=LAYERS[name]())
    of_rows.adapt(LISTS)
    of_columns.adapt({"x": wrap(rows)})
    assert of_rows.fingerprint() == of_columns.fingerprint()
    packed, called = of_rows(of_rows.pack({"x": wrap(rows)})), of_rows({"x": wrap(rows)})
    assert str(of_rows.collate(LISTS)) == str(packed) == str(called)


@pytest.mark.parametrize("value", [1, 3.0, None, float("nan")])
def test_an_example_is_a_row_of_a_batch(value):
    features = pp.Features(x=pp.IntegerLookup(vocabulary=[1, 2, 3], missing="oov"))
    assert features({"x": [value]})["x"][0] == features({"x": value})["x"]


@pytest.mark.parametrize("missing", [None, float("nan")])
@pytest.mark.parametrize("rows", [0, 1, 2])
def test_a_batch_without_any_string(missing, rows):
    """NaN among strings is None, also where nothing else is there."""
    layer = pp.Hashing(11, mask_value="", missing="mask")
    features = pp.Features(x=layer)
    if rows:
        assert [0] * rows == features.collate([{"x": missing}] * rows)["x"].tolist()
    assert [0] * rows == features(features.pack({"x": [missing] * rows}))["x"].tolist()
    assert [0] * rows == layer([missing] * rows).tolist()
    with pytest.raises(TypeError, match="takes integers, got a tensor of dtype torch.float64"):
        layer(torch.tensor([0.5, float("nan")], dtype=torch.float64))


@pytest.mark.parametrize("make", [np.array, torch.tensor, pd.Series])
@pytest.mark.parametrize("rows", [[], [float("nan")] * 2])
def test_floats_without_a_number_are_a_batch_without_any_string(make, rows):
    floats = make(rows)
    layer = pp.Hashing(11, mask_value="", missing="mask")
    features = pp.Features(x=layer)
    assert [0] * len(rows) == layer(floats).tolist() == features({"x": floats})["x"].tolist()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("shape", [(2, 3), (0, 3), (2, 1)])
def test_their_shape_stays(dtype, shape):
    layer = pp.Hashing(11, mask_value="", missing="mask")
    found = layer(torch.full(shape, torch.nan, dtype=dtype))
    assert torch.equal(torch.zeros(shape, dtype=torch.int64), found)
    with pytest.raises(TypeError, match=f"takes integers, got a tensor of dtype {dtype}"):
        layer(torch.ones(2, dtype=dtype))


LARGE = [[2**63, 1], [2, 3]]


@pytest.mark.parametrize(
    "wrap", [list, pd.Series, lambda rows: np.array([*rows, None], object)[:2]]
)
def test_rows_of_integers_that_are_too_large(wrap):
    """In whatever the rows stand."""
    layer = pp.Normalization(mean=0.0, variance=1.0, missing="ignore")
    with pytest.raises(ValueError, match=r"integers below 2\*\*63"):
        layer(wrap(LARGE))


READERS = {
    "lookup": pp.IntegerLookup(vocabulary=[1, 2]),
    "scaled": pp.Normalization(mean=0.0, variance=1.0),
}


@pytest.mark.parametrize("name", READERS)
def test_a_column_of_numbers_has_their_type_without_any_row(name):
    """Where another layer takes it as it is, which is one of strings as well."""
    crossed = (("x", "z"), pp.HashedCrossing(8))
    features = pp.Features(x=READERS[name], crossed=crossed)
    one, none = features.pack({"x": [1], "z": ["a"]}), features.pack({"x": [], "z": []})
    assert isinstance(none["x"], torch.Tensor)
    assert (0,) == features(none)["crossed"].shape == features(none)["x"].shape
    assert one["x"].dtype == none["x"].dtype or name == "scaled"
