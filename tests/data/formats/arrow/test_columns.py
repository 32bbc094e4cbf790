"""What becomes of each Arrow type."""

from __future__ import annotations

import datetime as dt
import decimal
import sys

import numpy as np
import pyarrow as pa
import pytest
import torch

from torch_distinput.data.batch import rows
from torch_distinput.data.formats.arrow import columns as arrow_columns
from torch_distinput.data.formats.reader import CHUNK_BYTES
from torch_distinput.data.storage.input_file import InputFile
from torch_distinput.errors import ConfigurationError, SourceError


def raise_source_error(where, reason):
    raise SourceError(f"{where}: {reason}")


def file_with(bad=raise_source_error):
    return InputFile(path="f", size=None, version="", local_path=None, open=None, bad=bad)


def leaf(values, kind=None):
    array = values if isinstance(values, pa.Array) else pa.array(values, kind)
    batch = pa.record_batch({"x": array})
    (chunk,) = arrow_columns.batch_chunks(batch, file_with(), record=0)
    return chunk["x"]


def sliced(values, kind=None):
    """The same values in the middle of a longer array."""
    one = pa.array(values, kind)
    return pa.concat_arrays([one, one, one]).slice(len(one), len(one))


@pytest.mark.parametrize("make", [pa.array, sliced])
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        *((getattr(pa, f"int{n}")(), getattr(torch, f"int{n}")) for n in (8, 16, 32, 64)),
        (pa.uint8(), torch.uint8),
        (pa.uint16(), torch.int32),
        (pa.uint32(), torch.int64),
        (pa.uint64(), torch.int64),
        (pa.float16(), torch.float16),
        (pa.float32(), torch.float32),
        (pa.float64(), torch.float64),
        (pa.bool_(), torch.bool),
    ],
)
def test_numbers(make, kind, expected):
    values = [0, 1, 1, 0, 1]
    array = make(np.array(values, kind.to_pandas_dtype()), kind)
    out = leaf(array)
    assert out.dtype == expected
    assert out.tolist() == values
    out.fill_(1)  # the memory is the batch's own
    assert out.tolist() == [1] * 5


def test_numbers_that_torch_cannot_hold():
    with pytest.raises(ConfigurationError, match="column 'x'.* below 2\\*\\*63.*got 1844"):
        leaf([2**64 - 1], pa.uint64())


def test_nulls():
    assert torch.equal(leaf([1.0, None], pa.float32()).nan_to_num(7), torch.tensor([1.0, 7.0]))
    assert leaf([1.0, None], pa.float16()).dtype == torch.float16
    assert leaf(["a", None]) == ["a", None]
    assert leaf([b"a", None]) == [b"a", None]
    assert leaf([[["a"], None], None]).tolist() == [[["a"], None], None]
    nested = leaf([{"a": 1.0, "b": "x"}, None])
    assert nested["a"].isnan().tolist() == [False, True]
    assert nested["b"] == ["x", None]


@pytest.mark.parametrize(
    "values", [[1, None], [True, None], [[1], None], [[1, None]], [{"a": 1}, None]]
)
def test_nulls_without_a_place(values):
    with pytest.raises(ConfigurationError, match=r"^f: column 'x'.*got 1 nulls in . rows. Fill"):
        leaf(values)


def test_null_fixed_size_list():
    with pytest.raises(ConfigurationError, match="1 nulls in 2 rows"):
        leaf([[1.0, 2.0], None], pa.list_(pa.float32(), 2))


