"""Arrow's text and binary, of every type, are packed as pyarrow would list them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_distinput import PackedStrings
from torch_distinput.data.formats.arrow.columns import batch_columns
from torch_distinput.data.formats.arrow.strings import pack_array

TYPES = {
    "string": pa.string(),
    "large_string": pa.large_string(),
    "string_view": pa.string_view(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "binary_view": pa.binary_view(),
    "fixed": pa.binary(2),
}
IS_TEXT = {"string", "large_string", "string_view"}


def values_of(name):
    if name == "fixed":
        return st.binary(min_size=2, max_size=2)
    return st.text(max_size=20) if name in IS_TEXT else st.binary(max_size=20)


@pytest.mark.slow
@pytest.mark.parametrize("name", TYPES)
@given(st.data())
def test_every_type(name, data):
    """Also slices, nulls, and none at all."""
    values = data.draw(st.lists(st.one_of(values_of(name), st.none()), max_size=8))
    start, count = data.draw(st.integers(0, 8)), data.draw(st.integers(0, 8))
    array = pa.array(values, TYPES[name]).slice(min(start, len(values)), count)
    packed = pack_array(pa, array)
    assert array.to_pylist() == packed.to_list()
    assert (str if name in IS_TEXT else bytes) is packed.dtype
    assert [len(value or b"") for value in packed.to_bytes()] == packed.lengths().tolist()


@pytest.mark.parametrize("name", ["string", "large_string", "binary", "large_binary"])
def test_bytes_are_not_copied(name):
    array = pa.array(["ab", "cde", "f"] if name in IS_TEXT else [b"ab", b"cde", b"f"], TYPES[name])
    place = array.buffers()[2].address
    assert place + 2 == pack_array(pa, array.slice(1)).data.data_ptr()


def test_memory_lives_as_long_as_the_strings():
    packed = pack_array(pa, pa.array(["x" * 100_000, "y"]))
    again = [pa.array(["z" * 100_000, "z"]) for _ in range(20)]
    assert ["x" * 100_000, "y"] == packed.to_list()
    assert 20 == len(again)


def test_bytes_behind_a_null_are_left_out():
    offsets, content = np.array([0, 2, 5, 6], np.int32), b"abCDEf"
    valid = pa.array([True, False, True]).buffers()[1]
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(content)]
    packed = pack_array(pa, pa.StringArray.from_buffers(3, buffers[1], buffers[2], valid))
    assert ["ab", None, "f"] == packed.to_list()
    assert [2, 0, 1] == packed.lengths().tolist()
    assert PackedStrings.from_list(["ab", None, "f"]) == packed


@pytest.mark.parametrize("content", [b"a\xffb", b"\xc3\xa9\xed\xa0\x80"])
def test_text_that_is_none_is_refused_as_by_who_decodes_it(content):
    offsets = pa.py_buffer(np.array([0, 1, len(content)], np.int32))
    array = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(content))
    with pytest.raises(UnicodeDecodeError) as expected:
        array.to_pylist()
    with pytest.raises(UnicodeDecodeError) as got:
        pack_array(pa, array)
    assert str(expected.value) == str(got.value)


def test_offsets_that_are_none():
    offsets = pa.py_buffer(np.array([0, 9, 3], np.int32))
    array = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"abcdefghi"))
    with pytest.raises(pa.ArrowInvalid):
        pack_array(pa, array)


def test_within_other_types():
    """Dictionaries, runs and structs; lists of text and decimals stay what they are."""
    words = ["a", None, "é", "a"]
    batch = pa.record_batch({
        "words": pa.array(words).dictionary_encode(),
        "both": pa.array([{"x": word, "n": 1} for word in words]),
        "lists": pa.array([["a"], [], ["b", "c"], ["d"]]),
    })  # fmt: skip
    got = batch_columns(batch, "a file", packed=True)
    assert words == got["words"].to_list() == got["both"]["x"].to_list()
    assert isinstance(got["lists"], np.ndarray)
