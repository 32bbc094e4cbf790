"""What layers refuse: each message says what was expected, what came, and what to do."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from torch_distinput import preprocessing
from torch_distinput.errors import UsageError

pp: Any = preprocessing  # mypy refuses most of this too
NAN = float("nan")
SURROGATE = "\ud800"
"""Stands for no byte, so UTF-8 has no word for it."""


def strings(**config):
    return pp.StringLookup(**{"vocabulary": ["a", "b"], **config})


def integers(**config):
    return pp.IntegerLookup(**{"vocabulary": [5, 6], **config})


def normalization(**config):
    return pp.Normalization(**{"mean": 0, "variance": 1, **config})


MADE = [
    (lambda: pp.Rescaling("a"), "scale must be a number, or one per element, got 'a'"),
    (lambda: pp.Rescaling(1, None), "offset must be a number, or one per element, got None"),
    (lambda: pp.Normalization(axis=0), r"dimensions behind the rows once each, got 0"),
    (lambda: pp.Normalization(axis=(1, 1)), r"once each, got \(1, 1\)"),
    (lambda: pp.Normalization(mean=1), "both mean and variance or none of them, got one"),
    (lambda: pp.Normalization(variance=1), "both mean and variance or none of them, got one"),
    (lambda: normalization(mean=[1.0, 2.0]), r"of one shape.* axis=-1, got shapes \(2,\) and \(\)"),
    (lambda: normalization(mean=[[1]], variance=[[1]]), r"got shapes \(1, 1\) and \(1, 1\)"),
    (lambda: pp.Normalization(missing="oov"), "one of 'error', 'ignore', got 'oov'"),
    (pp.Discretization, "bin_boundaries or num_bins, one of them; got .*None.*None"),
    (lambda: pp.Discretization([1.0], 2), r"got bin_boundaries=\[1.0\] and num_bins=2"),
    (lambda: pp.Discretization(num_bins=0), "num_bins must be at least 1, got 0"),
    (lambda: pp.Discretization([2, 1]), r"ascending order, without NaN, got \[2, 1\]"),
    (lambda: pp.Discretization([1, NAN]), r"without NaN, got \[1, nan\]"),
    (lambda: pp.Discretization([NAN]), r"without NaN, got \[nan\]"),
    (lambda: pp.Discretization([[1.0]]), r"got \[\[1.0\]\]"),
    (lambda: pp.Discretization(["a"]), r"bin_boundaries to be numbers, got \['a'\]"),
    (lambda: pp.Discretization([1], output_mode="tf_idf"), "'count', got 'tf_idf'"),
    (pp.CategoryEncoding, "needs num_tokens, the number of categories; got None"),
    (lambda: pp.CategoryEncoding(0), "num_tokens must be at least 1, got 0"),
    (lambda: pp.CategoryEncoding(2, "int"), "'one_hot', 'multi_hot', 'count', got 'int'"),
    (lambda: pp.Hashing(0), "num_bins must be at least 1, got 0"),
    (lambda: pp.Hashing(2, mask_value=b"a"), "mask_value must be a str or an int, got b'a'"),
    (lambda: pp.Hashing(2, mask_value=1.5), "mask_value must be a str or an int, got 1.5"),
    (lambda: pp.Hashing(2, missing="mask"), "missing='mask' needs a mask_value, got None"),
    (lambda: pp.Hashing(2, missing="oov"), "one of 'error', 'mask', got 'oov'"),
    (lambda: pp.Hashing(2, salt=[1, 2, 3]), r"an integer or two of them, got \[1, 2, 3\]"),
    (lambda: pp.Hashing(2, salt=1.5), "an integer or two of them, got 1.5"),
    (lambda: pp.Hashing(2, salt=True), "an integer or two of them, got True"),
    (lambda: strings(salt="ab"), "an integer or two of them, got 'ab'"),
    (lambda: pp.HashedCrossing(2, "count"), "'int', 'one_hot', got 'count'"),
    (lambda: strings(vocabulary=[]), "a vocabulary of at least one token, got none"),
    (lambda: strings(vocabulary=["[UNK]"]), "a vocabulary of at least one token, got none"),
    (lambda: strings(vocabulary=["a", "b", "a"]), "each token once .* got 1 repeated, such as 'a'"),
    (lambda: strings(vocabulary=["a", b"a"]), "each token once .* such as 'a'"),
    (lambda: strings(vocabulary=["a", None]), "of strings, got None at 1. Leave it out"),
    (lambda: strings(vocabulary=["a", 1]), "Expected strings, got 1 of type int"),
    (lambda: strings(vocabulary=["a", SURROGATE]), "UTF-8 can express, got '\\\\ud800'"),
    (lambda: strings(vocabulary=[["a"], ["b"]]), r"as a flat list, got shape \(2, 1\)"),
    (lambda: strings(vocabulary=b"a"), r"as a flat list, got shape \(\): b'a'"),
    (lambda: strings(vocabulary={"a"}), "a list or NumPy array of them"),
    (lambda: pp.StringLookup(None, 1, "a", vocabulary=["a"]), "only at the front .* got 'a' among"),
    (lambda: strings(vocabulary=["a", "[UNK]"], invert=True), r"\['\[UNK\]'\]; got '\[UNK\]'"),
    (lambda: strings(mask_token=b"a"), "mask_token must be of type str, got b'a'"),
    (lambda: strings(oov_token=None), "oov_token must be of type str, got None"),
    (lambda: strings(max_tokens=1), "max_tokens must be at least 2, got 1"),
    (lambda: strings(max_tokens=3, mask_token=""), r"at most 1 tokens \(max_tokens=3 with 2"),
    (lambda: strings(num_oov_indices=-1), "num_oov_indices must be at least 0, got -1"),
    (lambda: strings(output_mode="sum"), "'count', 'tf_idf', got 'sum'"),
    (lambda: strings(invert=True, output_mode="count"), "needs output_mode='int', got 'count'"),
    (lambda: strings(pad_to_max_tokens=True), "needs max_tokens, got None"),
    (lambda: strings(missing="ignore"), "one of 'error', 'mask', 'oov', got 'ignore'"),
    (lambda: strings(missing="mask"), "missing='mask' needs a mask_token, got None"),
    (lambda: strings(missing="oov", num_oov_indices=0), "slot, got num_oov_indices=0"),
    (lambda: strings(output_mode="tf_idf"), "needs idf_weights .* got none with 'tf_idf'"),
    (lambda: strings(idf_weights=[1, 2]), "and only then, got some with 'int'"),
    (lambda: strings(idf_weights=[1], output_mode="tf_idf"), r"2 tokens, got .* shape \(1,\)"),
    (lambda: strings(idf_weights=[1, math.nan], output_mode="tf_idf"), "finite .*got nan at 1"),
    (lambda: strings(vocabulary=None, idf_weights=[1]), "given vocabulary, got vocabulary=None"),
    (lambda: integers(vocabulary=[5, 5]), "each token once .* such as 5"),
    (lambda: integers(vocabulary=[5.5]), "takes integers, got an array of dtype float64"),
    (lambda: integers(vocabulary=[5, None]), r"got None 1 times in 2 values. Fill them in\.$"),
    (lambda: integers(vocabulary=[2**63]), "below 2..63, got 9223372036854775808"),
    (lambda: integers(vocabulary=[2**64]), "integers of at most 64 bits, got"),
    (lambda: integers(vocabulary=[[5], [6]]), r"as a flat list, got shape \(2, 1\)"),
    (lambda: integers(vocabulary=None, idf_weights=[1]), "given vocabulary, got vocabulary=None"),
    (lambda: integers(oov_method="mod"), r"one of \('floormod', 'farmhash'\), got 'mod'"),
    (lambda: integers(salt=1), "needs oov_method='farmhash', got salt=1 alone"),
    (lambda: pp.IntegerLookup(None, 1, "a"), "mask_token must be of type int, got 'a'"),
    (lambda: integers(oov_token=True), "oov_token must be of type int, got True"),
    (pp.Features, "needs at least one layer"),
    (lambda: pp.Features(a=5), "Expected a= a layer, or a pair .* got 5"),
    (lambda: pp.Features(a=pp.Features(b=strings())), "Expected a= a layer"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), MADE)
def test_a_configuration_is_refused(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


FLOATS = [pp.Rescaling(2), normalization(), normalization(missing="ignore"), pp.Discretization([1])]
WHOLE = [pp.CategoryEncoding(3), pp.Hashing(3), integers(invert=True)]
EACH = [*((layer, "numbers") for layer in [*FLOATS, integers()]), *((x, "integers") for x in WHOLE)]


@pytest.mark.parametrize(("layer", "expected"), EACH)
class TestNumbers:
    """Every layer of numbers, in one voice."""

    def test_what_is_no_number(self, layer, expected):
        for value in (["x", 1], np.array(["2020-01-01"], "M8[D]"), [[1, "x"]]):
            with pytest.raises(TypeError, match=f"takes {expected}.*Convert the column first"):
                layer(value)
        with pytest.raises(TypeError, match=f"takes {expected}, got a tensor of .* torch.complex"):
            layer(torch.tensor([1j]))

    def test_rows_of_unequal_lengths(self, layer, expected):
        ragged = np.array([[1], [1, 2]], dtype=object)
        for value in ([[1], [1, 2]], ragged, [[1, None], [None]]):
            with pytest.raises(ValueError, match=rf"{expected} in lists of equal|of equal lengths"):
                layer(value)

    def test_integers_that_nothing_holds(self, layer, expected):
        with pytest.raises(TypeError, match=f"{expected} of at most 64 bits, got .118059162071741"):
            layer([2**70])

    def test_none(self, layer, expected):
        if layer.get_config().get("missing", "error") == "ignore":
            return
        cure = ", or pass missing='ignore'" if layer in FLOATS[1:] else ""
        cure = ", or pass missing='mask' or missing='oov'" if layer is EACH[4][0] else cure
        cure = ", or pass missing='mask'" if isinstance(layer, pp.Hashing) else cure
        with pytest.raises(ValueError, match=rf"None 1 times in 2 .* Fill (it|them) in{cure}\.$"):
            layer([None, 1])


CALLED = [
    (pp.CategoryEncoding(3), [1.0], "takes integers, got an array of dtype float64"),
    (pp.CategoryEncoding(3), torch.tensor([1.0]), "got a tensor of dtype torch.float32"),
    (pp.CategoryEncoding(3), np.array([2**63], np.uint64), "below 2..63, got 9223372036854775808"),
    (integers(), np.array([2**64 - 1], np.uint64), "below 2..63, got 18446744073709551615"),
    (integers(), torch.tensor([2**64 - 1], dtype=torch.uint64), "below 2..63. Convert"),
    (integers(), [5, NAN], "NaN or None 1 times in 2 numbers. Fill it in, or pass missing='mask'"),
    (integers(num_oov_indices=0), [5, 77, 78], "num_oov_indices is 0; got 77, 78. Give it"),
    (integers(num_oov_indices=0), [5, 1.5], "num_oov_indices is 0; got 1.5. Give it"),
    (strings(num_oov_indices=0), ["a", "x", "y"], "num_oov_indices is 0; got 'x', 'y'. Give it"),
    (strings(num_oov_indices=0), list("acdefgh"), "got 'c', 'd', 'e', 'f', 'g', ...."),
    (strings(), ["a", None], "got None 1 times in 2 strings. Fill it in, or pass missing='mask'"),
    (strings(), [1], "Expected strings, got 1 of type int. Convert it with str"),
    (strings(), [NAN], "got None 1 times in 1 strings"),
    (strings(), torch.tensor([1]), "got a tensor of dtype torch.int64"),
    (strings(), [["a"], ["a", "b"]], r"inner shapes \(1,\), \(2,\). Fill them up with a mask"),
    (strings(), [["a"], "b"], r"inner shapes \(\), \(1,\)"),
    (strings(num_oov_indices=2), [SURROGATE], "UTF-8 can express, got '\\\\ud800'"),
    (pp.Hashing(3), [SURROGATE], "UTF-8 can express"),
    (pp.Hashing(3), ["a", None], "Hashing got None. Fill it in"),
    (pp.Hashing(3), [1.5], "takes integers, got an array of dtype float64"),
    (pp.HashedCrossing(3), (["a"], [None]), "HashedCrossing got None. Fill it in"),
    (pp.HashedCrossing(3), (["a"],), r"two or more columns of one shape, got 1 of shapes \[\(1,\)"),
    (pp.HashedCrossing(3), (["a"], [1, 2]), r"shapes \[\(1,\), \(2,\)\]"),
    (pp.HashedCrossing(3), np.zeros((2, 2)), "takes a tuple of columns, got ndarray"),
    (normalization(mean=[0, 1], variance=[1, 1]), [[1, 2, 3]], r"\(2,\) .* got .* shape \(1, 3\)"),
    (normalization(mean=[0, 1], variance=[1, 1], axis=2), [[1, 2]], "got inputs of 2 dimensions"),
]  # fmt: skip


@pytest.mark.parametrize(("layer", "value", "message"), CALLED)
def test_an_input_is_refused(layer, value, message):
    with pytest.raises((ValueError, TypeError), match=message):
        layer(value)


def test_weights_are_of_the_shape_of_the_indices():
    layer = pp.CategoryEncoding(3, "count")
    with pytest.raises(ValueError, match=r"of the inputs, \(1, 2\), got \(1, 3\)"):
        layer([[0, 1]], count_weights=[[1, 2, 3]])
    with pytest.raises(ValueError, match="count_weights needs output_mode='count', got 'one_hot'"):
        pp.CategoryEncoding(3, "one_hot")([0], count_weights=[1])


def test_strings_longer_than_a_model_takes():
    with pytest.raises(ValueError, match="at most max_bytes=2 bytes, got one of 3: '日'. Raise"):
        pp.pack_strings(["a", "日"], 2)


def test_layers_without_a_state():
    for layer in (pp.Normalization(), pp.Discretization(num_bins=2), strings(vocabulary=None)):
        with pytest.raises(UsageError, match=r"has no .* yet. Call adapt\(dataset\)"):
            layer([1] if "text" not in layer.state_types else ["a"])


@pytest.mark.parametrize("column", [[5, None], [5.0, None], np.array([5, None], dtype=object)])
def test_none_among_integers_is_no_zero_in_a_model(column):
    features = pp.Features(a=integers())
    with pytest.raises(ValueError, match="IntegerLookup 'a' .*got .*None 1 times in 2"):
        features(column := {"a": column})
    with pytest.raises(ValueError, match="'a' expected integers, got None 1 times in 2 values"):
        features.pack(column)


def test_indices_that_are_turned_into_integers_are_packed_as_integers():
    features = pp.Features(a=integers(missing="oov", invert=True))
    assert [5, -1] == features(features.pack({"a": [1, 0]}))["a"].tolist()


def test_what_a_model_cannot_take_beside_none():
    features = pp.Features(a=integers(missing="oov"))
    assert [1, 0] == features(features.pack({"a": [5, None]}))["a"].tolist()
    with pytest.raises(ValueError, match="up to 2..53 in a model where .* got 9007199254740993"):
        features.pack({"a": [None, 2**53 + 1]})
