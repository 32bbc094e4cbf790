"""Numbers as text, hashes as bins, and columns as one hash."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.preprocessing.hashes.packed import check_export, pack
from torch_distinput.preprocessing.strings.hashes.decimal_text import decimal_text
from torch_distinput.preprocessing.strings.hashes.farmhash import cross, fingerprint64
from torch_distinput.preprocessing.strings.hashes.words import choose_bucket

LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
int64s = st.integers(LOWEST, HIGHEST)
EDGES = [
    *(LOWEST, LOWEST + 1, HIGHEST),
    *(sign * (10**power + step) for power in range(19) for step in (-1, 0) for sign in (1, -1)),
]


def numbers(num_rows: int) -> tuple[torch.Tensor]:
    return (torch.tensor(EDGES)[:num_rows],)


def check_text(values: list[int]) -> None:
    data, sizes = decimal_text(torch.tensor(values, dtype=torch.int64))
    expected_data, expected_sizes = pack([b"%d" % value for value in values], 20)
    assert torch.equal(data, expected_data)
    assert torch.equal(sizes, expected_sizes)


@settings(deadline=None)
@given(st.lists(int64s))
@example(EDGES)
def test_the_text_of_a_number(values):
    check_text(values)


def test_the_text_of_numbers_in_any_shape():
    data, sizes = decimal_text(torch.tensor([[1, -20], [300, 0]]))
    expected_data, expected_sizes = pack([b"1", b"-20", b"300", b"0"], 20)
    assert torch.equal(data, expected_data)
    assert torch.equal(sizes, expected_sizes)


def test_fingerprints_of_numbers_as_keras_has_them():
    """The case hashing/ints_1000 of keras.json."""
    values = [0, 1, -1, 7, 10, 123456789, -2147483648, 2147483647, HIGHEST, LOWEST]
    expected = [735, 849, 430, 88, 862, 306, 469, 757, 319, 112]
    bins = choose_bucket(fingerprint64(*decimal_text(torch.tensor(values))), 1000)
    assert bins.tolist() == expected


@settings(deadline=None)
@given(st.lists(int64s), st.integers(1, HIGHEST))
@example([-1, LOWEST, HIGHEST, 0], HIGHEST)
@example([-1, LOWEST, HIGHEST, 0], (1 << 62) + 1)
@example([-1, LOWEST, HIGHEST, 0], 1 << 62)
@example([-1, LOWEST, HIGHEST, 0], 1)
def test_a_bin_is_the_uint64_modulo_their_number(hashes, num_bins):
    expected = [value % (1 << 64) % num_bins for value in hashes]
    assert choose_bucket(torch.tensor(hashes, dtype=torch.int64), num_bins).tolist() == expected


@pytest.mark.parametrize("num_bins", [0, -3, 1 << 63])
def test_a_number_of_bins_that_cannot_be(num_bins):
    with pytest.raises(ValueError, match=re.escape(f"got {num_bins}")):
        choose_bucket(torch.tensor([1]), num_bins)


STRINGS = fingerprint64(*pack([string.encode() for string in ["A", "B", "A", "", "é"]]))
INTEGERS = torch.tensor([101, 101, 102, -5, 0])
# The cases of hashed_crossing in keras.json.
CROSSED = [
    ([STRINGS, INTEGERS], 5, [1, 4, 3, 0, 4]),
    ([STRINGS, INTEGERS], 100, [91, 54, 23, 85, 89]),
    ([STRINGS, INTEGERS], 9, [6, 7, 1, 0, 7]),
    ([STRINGS, INTEGERS, STRINGS], 5, [0, 4, 4, 2, 3]),
    ([STRINGS, INTEGERS, STRINGS], 100, [95, 64, 79, 7, 98]),
]


@pytest.mark.parametrize(("columns", "num_bins", "expected"), CROSSED)
def test_crosses_of_keras(columns, num_bins, expected):
    assert choose_bucket(cross(columns), num_bins).tolist() == expected
    as_column = [column[:, None] for column in columns]
    assert choose_bucket(cross(as_column), num_bins).squeeze(1).tolist() == expected


@pytest.mark.slow
def test_exported_they_give_the_same():
    def every_function(values):
        text = decimal_text(values)
        hashes = fingerprint64(*text)
        return text, choose_bucket(hashes, (1 << 62) + 1), cross([hashes, values])

    check_export(every_function, numbers)