@pytest.mark.parametrize("make", [pa.array, sliced])
def test_lists(make):
    fixed = make([[1, 2, 3], [4, 5, 6]], pa.list_(pa.int16(), 3))
    assert torch.equal(leaf(fixed), torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.int16))
    twice = make([[[1, 2]] * 3, [[4, 5]] * 3], pa.list_(pa.list_(pa.float64(), 2), 3))
    assert leaf(twice).shape == (2, 3, 2)
    assert leaf(twice)[1, 2].tolist() == [4, 5]
    for kind in (pa.list_, pa.large_list):
        jagged = leaf(make([[1, 2], [], [3]], kind(pa.int64())))
        assert jagged.is_nested
        assert [row.tolist() for row in jagged.unbind()] == [[1, 2], [], [3]]
        assert jagged.offsets()[0] == 0
    assert leaf(make([[], []], pa.list_(pa.int64()))).values().shape == (0,)
    vectors = leaf(make([[[1, 2]], [[3, 4], [5, 6]]], pa.list_(pa.list_(pa.int64(), 2))))
    assert [row.tolist() for row in vectors.unbind()] == [[[1, 2]], [[3, 4], [5, 6]]]
    for values in ([["a"], [], ["b", None]], [[[1], []], []], [[{"a": 1}], []]):
        objects = leaf(make(values))
        assert isinstance(objects, np.ndarray)
        assert objects.tolist() == values
        assert objects.shape == (len(values),)
    pairs = leaf(make([{"a": 1}, {}], pa.map_(pa.string(), pa.int64())))
    assert pairs.tolist() == [[("a", 1)], []]
    views = leaf(make([[1], [2, 3]], pa.list_view(pa.int64())))
    assert views.tolist() == [[1], [2, 3]]


def test_fixed_shape_tensor():
    kind = pa.fixed_shape_tensor(pa.float32(), (2, 3))
    storage = pa.array([[1, 2, 3, 4, 5, 6]] * 2, kind.storage_type)
    out = leaf(pa.ExtensionArray.from_storage(kind, storage))
    assert out.shape == (2, 2, 3)
    assert out[1].tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize("make", [pa.array, sliced])
def test_text_and_binary(make):
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        assert leaf(make(["a", "", "äöü"], kind)) == ["a", "", "äöü"]
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(2)):
        assert leaf(make([b"ab", b"\xff\x00"], kind)) == [b"ab", b"\xff\x00"]
    assert leaf(make(["a", "b", "a"]).dictionary_encode()) == ["a", "b", "a"]
    assert leaf(make([3, 3, 4]).dictionary_encode()).tolist() == [3, 3, 4]
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array([7, 8]))
    assert leaf(runs.slice(1)).tolist() == [7, 8]


def test_times_and_decimals():
    moment = dt.datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=dt.timezone.utc)
    plain = moment.replace(tzinfo=None)
    for unit, tolerance in (("s", 1_000_000), ("us", 1), ("ns", 1)):
        out = leaf(pa.array([moment, None]).cast(pa.timestamp(unit, "UTC"), safe=False))
        assert out.dtype == f"datetime64[{unit}]"
        assert abs(out[0] - np.datetime64(plain)) < np.timedelta64(tolerance, "us")
        assert np.isnat(out[1])
        assert out.flags.writeable
    assert leaf([moment.date()]).tolist() == [moment.date()]
    assert leaf([moment.date()], pa.date64()).dtype == "datetime64[ms]"
    for kind in (pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")):
        out = leaf([dt.time(1, 2, 3), None], kind)
        assert out.dtype == f"timedelta64[{kind.unit}]"
        assert out[0] == np.timedelta64(3723, "s")
        assert np.isnat(out[1])
    assert leaf([dt.timedelta(hours=1)])[0] == np.timedelta64(1, "h")
    assert leaf([decimal.Decimal("1.50"), None]) == [decimal.Decimal("1.50"), None]


def test_structs_are_dicts():
    values = [{"a": 1, "b": {"c": ["x"], "d": [1.0, 2.0]}}, {"a": 2, "b": {"c": [], "d": []}}]
    for array in (pa.array(values), sliced(values)):
        out = leaf(array)
        assert out["a"].tolist() == [1, 2]
        assert out["b"]["c"].tolist() == [["x"], []]
        assert [row.tolist() for row in out["b"]["d"].unbind()] == [[1.0, 2.0], []]


@pytest.mark.parametrize(
    "array",
    [
        pa.nulls(2),
        pa.array([{}, {}], pa.struct([])),
        pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
        pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2])] * 2),
        pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16], pa.binary(16))),
    ],
)
def test_types_without_a_leaf(array):
    with pytest.raises(ConfigurationError, match=r"f: column 'x'.*got the Arrow type .* columns="):
        leaf(array)


