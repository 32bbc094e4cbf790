"""Folders that a machine keeps, and small files that are written beside data."""

from __future__ import annotations

import errno
import os
import tempfile
import threading

import pytest

from torch_distinput.data.storage import file_locks, filesystem
from torch_distinput.data.storage.file_listing import FileInfo
from torch_distinput.data.storage.machine_cache import kept_folder, key_of


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Where temporary files lie."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"torch_distinput-{os.getuid()}"


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), OSError("0 written")])
def test_a_full_disk(root, error):
    """The error says where and what to do; nothing half made is left."""

    def make(folder):
        (folder / "half").write_text("x")
        raise error

    with pytest.raises(OSError, match=f"room in {root}.*bytes are free.*TMPDIR") as raised:
        kept_folder("key", make)
    assert errno.ENOSPC == raised.value.errno
    assert ["key.lock"] == [path.name for path in root.iterdir()]


def test_another_error_is_passed_on(root):
    """What a storage says is no matter of this disk."""

    def make(_):
        raise FileNotFoundError("no such vocabulary")

    with pytest.raises(FileNotFoundError, match="no such vocabulary"):
        kept_folder("key", make)
    assert ["key.lock"] == [path.name for path in root.iterdir()]


def test_a_machine_that_fails(root, monkeypatch):
    """Contents are on the disk before the folder has its name."""
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda _: flushed.append((root / "key").exists()))
    kept_folder("key", lambda folder: [(folder / name).write_text(name) for name in "abc"])
    assert [False] * 3 == flushed


def test_keys_of_any_name():
    """Also of those that are not UTF-8."""
    one, other = (FileInfo(path=os.fsdecode(b"/\xff" + end), size=1) for end in (b"1", b"2"))
    assert key_of(one, "kind") != key_of(other, "kind")


def test_a_small_file_on_a_full_disk(tmp_path, monkeypatch):
    """The file that was there stays; what was written aside goes."""
    url = str(tmp_path / "a")
    filesystem.store_file(url, b"old", {})

    def replace(*_):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match="full"):
        filesystem.store_file(url, b"new", {})
    assert b"old" == filesystem.load_file(url, {})
    assert [tmp_path / "a"] == list(tmp_path.iterdir())


def test_many_write_one_file(tmp_path):
    """At the same moment, from one process: who reads gets one of them whole."""
    url, barrier = str(tmp_path / "a"), threading.Barrier(4)
    contents = [bytes([65 + n]) * (1 << 20) for n in range(4)]
    failed = []

    def write(content):
        barrier.wait()
        try:
            for _ in range(10):
                filesystem.store_file(url, content, {})
        except OSError as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert filesystem.load_file(url, {}) in (None, *contents)
    for thread in threads:
        thread.join()
    assert not failed
    assert [tmp_path / "a"] == list(tmp_path.iterdir())


def test_without_locks_the_first_to_finish_keeps_its_folder(root, monkeypatch):
    """As on Windows: what another process has made meanwhile is taken, and nothing else is left."""
    monkeypatch.setattr(file_locks, "HAS_LOCKS", False)
    monkeypatch.setattr(file_locks, "lock", None)

    def make(aside):
        (aside / "name").write_text("second")
        (root / "key").mkdir()
        (root / "key" / "name").write_text("first")

    assert "first" == (kept_folder("key", make) / "name").read_text()
    assert ["key"] == [path.name for path in root.iterdir()]
