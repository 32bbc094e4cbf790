"""Files that become others after they were listed: an error with the file, or counted."""

from __future__ import annotations

import io
import os
from typing import ClassVar

import fsspec
import pytest

import torch_distinput as tdi
from tests.formats import FORMATS
from tests.storages import Memory
from torch_distinput.data.files.stream import FileStream
from torch_distinput.data.files.work_units import Unit, UnitSource
from torch_distinput.data.formats.reader import Part
from torch_distinput.data.storage.range_reader import sized
from torch_distinput.data.stream.bad_records import ReadLog
from torch_distinput.plan.progress.route import Shard


def shortened(path):
    """Cut off in the middle."""
    os.truncate(path, path.stat().st_size // 2)


def emptied(path):
    """Begun anew."""
    path.write_bytes(b"")


def grown(path):
    """Written on, as a log is."""
    with path.open("ab") as file:
        file.write(path.read_bytes())


def replaced(path):
    """Another file of the same size, moved into its place."""
    status = path.stat()
    other = path.with_suffix(".other")
    other.write_bytes(path.read_bytes()[::-1])
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000))
    other.replace(path)


CHANGES = (shortened, emptied, grown, replaced)


def source_of(path, form, on_error, strings="list"):
    """The files of a recipe, listed now."""
    dataset = tdi.FileDataset(path, reader=form.reader, on_error=on_error, strings=strings)
    return UnitSource(dataset, dataset.list_files())


@pytest.fixture(params=FORMATS)
def form(request):
    """Each format."""
    return FORMATS[request.param]


@pytest.fixture
def path(tmp_path, form):
    """A file with 60 records."""
    path = tmp_path / f"a.{form.suffix}"
    path.write_bytes(form.write(list(range(60))))
    return path


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("moment", ["listed", "surveyed", "opened"])
class TestEachFormat:
    """At each moment."""

    @pytest.mark.slow
    def test_raised(self, path, form, change, moment):
        """The error names the file and what to do."""
        log = ReadLog()
        source = source_of(path, form, "raise")
        with pytest.raises(tdi.SourceError, match=rf"{path.name}.*since it was listed: distrib"):
            self._read(source, path, change, moment, log)

    def test_counted(self, path, form, change, moment):
        """With on_error="skip"."""
        log = ReadLog("skip")
        self._read(source_of(path, form, "skip"), path, change, moment, log)
        assert {str(path)} == set(log.drain().skipped)

    @staticmethod
    def _read(source, path, change, moment, log):
        if moment == "listed":
            change(path)
            source.parts(0, log)
            return
        units = [Unit(file=0, part=Part())]
        if moment == "opened":
            chunks = source.read(log, units[0])
            next(chunks)
            change(path)
            list(chunks)
            return
        units = [Unit(file=0, part=part) for part in source.parts(0, log)]
        change(path)
        for unit in units:
            list(source.read(log, unit))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", sorted(FORMATS.keys() - {"npy", "npz"}))
def test_packed_strings_of_a_file_that_changes(tmp_path, name, change):
    """Also where they are the bytes of a map: what is cut off is not touched, and is an error."""
    path = tmp_path / "a.x"
    path.write_bytes(FORMATS[name].write(list(range(60))))
    source = source_of(path, FORMATS[name], "raise", "packed")
    chunks = source.read(ReadLog(), Unit(file=0, part=Part()))
    next(chunks)
    change(path)
    with pytest.raises(tdi.SourceError, match="since it was listed: distrib"):
        list(chunks)


def test_a_file_that_is_gone_when_it_was_read(tmp_path):
    """Who has it open reads on: whoever removes what is used up may do so."""
    path = tmp_path / "a.txt"
    path.write_text("1\n2\n")
    chunks = source_of(path, FORMATS["text"], "raise").read(ReadLog(), Unit(file=0, part=Part()))
    first = next(chunks)
    path.unlink()
    assert ["1", "2"] == [row for chunk in (first, *chunks) for row in chunk.data]


