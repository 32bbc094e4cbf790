"""Arrow IPC files and streams: dicts of columns."""

from __future__ import annotations

import gzip
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from tests.data.formats.opening import opened, read
from torch_distinput.data.batch import rows
from torch_distinput.data.formats.arrow.ipc import Arrow
from torch_distinput.data.formats.reader import CHUNK_BYTES, Part
from torch_distinput.errors import ConfigurationError, SourceError
from torch_distinput.testing import check_reader

WRITERS = {"file": pa.ipc.new_file, "stream": pa.ipc.new_stream}


def table(count, *, wide=0):
    random = np.random.default_rng(0)
    return pa.table(
        {
            "id": np.arange(count),
            "text": [f"{i} äöü" + random.bytes(wide // 2).hex() for i in range(count)],
            "vector": pa.array([[i, 0.5] for i in range(count)], pa.list_(pa.float32(), 2)),
            "words": [[f"w{i}"] * (i % 3) for i in range(count)],
            "ragged": [list(range(i % 4)) for i in range(count)],
            "inner": [{"flag": i % 2 == 0, "maybe": None if i % 5 else 1.0} for i in range(count)],
            "kind": pa.array([f"k{i % 3}" for i in range(count)]).dictionary_encode(),
        }
    )


def write(path, content, form, *, rows_per_batch=100, compression=None):
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with WRITERS[form](str(path), content.schema, options=options) as writer:
        writer.write_table(content, max_chunksize=rows_per_batch)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "rows_per_batch", "compression"),
    [("file", 100, None), ("file", 9999, "zstd"), ("stream", 100, "lz4"), ("stream", 9999, None)],
)
def test_keeps_the_promises(tmp_path, form, rows_per_batch, compression):
    path = tmp_path / "a.arrow"
    content = table(1500, wide=1000)
    write(path, content, form, rows_per_batch=rows_per_batch, compression=compression)
    records = check_reader(Arrow(), str(path), num_records=1500)
    texts = content["text"].to_pylist()
    for i in (0, 1, 749, 1499):
        record = records[i]
        assert list(record) == content.column_names
        assert record["id"].item() == i
        assert record["text"] == texts[i]
        assert record["vector"].tolist() == [i, 0.5]
        assert record["words"] == [f"w{i}"] * (i % 3)
        assert record["ragged"].tolist() == list(range(i % 4))
        assert record["inner"]["flag"].item() is (i % 2 == 0)
        assert record["inner"]["maybe"].isnan().item() is (i % 5 != 0)
        assert record["kind"] == f"k{i % 3}"


def test_record_batches_are_parts_and_small_ones_are_joined(tmp_path):
    path = tmp_path / "a.arrow"
    write(path, pa.table({"x": np.arange(500_000)}), "file", rows_per_batch=50_000)
    parts = Arrow().parts(opened(path))
    assert [(part.start, part.stop) for part in parts] == [(0, 2), (2, 4), (4, 6), (6, 8), (8, 10)]
    assert [part.first_record for part in parts] == [0, 100_000, 200_000, 300_000, 400_000]
    assert {part.num_records for part in parts} == {100_000}
    (chunk,) = Arrow().read(opened(path), Part(start=4, stop=5))
    assert chunk["x"].tolist() == list(range(200_000, 250_000))


def test_remote_files_are_cut_but_not_counted(tmp_path):
    path = tmp_path / "a.arrow"
    write(path, pa.table({"x": np.arange(500_000)}), "file", rows_per_batch=50_000)
    remote = replace(opened(path), local_path=None)
    parts = Arrow().parts(remote)
    assert [(part.start, part.stop) for part in parts] == [(0, 2), (2, 4), (4, 6), (6, 8), (8, 10)]
    assert {part.num_records for part in parts} == {None}
    assert [part.first_record for part in parts] == [part.start << 31 for part in parts]
    assert read(Arrow(), remote)["x"].tolist() == list(range(500_000))


def test_streams_are_one_part(tmp_path):
    path = tmp_path / "a.arrow"
    write(path, table(3000), "stream")
    assert Arrow().parts(opened(path)) == (Part(num_records=3000),)
    remote = replace(opened(path), local_path=None)
    assert Arrow().parts(remote) == (Part(),)
    assert len(read(Arrow(["text"]), remote)["text"]) == 3000


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_columns_come_in_the_order_asked_for(tmp_path, form, suffix):
    path = tmp_path / "a.arrow"
    write(path, table(10), form)
    if suffix:
        zipped = tmp_path / "a.arrow.gz"
        zipped.write_bytes(gzip.compress(path.read_bytes()))
        path = zipped
    batch = read(Arrow(["kind", "inner", "id"]), opened(path))
    assert list(batch) == ["kind", "inner", "id"]
    assert batch["kind"] == [f"k{i % 3}" for i in range(10)]
    assert batch["id"].tolist() == list(range(10))