def test_fields_of_one_name():
    array = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(ConfigurationError, match=r"one field of each name, got \['a', 'a'\]"):
        leaf(array)


def test_a_mapped_file_is_never_written_through(tmp_path):
    """Batches are written to in place; slices of one chunk are different rows."""
    path = str(tmp_path / "a.arrow")
    table = pa.table(
        {"x": np.arange(100), "v": pa.array([[1.0, 2.0]] * 100, pa.list_(pa.float32()))}
    )
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    with pa.memory_map(path) as mapped:
        batch = pa.ipc.open_file(mapped).get_batch(0)
        (chunk,) = arrow_columns.batch_chunks(batch, file_with(), record=0)
        first, second = rows.slice_rows(chunk, 0, 50), rows.slice_rows(chunk, 50, 100)
        first["x"].fill_(-1)
        first["v"].values().fill_(-1)
        assert second["x"].tolist() == list(range(50, 100))
        assert batch["x"].to_pylist() == list(range(100))
    assert pa.ipc.open_file(path).read_all().equals(table)


def test_owned_memory_is_not_copied():
    array = pa.array([1.0, None]).fill_null(0.0)
    leaf(array)[0] = 5.0
    assert array.to_pylist() == [5.0, 0.0]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["x" * 1000] * 20_000),
        pa.array(["x"] * 1000 + ["y" * CHUNK_BYTES] * 3 + ["z"] * 1000),
        pa.array(["x" * 1000] * 20_000, pa.string_view()),
        pa.array(["x" * 1000] * 20_000).dictionary_encode(),
        pa.array([{"a": "x" * 1000}] * 20_000),
    ],
)
def test_chunks_have_about_a_megabyte(column):
    batch = pa.record_batch({"x": column})
    chunks = list(arrow_columns.batch_chunks(batch, file_with(), record=0))
    sizes = [rows.num_bytes(chunk) for chunk in chunks]
    assert max(sizes) <= 2.1 * CHUNK_BYTES
    assert len(chunks) < 64
    assert [row["x"] for chunk in chunks for row in rows.iterate_rows(chunk)] == column.to_pylist()


def broken_text(*, end=4):
    offsets = np.array([0, 2, 4], np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"ab\xff\xff")]
    text = pa.Array.from_buffers(pa.string(), 2, buffers)
    batch = pa.record_batch({"x": pa.array([1, 2]), "t": text})
    offsets[2] = end  # after pyarrow has looked at it
    return batch


def test_a_row_that_is_not_utf8_is_named_and_can_be_skipped():
    with pytest.raises(SourceError, match="record 11 of it: .*utf-8"):
        list(arrow_columns.batch_chunks(broken_text(), file_with(), record=10, within=" of it"))
    skipped = []
    file = file_with(lambda where, reason: skipped.append(where))
    (chunk,) = arrow_columns.batch_chunks(broken_text(), file, record=10)
    assert (chunk["x"].tolist(), chunk["t"]) == ([1], ["ab"])
    assert skipped == ["record 11"]


def test_offsets_beyond_their_buffer_are_found():
    arrow_columns.check_buffers(broken_text())
    with pytest.raises(pa.ArrowInvalid, match="binary offsets"):
        arrow_columns.check_buffers(broken_text(end=99))


@pytest.mark.parametrize("columns", ["ab", [], ["a", "a"], [1]])
def test_columns_that_are_no_names(columns):
    with pytest.raises(ValueError, match="columns must be different names"):
        arrow_columns.column_names(columns)


def test_without_pyarrow(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    arrow_columns.load_arrow.cache_clear()
    with pytest.raises(ConfigurationError, match=r"pip install 'torch_distinput\[arrow\]'"):
        arrow_columns.load_arrow()
