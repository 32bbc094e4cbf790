"""Copies that fsspec keeps: of whole files, whatever happens while they are made."""

from __future__ import annotations

import gzip
import io
import tarfile
from copy import deepcopy
from pathlib import Path

import fsspec
import pytest

import torch_distinput as tdi
from tests.storages import WebServer
from torch_distinput.data.storage.whole_copies import find_system, open_whole

RECORDS = [f"{number:04}" for number in range(900)]
CONTENT = "".join(f"{record}\n" for record in RECORDS).encode()
FILE = "d/a.txt"


class Halves(fsspec.AbstractFileSystem):
    """One file, of a size that is not listed, as by web servers; its copy is made in two halves."""

    protocol = "halves"
    content = CONTENT

    @staticmethod
    def between():
        """Called when a half of a copy is there."""

    def ls(self, path, detail=True, **_):
        found = [{"name": FILE, "size": None, "type": "file"}] if path in ("d", FILE) else []
        return found if detail else [info["name"] for info in found]

    def get_file(self, rpath, lpath, **_):
        with Path(lpath).open("wb") as copy:
            middle = len(self.content) // 2
            copy.write(self.content[:middle])
            copy.flush()
            self.between()
            copy.write(self.content[middle:])

    def _open(self, path, mode="rb", **_):
        return HalfFile(self)


class HalfFile(io.BytesIO):
    """What a cache that decompresses reads; so much of it was there before it is cut."""

    def __init__(self, system):
        super().__init__(system.content)
        self.between = system.between

    def read(self, size=-1):
        if self.tell() > len(self.getvalue()) // 2:
            self.between()
        return super().read(size)


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


def play(url, options):
    """The records, and how often the storage was asked again."""
    files = tdi.FileDataset(url, storage_options=options)
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(files, global_batch_size=100)
    with iter(dataset) as steps:
        return [record for step in steps for record in step], steps.stats().retries


def test_a_connection_that_is_cut(where, monkeypatch):
    """The file is copied anew; nobody reads what the first attempt has left."""
    monkeypatch.setattr(Halves, "between", raising_once(ConnectionResetError("cut")))
    assert (RECORDS, 1) == play(*where)


def test_a_copy_that_is_decompressed(where, monkeypatch):
    url, options = where
    monkeypatch.setattr(Halves, "content", gzip.compress(CONTENT, 0) + gzip.compress(b"") * 300)
    monkeypatch.setattr(Halves, "between", raising_once(ConnectionResetError("cut")))
    options = {name: {**own, "compression": "gzip"} for name, own in options.items()}
    assert (RECORDS, 1) == play(url, options)


def test_a_manifest(where, monkeypatch, tmp_path):
    url, options = where
    paths = [tmp_path / f"{number}.txt" for number in range(20)]
    for number, path in enumerate(paths):
        path.write_text(f"{number}\n")
    monkeypatch.setattr(Halves, "content", "\n".join(map(str, paths)).encode())
    monkeypatch.setattr(Halves, "between", raising_once(ConnectionResetError("cut")))
    for _ in range(2):
        assert len(paths) == len(play(f"@{url}", options)[0])


@pytest.fixture
def archive(monkeypatch):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for first in range(0, len(RECORDS), 300):
            lines = "\n".join(RECORDS[first : first + 300]).encode()
            info = tarfile.TarInfo(f"{first}.txt")
            info.size = len(lines)
            archive.addfile(info, io.BytesIO(lines))
    monkeypatch.setattr(Halves, "content", content.getvalue())