@pytest.mark.parametrize("form", WRITERS)
def test_a_missing_column_is_named(tmp_path, form):
    path = tmp_path / "a.arrow"
    write(path, table(10), form)
    expected = r"a\.arrow: expected the columns \['no'\]"
    with pytest.raises(ConfigurationError, match=expected):
        Arrow(["no"]).parts(opened(path))
    with pytest.raises(ConfigurationError, match=expected):
        next(Arrow(["no"]).read(opened(path), Part()))


@pytest.mark.parametrize("form", WRITERS)
def test_no_rows_no_parts(tmp_path, form):
    path = tmp_path / "a.arrow"
    write(path, table(10).slice(0, 0), form)
    assert list(Arrow().parts(opened(path))) == []
    assert list(Arrow().read(opened(path), Part())) == []


@pytest.mark.parametrize("content", [b"", b"ARROW1", b"not an arrow file, whatever its name says"])
def test_other_files_are_bad(tmp_path, content):
    path = tmp_path / "a.arrow"
    path.write_bytes(content)
    with pytest.raises(SourceError, match="schema: "):
        Arrow().parts(opened(path))
    skipped = []
    file = opened(path, lambda where, reason: skipped.append(where))
    assert list(Arrow().parts(file)) == []
    assert list(Arrow().read(file, Part())) == []
    assert skipped == ["schema", "schema"]


@pytest.mark.parametrize(("form", "left"), [("file", [0, 1, 2, 6, 7, 8]), ("stream", [0, 1, 2])])
def test_a_damaged_record_batch_can_be_skipped(tmp_path, form, left):
    path = tmp_path / "a.arrow"
    content = pa.table({"x": np.arange(9), "t": ["abc"] * 9})
    write(path, content, form, rows_per_batch=3)
    offsets = np.array([0, 3, 6, 9], np.int32).tobytes()
    data = path.read_bytes()
    second = data.index(offsets, data.index(offsets) + 1)
    path.write_bytes(data[:second] + b"\xff" * 16 + data[second + 16 :])
    with pytest.raises(SourceError, match="record batch 1: "):
        read(Arrow(), opened(path))
    skipped = []
    file = opened(path, lambda where, reason: skipped.append(where))
    assert read(Arrow(), file)["x"].tolist() == left
    assert skipped == ["record batch 1"]


@pytest.mark.parametrize("count", [0, 9])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_what_follows_a_stream_is_bad(tmp_path, count, suffix):
    """Such as a second one: it is named once, and not read."""
    path = tmp_path / f"a.arrow{suffix}"
    write(path, table(count), "stream", rows_per_batch=3)
    path.write_bytes((gzip.compress if suffix else bytes)(path.read_bytes() * 2))
    skipped = []
    file = opened(path, lambda where, reason: skipped.append((where, reason)))
    for columns in (None, ["text"]):
        parts = Arrow(columns).parts(file)
        chunks = [chunk for part in parts for chunk in Arrow(columns).read(file, part)]
        assert sum(len(chunk["text"]) for chunk in chunks) == count
    (where, reason), _ = skipped
    assert where == f"record batch {count // 3}"
    assert "behind the stream" in reason


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_stream_without_a_mark_of_its_end_is_bad(tmp_path, suffix):
    """Its writer died behind a record batch: nobody knows how many were to come."""
    path = tmp_path / f"a.arrow{suffix}"
    write(path, table(9), "stream", rows_per_batch=3)
    path.write_bytes((gzip.compress if suffix else bytes)(path.read_bytes()[:-8]))
    skipped = []
    file = opened(path, lambda where, reason: skipped.append((where, reason)))
    chunks = [chunk for part in Arrow().parts(file) for chunk in Arrow().read(file, part)]
    assert sum(len(chunk["text"]) for chunk in chunks) == 9
    ((where, reason),) = skipped
    assert where == "record batch 3"
    assert "cut off" in reason


def test_large_record_batches_are_sliced(tmp_path):
    path = tmp_path / "a.arrow"
    write(path, table(5000, wide=1000), "file", rows_per_batch=5000)
    (part,) = Arrow().parts(opened(path))
    sizes = [rows.num_bytes(chunk) for chunk in Arrow().read(opened(path), part)]
    assert len(sizes) > 2
    assert max(sizes) <= 2.1 * CHUNK_BYTES


@pytest.mark.parametrize("form", WRITERS)
def test_batches_may_be_written_to(tmp_path, form):
    path = tmp_path / "a.arrow"
    write(path, table(1000), form)
    before = path.read_bytes()
    for chunk in Arrow(["id", "vector"]).read(opened(path), Part()):
        chunk["id"].fill_(7)
        chunk["vector"].fill_(7)
    assert path.read_bytes() == before
