"""Copies that fsspec keeps: of whole files, whatever happens while they are made."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

import torch_distinput as tdi
from torch_distinput.data.storage.whole_copies import open_whole

RECORDS = [f"{number:04}" for number in range(900)]
CONTENT = "".join(f"{record}\n" for record in RECORDS).encode()
FILE = "d/a.txt"


class Halves(fsspec.AbstractFileSystem):
    """One file, of a size that is not listed, as by web servers; its copy is made in two halves."""

    protocol = "halves"

    @staticmethod
    def between():
        """Called when a half of a copy is there."""

    def ls(self, path, detail=True, **_):
        found = [{"name": FILE, "size": None, "type": "file"}] if path in ("d", FILE) else []
        return found if detail else [info["name"] for info in found]

    def get_file(self, rpath, lpath, **_):
        with Path(lpath).open("wb") as copy:
            copy.write(CONTENT[: len(CONTENT) // 2])
            copy.flush()
            self.between()
            copy.write(CONTENT[len(CONTENT) // 2 :])


@pytest.fixture
def folder(tmp_path):
    """Of the copies."""
    fsspec.register_implementation("halves", Halves, clobber=True)
    return tmp_path


@pytest.fixture(params=["simplecache", "filecache"])
def where(request, folder):
    """The file as it is named, and options."""
    return f"{request.param}::halves://{FILE}", {request.param: {"cache_storage": str(folder)}}


def raising_once(error):
    errors = [error]

    def raise_it():
        if errors:
            raise errors.pop()

    return staticmethod(raise_it)


def copies_in(folder):
    return [path for path in folder.iterdir() if path.name != "cache"]


def count_lines(system, path):
    with open_whole(system, path) as copy:
        return len(copy.readlines())


def test_a_connection_that_is_cut(where, monkeypatch):
    """The file is copied anew; nobody reads what the first attempt has left."""
    monkeypatch.setattr(Halves, "between", raising_once(ConnectionResetError("cut")))
    url, options = where
    files = tdi.FileDataset(url, storage_options=options)
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(files, global_batch_size=100)
    with iter(dataset) as steps:
        assert RECORDS == [record for step in steps for record in step]
        assert 1 == steps.stats().retries


def test_an_interruption_leaves_no_copy(where, folder, monkeypatch):
    monkeypatch.setattr(Halves, "between", raising_once(KeyboardInterrupt()))
    url, options = where
    system, path = fsspec.core.url_to_fs(url, **options)
    with pytest.raises(KeyboardInterrupt):
        open_whole(system, path)
    assert [] == copies_in(folder)
    assert len(RECORDS) == count_lines(system, path)
    assert 1 == len(copies_in(folder))


def test_another_process_that_looks_meanwhile(where, monkeypatch):
    """It makes a copy of its own."""
    url, options = where
    seen = []

    def look():
        if not seen:
            seen.append(0)
            other = fsspec.core.url_to_fs(url, skip_instance_cache=True, **options)
            seen.append(count_lines(*other))

    monkeypatch.setattr(Halves, "between", staticmethod(look))
    assert len(RECORDS) == count_lines(*fsspec.core.url_to_fs(url, **options))
    assert [0, len(RECORDS)] == seen
