"""NumPy files: rows of arrays."""

from __future__ import annotations

import gzip
import io
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.data.formats.opening import opened, read
from torch_distinput.data.formats import npy, npz
from torch_distinput.data.formats.npy import Npy
from torch_distinput.data.formats.npz import Npz
from torch_distinput.data.formats.reader import Part
from torch_distinput.errors import ConfigurationError, SourceError
from torch_distinput.testing import check_reader

RANDOM = np.random.default_rng(0)


def saved(tmp_path, array, **options):
    path = tmp_path / "a.npy"
    np.save(path, array, **options)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    "array",
    [
        RANDOM.random((3001, 2, 11)),
        RANDOM.random((3001, 7), np.float32).astype(">f4"),
        np.asfortranarray(RANDOM.random((3001, 7))),
        RANDOM.integers(0, 2, 3001).astype(bool),
        np.array([f"w{i}" for i in range(3001)]),
    ],
    ids=["float64", "big endian", "fortran", "bool", "text"],
)
@pytest.mark.parametrize("small", [False, True])
def test_keeps_the_promises(tmp_path, monkeypatch, array, small):
    """Also where parts and chunks are small."""
    if small:
        monkeypatch.setattr(npy, "_PART_BYTES", 30_000)
        monkeypatch.setattr(npy, "CHUNK_BYTES", 7_000)
    path = saved(tmp_path, array)
    records = check_reader(Npy(), str(path), num_records=3001)
    expected = (
        torch.from_numpy(array.astype(array.dtype.newbyteorder("=")))[:]
        if array.dtype.kind != "U"
        else array
    )
    assert all(
        records[i] == expected[i] if array.ndim == 1 else torch.equal(records[i], expected[i])
        for i in range(3001)
    )


def test_parts_are_ranges_of_rows(tmp_path):
    path = saved(tmp_path, np.zeros((1_000_001, 2)))
    parts = Npy().parts(opened(path))
    step = (4 << 20) // 16
    assert [part.start for part in parts] == [0, step, 2 * step, 3 * step]
    assert [part.first_record for part in parts] == [part.start for part in parts]
    assert parts[-1] == Part(
        start=3 * step, stop=1_000_001, first_record=3 * step, num_records=1_000_001 - 3 * step
    )
    assert [len(chunk) for chunk in Npy().read(opened(path), parts[0])] == [1 << 16] * 4


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.arange(3, dtype=np.uint8), torch.uint8),
        (np.arange(3, dtype=np.uint16), torch.int32),
        (np.arange(3, dtype=np.uint32), torch.int64),
        (np.arange(3, dtype=">u8"), torch.int64),
        (np.arange(3, dtype=np.float16), torch.float16),
        (np.arange(3, dtype=np.complex64), torch.complex64),
    ],
)
def test_dtypes(tmp_path, array, dtype):
    batch = read(Npy(), opened(saved(tmp_path, array)))
    assert batch.dtype == dtype
    assert batch.tolist() == array.tolist()


@pytest.mark.parametrize(
    "array",
    [
        np.array(["a", "äöü"]),
        np.array([b"a", b"bc"]),
        np.array(["2024-01-01", "NaT"], "datetime64[s]"),
        np.array(["a", "äöü"]).astype(">U3"),
    ],
)
def test_what_torch_has_no_type_for_stays_an_array(tmp_path, array):
    batch = read(Npy(), opened(saved(tmp_path, array)))
    assert isinstance(batch, np.ndarray)
    assert batch.dtype.isnative
    assert np.array_equal(batch.astype(str), array.astype(str))


def test_fields_are_columns(tmp_path):
    kind = [("x", ">i4"), ("pos", "<f4", (2,)), ("name", "U5"), ("in", [("a", "u2"), ("b", "?")])]
    array = np.array([(1, (2, 3), "ab", (4, True)), (5, (6, 7), "cd", (8, False))], kind)
    path = saved(tmp_path, array)
    batch = read(Npy(), opened(path))
    assert list(batch) == ["x", "pos", "name", "in"]
    assert batch["x"].tolist() == [1, 5]
    assert batch["pos"].tolist() == [[2, 3], [6, 7]]
    assert batch["name"].tolist() == ["ab", "cd"]
    assert batch["in"]["a"].tolist() == [4, 8]
    assert batch["in"]["b"].tolist() == [True, False]


