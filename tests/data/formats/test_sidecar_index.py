"""Indexes that are kept beside data files or in a folder."""

from __future__ import annotations

import logging
import os
from dataclasses import replace

import pytest

from torch_distinput.data.formats import sidecar_index
from torch_distinput.data.formats.reader import Part
from torch_distinput.data.formats.sidecar_index import index_parts
from torch_distinput.data.formats.tfrecord.records import TFRecord
from torch_distinput.data.storage import filesystem
from torch_distinput.data.storage.retries import Retries

PARTS = [
    Part(start=0, stop=10, first_record=0, num_records=3),
    Part(start=10, stop=30, first_record=3, num_records=4),
]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(30))
    return path


def parts(path, index, walks, kind="kind", *, fewest_parts=64):
    """``walks`` gets a line for each time the file is walked."""
    (info,) = filesystem.list_files([str(path)], {})
    file = filesystem.open_file(info, {}, bad=None, retries=Retries())
    file = replace(file, fewest_parts=fewest_parts)

    def find_cuts(file):
        walks.append(file.path)
        return [(0, 3), (10, 4)]

    return index_parts(file, index, kind, find_cuts)


def test_memory_keeps_nothing(path):
    walks = []
    assert parts(path, "memory", walks) == parts(path, "memory", walks) == PARTS
    assert len(walks) == 2
    assert list(path.parent.iterdir()) == [path]
    assert not TFRecord().counted
    assert TFRecord(index="beside").counted


@pytest.mark.parametrize("index", ["beside", "{}/deep/folder", "file://{}/deep/folder/"])
def test_a_kept_index_saves_the_walk(path, index):
    walks = []
    index = index.format(path.parent)
    for _ in range(3):
        assert parts(path, index, walks) == PARTS
    assert len(walks) == 1
    assert parts(path, index, walks, kind="other") == PARTS
    assert len(walks) == 2


def test_it_is_made_anew_when_the_file_changed(path):
    walks = []
    parts(path, "beside", walks)
    os.utime(path, (1, 1))
    parts(path, "beside", walks)
    path.write_bytes(bytes(40))
    os.utime(path, (1, 1))
    assert parts(path, "beside", walks)[-1].stop == 40
    assert len(walks) == 3
    parts(path, "beside", walks)
    assert len(walks) == 3


@pytest.mark.slow
def test_a_damaged_index_is_made_anew(path):
    walks = []
    parts(path, "beside", walks)
    kept = path.with_name("a.bin.index.npz")
    good = kept.read_bytes()
    for content in (b"", b"no archive", good[: len(good) // 2]):
        kept.write_bytes(content)
        assert parts(path, "beside", walks) == PARTS
        assert kept.read_bytes()[:100] == good[:100]
    assert len(walks) == 4
    for place in range(len(good)):
        kept.write_bytes(good[:place] + bytes([good[place] ^ 4]) + good[place + 1 :])
        assert parts(path, "beside", walks) == PARTS


def test_files_of_one_name_have_indexes_of_their_own(tmp_path):
    walks = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.bin").write_bytes(bytes(30))
        parts(tmp_path / folder / "a.bin", str(tmp_path / "kept"), walks)
    assert len(list((tmp_path / "kept").iterdir())) == 2


def test_a_folder_that_cannot_be_written_is_a_warning_once(path, caplog):
    walks = []
    sidecar_index._warn.cache_clear()
    (path.parent / "a file").write_bytes(b"")
    index = str(path.parent / "a file")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert parts(path, index, walks) == PARTS
    assert len(walks) == 3
    assert len(caplog.records) == 1
    assert "cannot be written" in caplog.text


def test_it_is_said_once_of_many_files(path, caplog, monkeypatch):
    """Each error names a file of its own, as of a folder that may not be written."""
    sidecar_index._warn.cache_clear()

    def store(url, content, options):
        raise PermissionError(13, "Permission denied", f"{url}.{len(caplog.records)}.part")

    monkeypatch.setattr(sidecar_index.filesystem, "store_file", store)
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            other = path.with_name(f"{number}.bin")
            other.write_bytes(path.read_bytes())
            assert parts(other, "beside", []) == PARTS
    (message,) = caplog.messages
    assert "cannot be written: Permission denied." in message


def test_one_index_serves_who_splits_and_who_does_not(path):
    walks = []
    whole = [Part(start=0, stop=30, first_record=0, num_records=7)]
    assert whole == parts(path, "beside", walks, fewest_parts=1)
    assert PARTS == parts(path, "beside", walks, fewest_parts=64)
    assert 1 == len(walks)


@pytest.mark.parametrize("name", [b"\xff.bin", b"\xe4" * 200, "語".encode() * 80])
def test_any_name(tmp_path, name):
    """Names need not be UTF-8, and may be as long as file systems allow."""
    path = tmp_path / os.fsdecode(name)
    path.write_bytes(bytes(30))
    walks = []
    for _ in range(2):
        assert PARTS == parts(path, str(tmp_path / "kept"), walks)
    assert 1 == len(walks)
