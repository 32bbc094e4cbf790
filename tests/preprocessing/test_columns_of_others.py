"""Columns as other packages make them: each row gives what it gives in a list."""

from __future__ import annotations

import tempfile
from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from torch_distinput import preprocessing as pp

CITIES, AGES = ["a", "b", "a"], [0.0, 1.0, 2.0]
MAKERS = {
    "tuple": tuple,
    "array": np.array,
    "objects": lambda values: np.array(values, object),
    "Series": pd.Series,
    "Arrow": pa.array,
    "Arrow in chunks": lambda values: pa.chunked_array([values[:1], values[1:]]),
}


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("mode", ["int", "one_hot", "multi_hot", "count"])
@pytest.mark.parametrize("name", MAKERS)
def test_a_batch_of_columns(name, mode):
    make = MAKERS[name]
    lookup = pp.StringLookup(vocabulary=["a", "b"], output_mode=mode)
    layers = {"city": lookup, "age": pp.Discretization([1.0], output_mode=mode)}
    features = pp.Features(**layers)
    expected = features({"city": CITIES, "age": torch.tensor(AGES)})
    assert same(expected, features({"city": make(CITIES), "age": make(AGES)}))
    assert same(expected, features(pd.DataFrame({"city": CITIES, "age": AGES})))
    assert len(expected["city"]) == 3


@pytest.mark.parametrize("name", MAKERS)
def test_adapt_takes_them(name):
    """A data frame as well, whose iteration gives names."""
    found = []
    for data in (
        {"city": CITIES, "age": AGES},
        {"city": MAKERS[name](CITIES), "age": MAKERS[name](AGES)},
        pd.DataFrame({"city": CITIES, "age": AGES}),
    ):
        features = pp.Features(city=pp.StringLookup(), age=pp.Normalization())
        features.adapt(data)
        found.append(features.fingerprint())
    assert len(set(found)) == 1


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA], ids=str)
@pytest.mark.parametrize("values", [["a", "?"], ["?", "a"], ["?", "?"]])
def test_what_pandas_has_for_none_among_strings(missing, values):
    given = [missing if value == "?" else value for value in values]
    expected = [None if value == "?" else value for value in values]
    layers = {
        "hashed": ("x", pp.Hashing(10, mask_value="", missing="mask")),
        "found": ("x", pp.StringLookup(vocabulary=["a"], missing="oov")),
    }
    features = pp.Features(**layers)
    assert same(features({"x": expected}), features({"x": given}))
    if values != ["?", "?"]:  # of nothing but NaN a column is one of numbers
        assert same(features({"x": expected}), features(features.pack({"x": given})))


@pytest.mark.parametrize("values", [[1, None, 0], [1, 2, 0], [None, None]])
def test_missing_integers_are_hashed_alike_in_a_model(values):
    features = pp.Features(x=pp.Hashing(5, mask_value=0, missing="mask"))
    packed = {"x": torch.tensor([np.nan if v is None else v for v in values], dtype=torch.float64)}
    expected = features({"x": values})
    assert same(expected, features(packed))
    assert same(expected, features({"x": packed["x"].numpy()}))
    assert same(expected, features({"x": [pd.NA if v is None else v for v in values]}))
    assert same(expected, features({"x": pd.Series(values)}))
    for wrong in (0.5, float("inf"), 1e19):
        with pytest.raises(ValueError, match="takes integers"):
            features({"x": torch.tensor([wrong], dtype=torch.float64)})


def test_missing_integers_are_packed():
    features = pp.Features(x=pp.Hashing(5, mask_value=0, missing="mask"))
    expected = features({"x": [5, None]})
    for missing in (None, pd.NA):
        assert same(expected, features(features.pack({"x": [5, missing]})))


