"""Parquet files: dicts of columns."""

from __future__ import annotations

import gzip
import io
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.data.formats.opening import opened, read
from torch_distinput.data.batch import rows
from torch_distinput.data.formats.arrow.parquet import Parquet
from torch_distinput.data.formats.reader import CHUNK_BYTES, Part
from torch_distinput.errors import ConfigurationError, SourceError
from torch_distinput.testing import check_reader


def text(i, wide):
    """Text that does not compress: a damaged file is told from an endless one by its size."""
    random = np.random.default_rng(i)
    return f"row {i} äöü" + random.bytes((i % 50 + wide) // 2).hex()


def table(count, *, wide=0):
    numbers = np.arange(count)
    return pa.table(
        {
            "id": numbers,
            "text": [text(i, wide) for i in range(count)],
            "vector": pa.array([[i, 0.5] for i in range(count)], pa.list_(pa.float32(), 2)),
            "words": [[f"w{i}"] * (i % 3) for i in range(count)],
            "ragged": [list(range(i % 4)) for i in range(count)],
            "inner": [{"flag": i % 2 == 0, "maybe": None if i % 5 else 1.0} for i in range(count)],
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compression", "group", "version"),
    [("none", 100, "1.0"), ("snappy", 100_000, "1.0"), ("zstd", 700, "2.0")],
)
def test_keeps_the_promises(tmp_path, compression, group, version):
    path = tmp_path / "a.parquet"
    content = table(1500, wide=1000)
    pq.write_table(
        content, path, row_group_size=group, compression=compression, data_page_version=version
    )
    records = check_reader(Parquet(), str(path), num_records=1500)
    for i in (0, 1, 749, 1499):
        record = records[i]
        assert list(record) == content.column_names
        assert record["id"].item() == i
        assert record["text"] == text(i, 1000)
        assert record["vector"].tolist() == [i, 0.5]
        assert record["words"] == [f"w{i}"] * (i % 3)
        assert record["ragged"].tolist() == list(range(i % 4))
        assert record["inner"]["flag"].item() is (i % 2 == 0)
        assert record["inner"]["maybe"].isnan().item() is (i % 5 != 0)


def test_row_groups_are_parts_and_small_ones_are_joined(tmp_path):
    path = tmp_path / "a.parquet"
    content = pa.table({"x": np.random.default_rng(0).random(600_000)})
    pq.write_table(content, path, row_group_size=50_000, use_dictionary=False)
    parts = Parquet().parts(opened(path))
    assert [(part.start, part.stop) for part in parts] == [(0, 3), (3, 6), (6, 9), (9, 12)]
    assert [part.first_record for part in parts] == [0, 150_000, 300_000, 450_000]
    assert {part.num_records for part in parts} == {150_000}
    (chunk,) = list(
        Parquet().read(opened(path), replace(parts[1], start=4, stop=5, num_records=None))
    )
    assert np.array_equal(chunk["x"].numpy(), content["x"].to_numpy()[200_000:250_000])


def test_columns_come_in_the_order_asked_for(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(table(10), path)
    batch = read(Parquet(["text", "inner", "id"]), opened(path))
    assert list(batch) == ["text", "inner", "id"]
    assert list(batch["inner"]) == ["flag", "maybe"]


def test_a_column_with_a_dot_in_its_name(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": [1], "a.b": [2], "c": [{"b": 3}]}), path)
    for columns in (["a"], ["a.b"], ["c", "a.b"]):
        assert list(read(Parquet(columns), opened(path))) == columns


def test_a_missing_column_is_named(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(table(10), path)
    for use in (
        Parquet(["id", "nope"]).parts,
        lambda file: next(Parquet(["nope"]).read(file, Part())),
    ):
        with pytest.raises(
            ConfigurationError, match=r"a\.parquet: expected the columns \['nope'\]"
        ):
            use(opened(path))


def test_no_rows_no_parts(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(table(10).slice(0, 0), path)
    assert list(Parquet().parts(opened(path))) == []
    assert list(Parquet().read(opened(path), Part())) == []


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not a parquet file, whatever its name says"])
def test_other_files_are_bad(tmp_path, content):
    path = tmp_path / "a.parquet"
    path.write_bytes(content)
    with pytest.raises(SourceError, match="footer: "):
        Parquet().parts(opened(path))
    skipped = []
    file = opened(path, lambda where, reason: skipped.append(where))
    assert list(Parquet().parts(file)) == []
    assert list(Parquet().read(file, Part())) == []
    assert skipped == ["footer", "row groups 0 to None"]


def test_errors_of_the_storage_are_not_the_files_fault(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(table(10), path)

    class Lost(io.BytesIO):
        def read(self, size=-1):
            raise ConnectionResetError(104, "lost")

    file = replace(opened(path), local_path=None, open=lambda: Lost(path.read_bytes()))
    with pytest.raises(ConnectionResetError):
        Parquet().parts(file)


def test_repeated_text_unfolds_in_bounded_chunks(tmp_path):
    """A dictionary makes a megabyte of text a few bytes on disk."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": ["y" * 1000] * 30_000}), path)
    chunks = list(Parquet().read(opened(path), Part()))
    assert sum(map(rows.num_rows, chunks)) == 30_000
    assert max(map(rows.num_bytes, chunks)) <= 2.1 * CHUNK_BYTES


def test_categories_and_compressed_outside(tmp_path):
    path = tmp_path / "a.parquet.gz"
    content = io.BytesIO()
    categories = pa.array(["a", "b", "a"]).dictionary_encode()
    pq.write_table(pa.table({"c": categories}), content)
    path.write_bytes(gzip.compress(content.getvalue()))
    (part,) = Parquet().parts(opened(path))
    assert part.num_records == 3
    assert read(Parquet(), opened(path)) == {"c": ["a", "b", "a"]}


@pytest.mark.parametrize("compression", ["none", "snappy"])
@pytest.mark.parametrize("use_dictionary", [False, True])
def test_batches_may_be_written_to(tmp_path, compression, use_dictionary):
    """What is written changes neither the rows that follow nor the file."""
    path = tmp_path / "a.parquet"
    numbers = np.arange(400_000)
    content = pa.table(
        {
            "x": numbers,
            "half": (numbers % 7).astype(np.float16),
            "flag": numbers % 2 == 0,
            "maybe": pa.array(numbers * 0.5, mask=numbers % 5 == 0),
            "pair": pa.FixedSizeListArray.from_arrays(numbers.repeat(2), 2),
        }
    )
    pq.write_table(
        content, path, compression=compression, use_dictionary=use_dictionary, row_group_size=90_000
    )
    before = path.read_bytes()
    start = 0
    for part in Parquet().parts(opened(path)):
        for chunk in Parquet().read(opened(path), part):
            rest = numbers[start : start + len(chunk["x"])]
            expected = torch.from_numpy(rest)
            assert torch.equal(chunk["x"], expected)
            assert torch.equal(chunk["half"], (expected % 7).half())
            assert torch.equal(chunk["flag"], expected % 2 == 0)
            assert torch.equal(chunk["maybe"].isnan(), expected % 5 == 0)
            assert torch.equal(chunk["maybe"].nan_to_num(), expected * 0.5 * (expected % 5 != 0))
            assert torch.equal(chunk["pair"], expected[:, None].expand(-1, 2))
            start += len(rest)
            for column in chunk.values():
                column.fill_(1)
    assert start == len(numbers)
    assert path.read_bytes() == before


def test_far_times_of_the_old_type(tmp_path):
    """They do not become others, as they would in nanoseconds."""
    path = tmp_path / "a.parquet"
    days = np.array(["0001-01-01", "2020-01-01", "9999-12-31"], "M8[us]")
    pq.write_table(pa.table({"t": days}), path, use_deprecated_int96_timestamps=True)
    times = read(Parquet(), opened(path))["t"]
    assert times.dtype == "M8[us]"
    assert times.tolist() == days.tolist()


def test_checksums_of_pages(tmp_path):
    """What is damaged where only a checksum tells is bad."""
    path = tmp_path / "a.parquet"
    table = pa.table({"a": list(range(1000))})
    pq.write_table(
        table, path, write_page_checksum=True, compression="none", use_dictionary=False
    )
    content = bytearray(path.read_bytes())
    content[content.find((500).to_bytes(8, "little"))] ^= 1
    path.write_bytes(content)
    with pytest.raises(SourceError, match="row groups 0 to 1: .*CRC checksum verification failed"):
        read(Parquet(), opened(path))