@pytest.mark.usefixtures("archive")
def test_an_archive(where, monkeypatch):
    """fsspec opens it where its members are listed."""
    url, options = where
    monkeypatch.setattr(Halves, "between", raising_once(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        play(f"tar://*.txt::{url}", options)
    assert RECORDS == play(f"tar://*.txt::{url}", options)[0]


@pytest.mark.usefixtures("archive", "folder")
@pytest.mark.parametrize("kind", ["simplecache", "filecache"])
def test_options_of_other_storages(kind, monkeypatch):
    """They make no difference: the copy that was made is the one that the archive is read from."""
    options = {kind: {"check_files": False}, "tar": {}, "zip": {}, "file": {"auto_mkdir": True}}
    before, copies = deepcopy(options), []
    monkeypatch.setattr(Halves, "between", staticmethod(lambda: copies.append(0)))
    system, _ = find_system(f"tar://*.txt::{kind}::halves://{FILE}", options)
    assert 3 == len(system.ls(""))
    assert before == options
    assert [0] == copies


def test_a_file_that_changes_while_it_is_copied(folder, monkeypatch):
    """A storage that compares its copies with the file of now has none then, and makes another."""
    version = ["1"]
    monkeypatch.setattr(Halves, "ukey", lambda *_: version[0], raising=False)
    monkeypatch.setattr(Halves, "between", staticmethod(lambda: version.__setitem__(0, "2")))
    options = {"filecache": {"cache_storage": str(folder), "check_files": True}}
    assert (RECORDS, 1) == play(f"filecache::halves://{FILE}", options)


def test_who_reads_while_another_process_copies(where, folder, monkeypatch):
    """Who has not heard of the copy yet makes another; what lies there stays whole."""
    url, options = where
    late = fsspec.core.url_to_fs(url, skip_instance_cache=True, **options)
    late[0]._check_file(late[1])  # a filecache looks at its list every ten seconds
    count_lines(*fsspec.core.url_to_fs(url, **options))
    (copy,) = copies_in(folder)
    seen = []
    monkeypatch.setattr(Halves, "between", staticmethod(lambda: seen.append(copy.read_bytes())))
    assert len(RECORDS) == count_lines(*late)
    assert all(content == CONTENT for content in seen)
    assert ([CONTENT] if url.startswith("filecache") else []) == seen


def test_a_name_as_long_as_names_may_be(folder, monkeypatch):
    name = "d/" + "a" * 251 + ".txt"
    monkeypatch.setitem(globals(), "FILE", name)
    options = {"simplecache": {"cache_storage": str(folder), "same_names": True}}
    assert (RECORDS, 0) == play(f"simplecache::halves://{name}", options)


@pytest.mark.parametrize("kind", ["simplecache", "filecache"])
def test_a_server_that_lists_nothing(folder, kind):
    server = WebServer()
    url = f"{kind}::{server.put('below/a.txt', CONTENT)}"
    assert (RECORDS, 0) == play(url, {kind: {"cache_storage": str(folder)}})
    server.close()


@pytest.mark.parametrize("kind", ["simplecache", "filecache"])
def test_a_server_that_is_busy(folder, kind):
    """fsspec says that there is no such file."""
    server = WebServer()
    system, path = fsspec.core.url_to_fs(
        f"{kind}::{server.put('below/a.txt', CONTENT)}", **{kind: {"cache_storage": str(folder)}}
    )
    server.failures = 1
    with pytest.raises(ConnectionError, match="though the storage says that it exists"):
        open_whole(system, path)
    assert len(RECORDS) == count_lines(system, path)
    server.files.clear()
    with pytest.raises(FileNotFoundError):
        open_whole(system, path.replace("a.txt", "b.txt"))
    server.close()


def test_a_copy_is_made_once(where, monkeypatch):
    """For all who name the folder; and what makes it is not kept."""
    url, options = where
    copies = []
    monkeypatch.setattr(Halves, "between", staticmethod(lambda: copies.append(0)))
    system, path = fsspec.core.url_to_fs(url, **options)
    num_kept = len(type(system)._cache)
    assert len(RECORDS) == count_lines(system, path)
    assert len(RECORDS) == count_lines(system, path)
    assert len(type(system)._cache) == num_kept
    other, path = fsspec.core.url_to_fs(url, skip_instance_cache=True, **options)
    assert len(RECORDS) == count_lines(other, path)
    assert [0] == copies


@pytest.mark.parametrize("kind", ["blockcache", "cached"])
def test_caches_of_blocks_are_refused(folder, kind):
    """They keep zeros for what a lost connection did not bring."""
    for url in (f"{kind}::halves://{FILE}", f"tar://*.txt::{kind}::halves://{FILE}"):
        with pytest.raises(tdi.ConfigurationError, match="Expected 'simplecache::'"):
            play(url, {kind: {"cache_storage": str(folder)}})


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