NUMBERS = {
    "Normalization": (partial(pp.Normalization, mean=1.0, variance=4.0), "ignore"),
    "Discretization": (partial(pp.Discretization, [1.5]), "ignore"),
    "IntegerLookup": (partial(pp.IntegerLookup, vocabulary=[1, 2]), "oov"),
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("values", [[1, None, 0], [1.0, 2.0, None], [True, None], [None, None]])
def test_what_pandas_has_for_none_among_numbers(values, name):
    """NumPy makes NaN of it in columns of numbers, but not in those of booleans, or in lists."""
    layer, missing = NUMBERS[name]
    features = pp.Features(x=layer(missing=missing))
    given = [pd.NA if value is None else value for value in values]
    expected = features({"x": values})["x"].nan_to_num(-9.0)
    assert torch.equal(expected, features({"x": given})["x"].nan_to_num(-9.0))
    if any(values):  # of nothing but None a column is one of strings
        packed = features.pack({"x": given})
        assert torch.equal(expected, features(packed)["x"].nan_to_num(-9.0))
    with pytest.raises(ValueError, match=r"expected numbers|got NaN or None"):
        pp.Features(x=layer())({"x": given})


@pytest.mark.parametrize("values", [[("a", "b"), ("b", "a")], [("a",), ("b",)]])
def test_collate_takes_examples_with_tuples(values):
    """They are rows, as lists are."""
    features = pp.Features(x=pp.StringLookup(vocabulary=["a", "b"], output_mode="multi_hot"))
    expected = features({"x": [list(value) for value in values]})
    assert same(expected, features.collate([{"x": value} for value in values]))


PARTS = [{"tags": ["a", "c"], "v": [1.0, 10.0]}, {"tags": ["b", "a"], "v": [3.0, 30.0]}]


@pytest.mark.parametrize("name", ["tags", "v"])
def test_parts_of_a_default_collated_batch_are_not_taken_for_rows(name):
    """Adapting to its loader knows what they are."""
    layers = {"tags": pp.StringLookup(), "v": pp.Normalization()}
    features = pp.Features(**{name: layers[name]})
    loader = DataLoader(PARTS, batch_size=2)
    features.adapt(loader)
    (batch,) = loader
    with pytest.raises(TypeError, match=r"default_collate.*collate_fn=features.collate"):
        features(batch)
    (rows,) = DataLoader(PARTS, batch_size=2, collate_fn=features.collate)
    assert same(rows, features({name: [example[name] for example in PARTS]}))
    with pytest.raises(TypeError, match="default_collate"):
        pp.Features(**{name: type(layers[name])()}).adapt(batch for batch in loader)


def test_a_layer_by_itself_refuses_parts_as_well():
    loader = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=4)
    with pytest.raises(TypeError, match="default_collate"):
        pp.Normalization().adapt(batch for batch in loader)


@pytest.mark.parametrize(
    "make",
    [
        pp.Hashing,
        pp.HashedCrossing,
        lambda number: pp.TextVectorization(ngrams=number, vocabulary=["a"]),
        lambda number: pp.Normalization(axis=number),
        lambda number: pp.Normalization(axis=(number,)),
        lambda number: pp.Discretization(num_bins=number),
    ],
)
def test_numbers_of_numpy_are_arguments_like_others(make):
    assert make(2).fingerprint() == make(np.int64(2)).fingerprint()
    with tempfile.TemporaryDirectory() as folder:
        pp.save(make(np.int64(2)), f"{folder}/saved")
        assert pp.load(f"{folder}/saved").fingerprint() == make(2).fingerprint()


@pytest.mark.parametrize(
    "names",
    [("", "tokens"), ("a", "A"), ("\u65e5\u672c\u8a9e" * 12, "a" * 230)],
)
def test_any_names_of_features_have_files(names, tmp_path):
    features = pp.Features(**{name: ("x", pp.StringLookup()) for name in names})
    features.adapt({"x": ["q", "r"]})
    pp.save(features, tmp_path / "saved")
    assert pp.load(tmp_path / "saved").fingerprint() == features.fingerprint()


@pytest.mark.slow
def test_features_are_one_graph():
    features = pp.Features(x=pp.Rescaling(2.0), y=pp.Discretization([1.5]))
    batch = {"x": torch.ones(2), "y": torch.arange(2.0)}
    compiled = torch.compile(features, fullgraph=True, backend="eager")
    assert same(features(batch), compiled(batch))