def test_a_link_that_is_turned(tmp_path):
    """It is what it leads to that counts, also in listings of folders and globs."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(f"{name}\n")
        os.utime(tmp_path / name / "a.txt", (1, len(name) + (name == "new")))
    (tmp_path / "now").symlink_to("old")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "a.txt").symlink_to(tmp_path / "now" / "a.txt")
    source = source_of(tmp_path / "links" / "*.txt", FORMATS["text"], "raise")
    unit = Unit(file=0, part=Part())
    assert ["old"] == next(source.read(ReadLog(), unit)).data
    (tmp_path / "now").unlink()
    (tmp_path / "now").symlink_to("new")
    with pytest.raises(tdi.SourceError, match="written at 3.0, got one written at 4.0"):
        list(source.read(ReadLog(), unit))


def test_a_pipe(tmp_path):
    """Has the time of its last byte, and is no other for that."""
    reading, writing = os.pipe()
    source = source_of(f"/dev/fd/{reading}", FORMATS["text"], "raise")
    os.write(writing, b"1\n2\n")
    os.close(writing)
    chunks = source.read(ReadLog(), Unit(file=0, part=Part()))
    assert [["1", "2"]] == [chunk.data for chunk in chunks]


def test_in_memory():
    """Files that fsspec keeps."""
    storage = Memory()
    url = storage.put("a.txt", b"1\n2\n")
    source = source_of(url, FORMATS["text"], "raise")
    storage.put("a.txt", b"1\n3\n")
    with pytest.raises(tdi.SourceError, match="written at .*, got one written at"):
        list(source.read(ReadLog(), Unit(file=0, part=Part())))


class Remembering(fsspec.AbstractFileSystem):
    """Keeps what it listed, as those of object stores do."""

    protocol = "remembering"
    files: ClassVar[dict[str, bytes]] = {}

    def ls(self, path, detail=True, **_):
        """The one folder."""
        if "d" not in self.dircache:
            self.dircache["d"] = [
                {"name": name, "size": len(content), "type": "file"}
                for name, content in self.files.items()
            ]
        found = [info for info in self.dircache["d"] if path in ("d", info["name"])]
        return found if detail else [info["name"] for info in found]

    def invalidate_cache(self, path=None):
        """Forget it."""
        self.dircache.clear()

    def _open(self, path, mode="rb", **_):
        return io.BytesIO(self.files[path])


@pytest.mark.parametrize(
    "pattern", ["remembering://d/*.txt", "simplecache::remembering://d/*.txt", "@remembering://d/m"]
)
def test_files_are_listed_anew(monkeypatch, pattern):
    """For each dataset, though a file system may keep what it listed for the last one."""
    fsspec.register_implementation("remembering", Remembering, clobber=True)
    manifest = {"d/m": b"*.txt\n"}
    monkeypatch.setattr(Remembering, "files", {**manifest, "d/a.txt": b"1\n"})
    assert [2] == [file.size for file in tdi.FileDataset(pattern).list_files()]
    monkeypatch.setattr(Remembering, "files", {**manifest, "d/a.txt": b"1\n2\n", "d/b.txt": b""})
    assert [4, 0] == [file.size for file in tdi.FileDataset(pattern).list_files()]


def test_on_other_storages(tmp_path):
    """An end that comes too early, where only a request could tell that a file is another."""
    (tmp_path / "a.txt").write_text("12345678")
    opened = sized(fsspec.filesystem("file").open(tmp_path / "a.txt", "rb"), 9, path="x://a")
    assert b"3456" == (opened.seek(2), opened.read(4))[1]
    with pytest.raises(EOFError, match="x://a: expected 9 bytes, as it was listed, got 8"):
        opened.read()



@pytest.mark.parametrize("content", ["1\n2\n", "1\n2\n3\n4\n5\n"])
def test_a_copy_of_another_size(tmp_path, content):
    """fsspec keeps copies of files, and does not make them anew."""
    path, folder = tmp_path / "a.txt", str(tmp_path / "copies")
    files = tdi.FileDataset(
        f"simplecache::file://{path}", storage_options={"simplecache": {"cache_storage": folder}}
    )

    def read():
        dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(files, global_batch_size=9)
        return [line for batch in dataset for line in batch]

    path.write_text("1\n2\n3\n")
    assert ["1", "2", "3"] == read()
    assert ["1", "2", "3"] == read()
    path.write_text(content)
    with pytest.raises(tdi.SourceError, match="got a copy of 6"):
        read()


def test_a_shuffle_holds_no_bytes_of_a_mapped_file(tmp_path):
    """The file may be written over when it was read to its end, and nobody looks at it again."""
    pa = pytest.importorskip("pyarrow")
    paths = [tmp_path / "0.arrow", tmp_path / "1.arrow"]
    for path in paths:
        table = pa.table({"text": ["a" * 100] * 60})
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
    files = tdi.FileDataset(list(paths), reader="arrow", strings="packed").shuffle(90)
    stream = FileStream(dataset=files, listing=files.list_files(), collate=None)
    reader = stream.open(Shard())
    read = [reader.take(1)]
    with paths[0].open("r+b") as file:
        content = file.read().replace(b"a" * 100, b"z" * 100)
        file.seek(0)
        file.write(content)
    read += [reader.take(1) for _ in range(119)]
    assert {"a" * 100} == {text for chunk in read for text in chunk.data["text"]}