def test_numbers_that_torch_cannot_hold(tmp_path):
    path = saved(tmp_path, np.array([2**64 - 1], np.uint64))
    with pytest.raises(ConfigurationError, match=r"a\.npy: .*below 2\*\*63.*got 1844"):
        read(Npy(), opened(path))


@pytest.mark.parametrize("array", [np.array(1.0), np.zeros((3, 0)), np.array(["", ""])])
def test_arrays_without_rows(tmp_path, array):
    path = saved(tmp_path, array)
    if array.dtype.kind == "U":
        path.write_bytes(path.read_bytes().replace(b"<U1", b"<U0"))
    with pytest.raises(ConfigurationError, match=r"a\.npy: expected an array with one row per"):
        Npy().parts(opened(path))


def test_objects_are_never_loaded(tmp_path):
    path = saved(tmp_path, np.array([{}, []], object), allow_pickle=True)
    for use in (Npy().parts, lambda file: next(Npy().read(file, Part()))):
        with pytest.raises(ConfigurationError, match="Python objects .* pickles and never loaded"):
            use(opened(path))


def test_no_rows_no_parts(tmp_path):
    path = saved(tmp_path, np.zeros((0, 3)))
    assert list(Npy().parts(opened(path))) == []


def test_versions_of_the_format(tmp_path):
    for version in ((1, 0), (2, 0), (3, 0)):
        path = tmp_path / "a.npy"
        with path.open("wb") as file:
            np.lib.format.write_array(file, np.arange(3), version)
        assert read(Npy(), opened(path)).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"\x93NUMPY", b"PK\x03\x04", b"\x93NUMPY\x09\x00\x10\x00{'descr': "),
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff{}",
        b"\x93NUMPY\x01\x00\x10\x00{'descr': '<f8'}",
        b"\x93NUMPY\x01\x00\x10\x00" + b"(" * 16,
    ],
)
def test_other_files_are_bad(tmp_path, content):
    path = tmp_path / "a.npy"
    path.write_bytes(content)
    with pytest.raises(SourceError, match="header: expected "):
        Npy().parts(opened(path))
    file = opened(path, lambda where, reason: None)
    assert list(Npy().parts(file)) == []
    assert list(Npy().read(file, Part())) == []


def test_a_cut_file_is_told_beforehand_and_its_whole_rows_can_be_read(tmp_path):
    path = saved(tmp_path, np.arange(20.0).reshape(10, 2))
    path.write_bytes(path.read_bytes()[:-17])
    with pytest.raises(SourceError, match="header: expected 10 rows, got a file with 8"):
        Npy().parts(opened(path))
    skipped = []
    file = opened(path, lambda where, reason: skipped.append((where, reason)))
    (part,) = Npy().parts(file)
    assert part.num_records == 8
    assert [chunk.tolist() for chunk in Npy().read(file, part)] == [
        np.arange(16.0).reshape(8, 2).tolist()
    ]
    assert sum(map(len, Npy().read(file, Part()))) == 8
    assert skipped[1] == ("record 8", "expected 10 rows, got the file's end")


@pytest.mark.parametrize("rows", [0, 5])
@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("order", "CF")
def test_what_follows_the_array_is_bad(tmp_path, rows, suffix, order):
    """Such as the array of a second np.save: it is named once, and not read."""
    content = io.BytesIO()
    for count in (rows, 3):
        np.save(content, np.ones((count, 2), order=order))
    path = tmp_path / f"a.npy{suffix}"
    path.write_bytes(gzip.compress(content.getvalue()) if suffix else content.getvalue())
    reported = []
    file = opened(path, lambda *args: reported.append(args))
    parts = Npy().parts(file)
    assert sum(len(chunk) for part in parts for chunk in Npy().read(file, part)) == rows
    ((where, reason),) = reported
    assert where == "the end"
    assert "a file of its own" in reason
    assert sum(map(len, Npy().read(file, Part()))) == rows
    assert reported == [(where, reason)] * 2


