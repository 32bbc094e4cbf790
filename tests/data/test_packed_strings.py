"""Packed strings behave as the list of their rows, and travel as two tensors."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import torch_distinput as tdi
from torch_distinput import PackedStrings
from torch_distinput.data.batch import rows
from torch_distinput.data.batch.collate import collate_examples
from torch_distinput.data.batch.fingerprint import examine, fingerprint
from torch_distinput.data.batch.packed import PACKED
from torch_distinput.data.batch.serialized import deserialize, serialize
from torch_distinput.data.batch.spec import name_difference, name_kinds, same_kind, spec_of
from torch_distinput.packed_strings import gather_spans, tensor_over

some_bytes = st.binary(max_size=9).map(lambda content: content.decode("utf-8", "surrogateescape"))
a_text = st.one_of(st.sampled_from(["", "a", "é", "日本", "\udcff", "x" * 200]), some_bytes)
texts = st.lists(st.one_of(a_text, a_text, st.none()), max_size=8)
contents = st.lists(st.one_of(st.binary(max_size=9), st.just(b"\0" * 300), st.none()), max_size=8)
columns = st.one_of(texts, contents)


def within(packed, before=2):
    """The same rows as a part of something larger, with offsets that begin elsewhere."""
    filler = PackedStrings.from_list(["é?"] * before if packed.dtype is str else [b"??"] * before)
    whole = PackedStrings.concat([filler, packed, filler])
    return whole[before : before + len(packed)]


@given(columns)
def test_rows_come_back(values):
    packed = PackedStrings.from_list(values)
    for same in (packed, within(packed), packed.clone(), packed[:], packed.to("cpu")):
        assert values == same.to_list() == list(same)
        assert values == [same[row] for row in range(len(same))]
        assert packed == same


@given(columns)
def test_bytes_of_rows(values):
    encoded = [v.encode("utf-8", "surrogateescape") if isinstance(v, str) else v for v in values]
    packed = within(PackedStrings.from_list(values))
    assert encoded == packed.to_bytes()
    assert [len(v or b"") for v in encoded] == packed.lengths().tolist()
    assert sum(len(v or b"") for v in encoded) == packed.num_bytes() == len(packed.narrow().data)


@pytest.mark.slow
@given(columns, st.data())
def test_slices_and_indices_are_those_of_the_list(values, data):
    packed = within(PackedStrings.from_list(values))
    bound = st.one_of(st.none(), st.integers(-9, 9))
    step = st.sampled_from([None, 1, 2, -1])
    window = slice(data.draw(bound), data.draw(bound), data.draw(step))
    assert values[window] == packed[window].to_list()
    if values:
        order = data.draw(st.lists(st.integers(-len(values), len(values) - 1), max_size=9))
        for chosen in (torch.tensor(order, dtype=torch.int64), order):
            assert [values[row] for row in order] == packed[chosen].to_list()
    mask = data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values)))
    kept = [value for value, keep in zip(values, mask, strict=True) if keep]
    assert kept == packed[torch.tensor(mask, dtype=torch.bool)].to_list()


def test_a_slice_is_a_view():
    packed = PackedStrings.from_list(["ab", "c", "def"])
    assert packed.data.data_ptr() == packed[1:].data.data_ptr()
    assert [2, 3, 6] == packed[1:].offsets.tolist()


@pytest.mark.parametrize("row", [3, -4, True + 2])
def test_a_row_that_is_not_there(row):
    with pytest.raises(IndexError):
        PackedStrings.from_list(["a", "b", "c"])[row]
    with pytest.raises(IndexError):
        PackedStrings.from_list(["a", "b", "c"])[torch.tensor([row])]


@pytest.mark.parametrize(
    "rows",
    [[0.5], torch.tensor([1.0]), torch.tensor([1], dtype=torch.uint8), torch.tensor([[0, 1]])],
)
def test_what_is_no_index_is_not_rounded_to_one(rows):
    with pytest.raises(IndexError, match=r"Expected indices of rows, int64 .* bool \(2,\); got"):
        PackedStrings.from_list(["a", "b"])[rows]


@pytest.mark.parametrize("row", [1, np.int64(1), np.array(1), torch.tensor(1)])
def test_one_row_may_be_named_by_any_integer(row):
    assert "b" == PackedStrings.from_list(["a", "b"])[row]


def test_a_mask_of_another_length():
    with pytest.raises(IndexError, match="mask of 2 rows"):
        PackedStrings.from_list(["a", "b"])[torch.tensor([True])]


@given(columns, columns)
def test_equal_rows_are_equal_and_no_others(some, others):
    """Whatever the slicing; text is not bytes, and empty is not missing."""
    left, right = PackedStrings.from_list(some), within(PackedStrings.from_list(others))
    same = some == others and left.dtype is right.dtype
    assert same == (left == right)
    assert same == (fingerprint(left) == fingerprint(right))
    assert set() == examine(left).unchecked
    assert fingerprint(left) == fingerprint(within(left))
    assert left != some
    assert not some or fingerprint(left) != fingerprint(some)


def test_what_is_missing_is_not_empty():
    packed = [PackedStrings.from_list(rows) for rows in (["", None], [None, ""], ["", ""])]
    assert 3 == len(set(map(fingerprint, packed)))
    assert not any(one == other for one in packed for other in packed if one is not other)


@given(columns)
def test_it_travels_with_its_own_bytes_only(values):
    packed = within(PackedStrings.from_list(values), before=500)
    for again in (
        *(pickle.loads(pickle.dumps(packed, protocol)) for protocol in (2, 5)),
        deserialize(serialize({"x": [packed]}))["x"][0],
        copy.deepcopy(packed),
    ):
        assert packed == again
        assert packed.dtype is again.dtype
        assert packed.num_bytes() == again.data.untyped_storage().nbytes()
    assert len(pickle.dumps(packed)) < 2000 + packed.num_bytes()


@given(st.lists(columns, min_size=1, max_size=4))
def test_parts_join_to_the_whole(parts):
    dtype = type(next((v for part in parts for v in part if v is not None), ""))
    parts = [[v for v in part if type(v) in (dtype, type(None))] for part in parts]
    packed = [within(PackedStrings.from_list(part, dtype)) for part in parts]
    joined = rows.concat_rows(packed)
    assert [value for part in parts for value in part] == joined.to_list()
    assert len(packed) == 1 or 0 == int(joined.offsets[0])


def test_no_copy_is_made_by_threads():
    """Torch's own wait for a free core each, which beside other work takes longer than the copy."""
    called = set()

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            called.add(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    packed = [PackedStrings.from_list(["x" * 300] * 300)] * 2
    chosen = np.arange(299, -1, -1)
    with Calls():
        rows.copy_rows(packed[0])
        rows.concat_rows(packed)
        rows.take_rows(packed[0], chosen)
        rows.RowPool(packed).take(chosen)
    assert not called & {"clone", "cat", "copy_", "index", "index_select"}, called


def test_text_and_bytes_do_not_join():
    some, others = PackedStrings.from_list(["a"]), PackedStrings.from_list([b"a"])
    with pytest.raises(ValueError, match="all text or all bytes"):
        rows.concat_rows([some, others])
    assert not same_kind(spec_of(some), spec_of(others))
    assert not same_kind(spec_of(some), spec_of(["a"]))
    kinds = [name_kinds(spec_of(rows)) for rows in (some, [b"a"])]
    assert ("packed str at batch", "a list, or None") == name_difference(*kinds)


@pytest.mark.parametrize("values", [["a", b"b"], [1], [["a"]]])
def test_other_values(values):
    with pytest.raises(TypeError, match="values all str or all bytes, or None, got"):
        PackedStrings.from_list(values)
    with pytest.raises(TypeError, match="values of dtype bytes, or None, got"):
        PackedStrings.from_list(values, bytes)


def test_text_without_bytes():
    with pytest.raises(ValueError, match="UTF-8 can express, got 'a\\\\ud800'"):
        PackedStrings.from_list(["a\ud800"])


@pytest.mark.parametrize(
    "tensors",
    [
        (torch.zeros(1), torch.zeros(1, dtype=torch.int64)),
        (torch.zeros(1, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64)),
        (torch.zeros(1, dtype=torch.uint8), torch.zeros(2, dtype=torch.int32)),
        (torch.zeros(1, 1, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64)),
        (torch.zeros(1, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), torch.ones(2) > 0),
        (torch.zeros(1, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), None, int),
    ],
)
def test_other_tensors(tensors):
    with pytest.raises(ValueError, match=r"Expected data uint8 .*; got torch"):
        PackedStrings(*tensors)


@pytest.mark.parametrize("offsets", [[0, 3], [-1, 1], [0, 2, 1], [2, 0], [3, 3]])
def test_rows_that_are_not_within_the_data(offsets):
    """Cut off there, they would be other strings."""
    with pytest.raises(ValueError, match=r"ascend within the 2 bytes of data, got \[.*\]"):
        PackedStrings(torch.zeros(2, dtype=torch.uint8), torch.tensor(offsets))


def test_a_row_that_is_missing_has_no_bytes():
    data, offsets = PackedStrings.from_list(["a", "bc"]).tensors()
    with pytest.raises(ValueError, match="missing, got 2 of row 1"):
        PackedStrings(data, offsets, torch.tensor([False, True]))


def test_tensors_may_lie_in_memory_in_any_way():
    spread = (ord("a") + torch.arange(400) % 26).to(torch.uint8)[::2]  # long rows are views
    offsets = torch.tensor([0, 9, 1, 9, len(spread), 9])[::2]
    expected = [bytes(spread.tolist()[:1]).decode(), bytes(spread.tolist()[1:]).decode()]
    packed = PackedStrings(spread, offsets, dtype=bytes)
    for same in (packed, packed[[0, 1]], pickle.loads(pickle.dumps(packed)), packed.clone()):
        assert expected == [row.decode() for row in same]


def test_more_bytes_than_an_offset_of_32_bits_can_tell():
    """A row at the end of 3 GB, of which no page but the last is ever there."""
    data = torch.empty(3 << 30, dtype=torch.uint8)
    data[-2:] = torch.tensor(list(b"ab"))
    packed = PackedStrings(data, torch.tensor([len(data) - 2, len(data) - 1, len(data)]))

    assert ["a", "b"] == packed.to_list() == packed[torch.tensor([0, 1])].to_list()
    assert packed == PackedStrings.concat([packed[:1], packed[1:]])
    assert len(pickle.dumps(packed)) < 1000
    assert fingerprint(packed) == fingerprint(PackedStrings.from_list(["a", "b"]))


def test_it_shows_its_first_rows():
    packed = PackedStrings.from_list(["a", None, "b" * 90, "c", "d"])
    assert f"PackedStrings(['a', None, '{'b' * 39}, ..., rows=5, num_bytes=93)" == (
        repr(packed).replace("]", "")
    )


@pytest.mark.parametrize("dtype", [str, bytes])
def test_blank_rows_are_empty(dtype):
    spec = tdi.TensorSpec((None,), dtype, torch.jagged)
    assert [dtype()] * 3 == PACKED.blank(spec, 3, None).to_list()
    assert spec == spec_of(PackedStrings.from_list([], dtype))


def test_it_is_filled_up_by_its_last_row():
    packed = PackedStrings.from_list(["a", "b", None, "c"])
    assert ["b", None, None, None] == PACKED.pad(packed[1:3], 2, 4).to_list()


def test_zero_rows_keep_no_memory_alive():
    whole = PackedStrings.from_list(["x" * 1000])
    for empty in (rows.slice_rows(whole, 0, 0), rows.drop_rows(whole)):
        assert [] == empty.to_list()
        assert 0 == empty.data.untyped_storage().nbytes()


def test_a_small_part_is_copied_before_it_is_kept():
    """Unlike a large one, whose neighbours are kept too."""
    whole = PackedStrings.from_list(["x" * 100] * 100)
    assert 200 == rows.compact(whole[5:7]).data.untyped_storage().nbytes()
    assert whole.data.data_ptr() == rows.compact(whole[50:]).data.data_ptr()


def test_examples_of_one_row_are_joined():
    examples = [{"x": PackedStrings.from_list([text])} for text in ("a", None, "bc")]
    assert ["a", None, "bc"] == collate_examples(examples)["x"].to_list()
    examples[1]["x"] = PackedStrings.from_list(["a", "b"])
    with pytest.raises(ValueError, match=r"one row in each example, got \[1, 2\].*collate_fn"):
        collate_examples(examples)


def test_memory_that_is_not_copied():
    content = b"abcdef"
    tensor = tensor_over(content)
    assert np.frombuffer(content, np.uint8).ctypes.data == tensor.data_ptr()
    del content
    assert b"abcdef" == tensor.numpy().tobytes()
    assert (0,) == tensor_over(b"").shape


@given(st.lists(st.integers(0, 150), max_size=6), st.data())
def test_spans_are_copied_one_by_one_or_by_places(lengths, data):
    memory = np.arange(256, dtype=np.uint8)
    starts = np.array([data.draw(st.integers(0, 256 - n)) for n in lengths], np.int64)
    stops = starts + np.array(lengths, np.int64)
    expected = b"".join(memory[i:j].tobytes() for i, j in zip(starts, stops, strict=True))
    assert expected == gather_spans(memory, starts, stops).tobytes()
