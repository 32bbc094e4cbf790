"""What layers take: any shape, from whatever holds it; and what Keras gets wrong."""

from __future__ import annotations

import enum

import numpy as np
import pytest
import torch

from torch_distinput import preprocessing as pp
from torch_distinput.preprocessing.strings import packed as packing

BIG = 2**53 + 1
"""Not a float64."""


class Column:
    """What pandas, polars and Arrow have in common."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype=dtype)


def strings(**config):
    return pp.StringLookup(**{"vocabulary": ["a", "é", "a\0"], **config})


def integers(**config):
    return pp.IntegerLookup(**{"vocabulary": [5, BIG, BIG - 1], **config})


NUMBERS = [
    pp.Rescaling(2, 1),
    pp.Normalization(axis=None, mean=1, variance=4),
    pp.Discretization([1, 2]),
    pp.Hashing(7),
    integers(),
]


@pytest.mark.parametrize("layer", NUMBERS, ids=lambda layer: type(layer).__name__)
@pytest.mark.parametrize("shape", [(), (1,), (4,), (0,), (2, 1), (2, 3), (0, 3), (2, 3, 2)])
def test_numbers_of_any_shape(layer, shape):
    array = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
    expected = layer(torch.from_numpy(array))
    assert shape == tuple(expected.shape)
    swapped = array.astype(">i4")
    held = [array, array.astype(np.uint8), swapped, array[...], Column(array)]
    held += [array.astype(object)]
    held += [array.tolist()] if array.size or len(shape) == 1 else []
    for values in held:
        assert torch.equal(expected, layer(values))
    for values in held if array.size else held[:5]:  # a list of nothing is one of strings
        packed = pp.Features(a=layer).pack({"a": values})["a"]
        assert torch.equal(expected, layer(packed))


def test_arrays_that_torch_cannot_hold_are_copied():
    backwards = np.arange(3)[::-1]
    backwards.flags.writeable = False
    packed = pp.Features(a=integers()).pack({"a": backwards})["a"]
    assert [2, 1, 0] == packed.tolist()


def test_an_example_by_itself():
    features = pp.Features(a=pp.Rescaling(2), b=strings(), c=integers(), d=pp.Hashing(3))
    example = {"a": 1.5, "b": "a", "c": BIG, "d": 7}
    found = features(example)
    assert [3.0, 1, 2] == [found[name].item() for name in "abc"]
    packed = features(features.pack(example))
    assert all(torch.equal(found[name], packed[name]) for name in found)


@pytest.mark.parametrize("shape", [(), (1,), (4,), (0,), (2, 1), (2, 3), (0, 3), (2, 3, 2)])
@pytest.mark.parametrize("layer", [strings(), pp.Hashing(7)], ids=["lookup", "hashing"])
def test_strings_of_any_shape(layer, shape):
    words = np.resize(np.array(["a", "é", "b", ""], dtype=object), shape)
    expected = layer(pp.pack_strings(words))
    assert shape == tuple(expected.shape)
    in_bytes = np.char.encode(words.astype("U"), "utf-8")
    tuples = tuple(words) if shape else words
    for values in (words, words.tolist(), words.astype("U"), in_bytes, in_bytes.tolist(), tuples):
        if np.size(values) or not isinstance(values, (list, tuple)):  # no words, no shape
            assert torch.equal(expected, layer(values))
    if shape:
        assert torch.equal(expected, layer(Column(words)))


def test_a_column_of_lists():
    words = np.empty(2, dtype=object)
    words[:] = [["a", "b"], np.array(["é", "a"], dtype=object)]
    assert [[1, 0], [2, 1]] == strings()(words).tolist()
    numbers = np.empty(2, dtype=object)
    numbers[:] = [[5, 6], [7, BIG]]
    assert [[1, 0], [0, 2]] == integers()(numbers).tolist()


def test_packed_and_unpacked():
    for value in ("a", [], [["a", None], ["", "日\0"]], ["\udcff"]):
        assert value == pp.unpack_strings(pp.pack_strings(value))


def test_integers_beside_none_stay_exact():
    given = [None, BIG, BIG - 1, float("nan"), 5]
    layer = integers(missing="oov", num_oov_indices=1)
    for values in (given, np.array(given, dtype=object), np.array([given, given], dtype=object)):
        assert [0, 2, 3, 0, 1] == layer(values).reshape(-1, 5)[-1].tolist()
    adapted = pp.IntegerLookup(missing="oov")
    adapted.adapt(np.array([[None], [BIG], [BIG - 1], [BIG]], dtype=object))
    assert [-1, BIG, BIG - 1] == adapted.get_vocabulary()


def test_floats_are_looked_up_by_their_value():
    found = integers(missing="oov")([5.0, 5.5, float("inf"), -float("inf"), 1e300, float("nan")])
    assert [1, 0, 0, 0, 0, 0] == found.tolist()
    ends = pp.IntegerLookup(vocabulary=[2**63 - 1, -(2**63)])
    assert [0, 0, 2] == ends([2.0**63, 1e30, -(2.0**63)]).tolist()
    assert [1, 2] == ends([2**63 - 1, -(2**63)]).tolist()


class TestMissing:
    @pytest.mark.parametrize(("missing", "expected"), [("mask", [0, 0, 3]), ("oov", [1, 0, 3])])
    def test_strings(self, missing, expected):
        layer = strings(mask_token="", num_oov_indices=2, missing=missing)
        assert expected == layer([None, "", "a"]).tolist()
        assert expected == layer(pp.pack_strings([None, "", "a"])).tolist()

    @pytest.mark.parametrize(("missing", "expected"), [("mask", [0, 0, 3]), ("oov", [1, 0, 3])])
    def test_integers(self, missing, expected):
        layer = integers(mask_token=0, num_oov_indices=2, missing=missing)
        assert expected == layer([None, 0, 5]).tolist()
        assert expected == layer(torch.tensor([float("nan"), 0, 5])).tolist()

    @pytest.mark.parametrize("missing", ["mask", "oov"])
    def test_where_the_mask_has_no_index_nothing_is_counted(self, missing):
        layer = strings(mask_token="", output_mode="count", missing=missing)
        assert [int(missing == "oov"), 1, 0, 0] == layer([None, "", "a"]).tolist()

    @pytest.mark.parametrize("mask", ["nothing", 0])
    def test_hashing(self, mask):
        layer = pp.Hashing(2, mask_value=mask, missing="mask")
        assert [0, 1, 1, int(mask == 0)] == layer([None, "a", "", "nothing"]).tolist()
        assert [int(mask != 0), 1] == layer([0, 1]).tolist()  # nothing else goes to bin 0

    def test_numbers(self):
        layer = pp.Normalization(missing="ignore", axis=None)
        layer.adapt(np.array([1, None, 3, np.nan], dtype=object))
        assert [-1.0, 1.0] == layer([1, 3, None])[:2].tolist()
        assert layer([None]).isnan().all()
        assert [2, 0] == pp.Discretization([1, 2], missing="ignore")([None, 0]).tolist()


class TestVocabulary:
    def test_it_is_told_by_index(self):
        lookup = strings(mask_token="", num_oov_indices=2)
        assert ["", "[UNK]", "[UNK]", "a", "é", "a\0"] == lookup.get_vocabulary()
        assert ["a", "é", "a\0"] == lookup.get_vocabulary(include_special_tokens=False)
        assert len(lookup.get_vocabulary()) == lookup.vocabulary_size()
        assert lookup.get_vocabulary() == strings(
            mask_token="", num_oov_indices=2, vocabulary=lookup.get_vocabulary()
        ).get_vocabulary()
        counted = strings(mask_token="", output_mode="count")
        assert ["[UNK]", "a", "é", "a\0"] == counted.get_vocabulary()

    def test_indices_become_tokens_again(self):
        for make, words in ((strings, ["a", "é", "a\0", "a"]), (integers, [5, BIG, BIG - 1, 5])):
            back = make(invert=True)
            found = back(make()(np.array([words, words], dtype=object)))
            assert [words, words] == (found if isinstance(found, list) else found.tolist())
        assert [["[UNK]", "a"], ["[UNK]", "[UNK]"]] == strings(invert=True)([[0, 1], [9, -1]])
        assert [[-1, 5], [-1, -1]] == integers(invert=True)([[0, 1], [9, -1]]).tolist()
        assert strings(invert=True)(1) == "a"

    def test_numpy_s_integers_are_integers(self):
        config = {"max_tokens": np.int64(9), "num_oov_indices": np.int32(2)}
        alike = strings(max_tokens=9, num_oov_indices=2)
        assert strings(**config).fingerprint() == alike.fingerprint()
        first, second = (pp.Normalization(axis=[np.int64(axis)]) for axis in (1, 2))
        assert first.fingerprint() != second.fingerprint()


class TestWhatKerasGetsWrong:
    def test_an_empty_batch_does_not_make_nan(self):
        layer = pp.Normalization()
        batches = [np.float32([[1], [3]]), np.zeros((0, 1), np.float32)]
        layer.adapt(lambda: iter(batches))
        assert [[-1.0]] == layer(np.float32([[1]])).tolist()

    @pytest.mark.parametrize("mode", ["multi_hot", "count"])
    def test_the_last_dimension_is_the_sample(self, mode):
        found = pp.CategoryEncoding(2, mode)([[[0, 0, 1]], [[1, 1, 1]]])
        twice, thrice = (2, 3) if mode == "count" else (1, 1)
        assert [[[twice, 1]], [[0, thrice]]] == found.tolist()

    def test_a_trailing_nul_is_part_of_a_token(self):
        for values in (["a", "a\0"], pp.pack_strings(["a", "a\0"])):
            assert [1, 3] == strings()(values).tolist()
            assert [0, 0] == strings(vocabulary=["a\0\0"])(values).tolist()
        adapted = pp.StringLookup()
        adapted.adapt(["a", "a\0", "a\0"])
        assert ["[UNK]", "a\0", "a"] == adapted.get_vocabulary()


MASKED = np.ma.array([1, 2], mask=[False, True])


@pytest.mark.parametrize("layer", NUMBERS, ids=lambda layer: type(layer).__name__)
@pytest.mark.parametrize("column", [MASKED, [MASKED, MASKED]], ids=["column", "rows"])
def test_arrays_with_a_mask_are_refused(layer, column):
    """Masked values came as data."""
    features = pp.Features(x=layer)
    for take in (layer, lambda column: features.pack({"x": column})):
        with pytest.raises(TypeError, match="Expected arrays without a mask, got a MaskedArray"):
            take(column)


def test_examples_with_a_mask_are_refused():
    features = pp.Features(x=pp.Normalization())
    with pytest.raises(TypeError, match="Expected arrays without a mask, got a MaskedArray"):
        features.adapt([{"x": MASKED}, {"x": MASKED}])


class Color(str, enum.Enum):
    """Whose ``str()`` is ``Color.RED``."""

    RED = "red"


def test_a_string_of_another_class_is_its_text():
    """Wherever it stands, and however it is counted."""
    for values in (["red"], [["red"]], np.array([["red"]], object)):
        given = np.array(values, object)
        given.fill(Color.RED)
        for column in (given, given.tolist()):
            layer = strings(vocabulary=["red"])
            assert layer(values).tolist() == layer(column).tolist()
            assert layer(values).tolist() == layer(pp.pack_strings(column)).tolist()
            assert pp.Hashing(1000)(values).tolist() == pp.Hashing(1000)(column).tolist()
            adapted = pp.StringLookup()
            adapted.adapt(iter([column]))
            assert ["[UNK]", "red"] == adapted.get_vocabulary()
    assert ["[UNK]", "red"] == strings(vocabulary=[Color.RED]).get_vocabulary()


@pytest.mark.parametrize(
    "layer",
    [
        pp.Hashing(1000),
        pp.Hashing(1000, salt=3),
        pp.StringLookup(vocabulary=["a"], num_oov_indices=500),
    ],
)
def test_one_long_string_does_not_widen_the_others(layer, monkeypatch):
    """Strings are hashed in blocks of about one length; the results are those of each alone."""
    rng = np.random.default_rng(0)
    values = ["x" * int(length) for length in rng.integers(0, 200, 50)] + ["y" * 5_000, "a", ""]
    widths = []
    pad = packing._pad

    def noted(rows, shape, width):
        widths.append((len(rows.lengths), width))
        return pad(rows, shape, width)

    monkeypatch.setattr(packing, "_pad", noted)
    found = layer(values).tolist()
    assert sum(count * width for count, width in widths) < 3 * sum(map(len, values))
    assert [layer([value]).item() for value in values] == found