def test_compressed_outside(tmp_path):
    path = tmp_path / "a.npy.gz"
    content = io.BytesIO()
    np.save(content, np.arange(300_000))
    path.write_bytes(gzip.compress(content.getvalue(), 1))
    (part,) = Npy().parts(opened(path))
    assert part.num_records == 300_000
    tail = list(Npy().read(opened(path), replace(part, start=299_998)))
    assert [chunk.tolist() for chunk in tail] == [[299_998, 299_999]]


def archive(tmp_path, *, compressed=True, **arrays):
    path = tmp_path / "a.npz"
    (np.savez_compressed if compressed else np.savez)(path, **arrays)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("small", [False, True])
def test_archives_keep_the_promises(tmp_path, monkeypatch, compressed, small):
    if small:
        monkeypatch.setattr(npz, "CHUNK_BYTES", 7_000)
    arrays = {
        "x": RANDOM.random((2000, 3)),
        "y": np.asfortranarray(RANDOM.random((2000, 2))),
        "t": np.array([f"w{i}" for i in range(2000)]),
    }
    path = archive(tmp_path, compressed=compressed, **arrays)
    records = check_reader(Npz(), str(path), num_records=2000)
    assert list(records[0]) == ["x", "y", "t"]
    for i in (0, 1, 1999):
        assert records[i]["x"].tolist() == arrays["x"][i].tolist()
        assert records[i]["y"].tolist() == arrays["y"][i].tolist()
        assert records[i]["t"] == f"w{i}"


def test_archives_are_one_part(tmp_path):
    path = archive(tmp_path, x=np.arange(5), y=np.zeros((5, 2)))
    assert Npz().parts(opened(path)) == (Part(stop=5, num_records=5),)
    assert Npz().parts(opened(archive(tmp_path, x=np.arange(0)))) == ()


def test_archives_need_one_number_of_rows(tmp_path):
    path = archive(tmp_path, x=np.arange(5), y=np.arange(6))
    for use in (Npz().parts, lambda file: next(Npz().read(file, Part()))):
        with pytest.raises(SourceError, match=r"a\.npz: .* got x: 5, y: 6\. Save those"):
            use(opened(path))


def test_archives_of_something_else(tmp_path):
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a.txt", "hello")
    with pytest.raises(SourceError, match=r"expected arrays \(\*\.npy\) only, got 'a\.txt'"):
        Npz().parts(opened(path))
    with zipfile.ZipFile(path, "w") as file:
        pass
    with pytest.raises(SourceError, match="got no array"):
        Npz().parts(opened(path))


def test_archives_never_load_objects(tmp_path):
    path = archive(tmp_path, x=np.array([{}, []], object))
    with pytest.raises(ConfigurationError, match=r"a\.npz: array 'x': .* never loaded"):
        Npz().parts(opened(path))


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"PK\x03\x04 and then something else"])
def test_what_is_no_archive_is_bad(tmp_path, content):
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(SourceError, match="archive: "):
        Npz().parts(opened(path))


def test_a_damaged_array_is_found_by_its_checksum(tmp_path):
    path = archive(tmp_path, compressed=False, x=np.arange(1000), y=np.arange(1000))
    content = bytearray(path.read_bytes())
    content[content.index(np.arange(10).tobytes()) + 100] ^= 1
    path.write_bytes(content)
    (part,) = Npz().parts(opened(path))
    with pytest.raises(SourceError, match="record 0 and after: Bad CRC-32"):
        list(Npz().read(opened(path), part))
    assert list(Npz().read(opened(path, lambda where, reason: None), part)) == []
