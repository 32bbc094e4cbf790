"""A layer of every kind and output mode, and batches with what goes wrong elsewhere."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from torch_distinput import preprocessing as pp
from torch_distinput.preprocessing.strings.byte_rows import to_str

WIDTH = 24
"""Bytes of a packed string: hashes are unrolled over them."""
TOKENS = ["a", "b", "é", "日本", "a\0", "\udcff", " ", "t" * WIDTH, "[UNK]x"]
IDF = [0.1 * place + 0.3 for place in range(len(TOKENS))]
CODES = [0, 1, -1, 7, 2**53 + 1, 2**53, -(2**63), 2**63 - 1, 10**18]
WEIGHTS = IDF[: len(CODES)]
SALT = (12345, 2**63)


def of_strings(**config):
    return pp.StringLookup(**{"vocabulary": TOKENS, "missing": "oov", **config})


def of_integers(**config):
    return pp.IntegerLookup(**{"vocabulary": CODES, "missing": "oov", "oov_token": -9, **config})


def numbers():
    """Layers of a column of floats, ``(rows,)`` and ``(rows, 3)``."""
    moments = {"mean": [0.1, 1e30, -0.0], "variance": [2.0, 0.0, 1e-40]}
    cuts = [-np.inf, -1e-40, 0, 0.1, 0.1, 3e38]
    layers = {
        "scaled": ("x", pp.Rescaling(0.1, -3)),
        "scaled each": ("xs", pp.Rescaling([0.1, 2, 1e30], [1, 0, -1])),
        "normal": ("x", pp.Normalization(None, 0.3, 7)),
        "normal back": ("x", pp.Normalization(None, 0.3, 7, invert=True)),
        "normal column": ("x", pp.Normalization(-1, 0.3, 0)),
        "normal each": ("xs", pp.Normalization(**moments)),
        "normal each back": ("xs", pp.Normalization(1, **moments, invert=True)),
        "normal pairs": ("xss", pp.Normalization((1, 2), [[0.5, 3]], [[0.1, 9]])),
        "normal last": ("xss", pp.Normalization(2, [0.5, 3], [0.1, 9])),
    }
    for mode in ("int", "one_hot", "multi_hot", "count"):
        for column in ("x", "xs"):
            layers[f"bins {mode} {column}"] = (column, pp.Discretization(cuts, output_mode=mode))
    return layers


def texts():
    """Layers of a column of strings, ``(rows,)`` and ``(rows, 2)``."""
    layers = {
        "hash": ("s", pp.Hashing(11, mask_value="", missing="mask")),
        "hash count": ("ss", pp.Hashing(3, "b", output_mode="count", missing="mask")),
        "hash salt": ("ss", pp.Hashing(11, mask_value="a", salt=SALT, missing="mask")),
        "slots": ("s", of_strings(num_oov_indices=5)),
        "slots salt": ("ss", of_strings(num_oov_indices=5, salt=7)),
        "mask": ("s", of_strings(mask_token="", num_oov_indices=2, missing="mask")),
        "capped": ("s", of_strings(max_tokens=20, output_mode="count", pad_to_max_tokens=True)),
        "crossed": (("t", "t"), pp.HashedCrossing(13, "one_hot")),
        "crossed both": (("t", "i"), pp.HashedCrossing(2**40)),
    }
    for mode in ("one_hot", "multi_hot", "count", "tf_idf"):
        weights = {"idf_weights": IDF} if mode == "tf_idf" else {}
        masked = of_strings(output_mode=mode, mask_token="", missing="mask", **weights)
        layers[f"vectors {mode}"] = ("ss", masked)
    return layers


def codes():
    """Layers of a column of integers, ``(rows,)`` and ``(rows, 2)``, or of floats."""
    layers = {
        "hash ints": ("i", pp.Hashing(11, mask_value=7)),
        "hash ints salt": ("is", pp.Hashing(11, salt=3)),
        "hash ints one_hot": ("is", pp.Hashing(5, output_mode="one_hot")),
        "integers": ("i", of_integers(num_oov_indices=3)),
        "integers hashed": ("i", of_integers(num_oov_indices=3, oov_method="farmhash")),
        "integers salt": ("is", of_integers(num_oov_indices=3, oov_method="farmhash", salt=SALT)),
        "integers mask": ("is", of_integers(mask_token=5, missing="mask")),
        "floats": ("x", of_integers(num_oov_indices=1)),
        "floats mask": ("f", of_integers(mask_token=5, missing="mask")),
        "integers back": ("i", of_integers(invert=True)),
    }
    for mode in ("one_hot", "multi_hot", "count"):
        layers[f"category {mode}"] = ("is", pp.CategoryEncoding(8, mode))
    for mode in ("one_hot", "multi_hot", "count", "tf_idf"):
        weights = {"idf_weights": WEIGHTS} if mode == "tf_idf" else {}
        layers[f"codes {mode}"] = ("is", of_integers(output_mode=mode, mask_token=5, **weights))
    return layers


FLOATS = [0.0, -0.0, 1e-45, -1e-40, 0.1, 3e38, -3e38, np.inf, -np.inf, np.nan, 7.0, 2.0**63]
INTEGERS = [*CODES, 5, 3, -2, 2**62, 255, 2**31, -(2**31)]
WORDS = [*TOKENS, "", "A", "a\0\0", "\0", "\udcc3", "ab", "[UNK]", "x" * WIDTH, "\ud7ff\ue000"]
a_float = st.one_of(st.sampled_from(FLOATS), st.floats(width=32))
an_integer = st.one_of(st.sampled_from(INTEGERS), st.integers(-(2**63), 2**63 - 1))
some_bytes = st.binary(max_size=WIDTH).map(to_str)
a_text = st.one_of(st.sampled_from(WORDS), some_bytes, st.text(max_size=6).filter(
    lambda text: all(not 0xD800 <= ord(character) < 0xE000 for character in text)))  # fmt: skip
a_word = st.one_of(a_text, a_text, st.none())


def boxed(values, shape):
    out = np.empty(int(np.prod(shape)), dtype=object)
    out[:] = values
    return out.reshape(shape)


@st.composite
def batches(draw):
    """Columns of one number of rows, which may be none."""
    rows = draw(st.integers(0, 4))

    def some(values, *shape):
        size = rows * int(np.prod(shape))
        return draw(st.lists(values, min_size=size, max_size=size)), (rows, *shape)

    def floats(*shape):
        values, whole = some(a_float, *shape)
        return np.float32(values).reshape(whole)

    return {
        "x": floats(), "xs": floats(3), "xss": floats(1, 2),
        "f": np.float64(some(a_float)[0]),
        "s": boxed(*some(a_word)), "ss": boxed(*some(a_word, 2)), "t": boxed(*some(a_text)),
        "i": np.int64(some(an_integer)[0]), "is": np.int64(some(an_integer, 2)[0]).reshape(rows, 2),
    }  # fmt: skip


def one_batch(rows):
    return {
        "x": np.resize(np.float32(FLOATS), rows), "xs": np.resize(np.float32(FLOATS), (rows, 3)),
        "xss": np.resize(np.float32(FLOATS), (rows, 1, 2)),
        "f": np.resize(np.float64(FLOATS), rows),
        "s": np.resize(boxed([*WORDS, None], len(WORDS) + 1), rows),
        "ss": np.resize(boxed([*WORDS, None], len(WORDS) + 1), (rows, 2)),
        "t": np.resize(boxed(WORDS, len(WORDS)), rows),
        "i": np.resize(np.int64(INTEGERS), rows), "is": np.resize(np.int64(INTEGERS), (rows, 2)),
    }  # fmt: skip


KINDS = {"numbers": numbers, "texts": texts, "codes": codes}
