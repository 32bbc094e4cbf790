"""Files wherever they lie: listings, ranges, retries."""

from __future__ import annotations

import gzip
import io
import logging
import sys
import zipfile

import fsspec
import pytest

import torch_distinput as tdi
from tests.distribute.street import play
from tests.formats import FORMATS
from tests.storages import NAMES, Local, Memory, ObjectStore, WebServer, open_storage
from torch_distinput.data.storage import filesystem, retries
from torch_distinput.data.storage.range_reader import open_ranged
from torch_distinput.data.storage.retries import Retries, attempt

LARGE = (b"x" * 1023 + b"\n") * 6000  # more than one request


@pytest.fixture(params=NAMES)
def storage(request, tmp_path, monkeypatch):
    """Each kind."""
    opened = open_storage(request.param, tmp_path, monkeypatch)
    yield opened
    opened.close()


@pytest.fixture
def server():
    """A web server."""
    opened = WebServer()
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    """Try again at once."""
    monkeypatch.setattr(retries, "_FIRST_PAUSE", 0)


def records(*args, **keywords):
    """All records on one worker."""
    (steps,) = play(tdi.FileDataset(*args, **keywords), 10_000)
    return [x for step in steps for batch in step for x in batch]


@pytest.mark.slow
def test_the_same_everywhere(storage):
    """Whole files, cut files, from the middle."""
    lines = [f"{i} " + "x" * (i % 90) for i in range(3000)]
    urls = [
        storage.put(f"{k}.txt", "".join(f"{line}\n" for line in lines[k::3]).encode())
        for k in range(3)
    ]
    expected = lines[0::3] + lines[1::3] + lines[2::3]
    for split in (False, True):
        assert expected == records(urls, split_files=split)


def test_names_below_a_folder_are_those_of_now(monkeypatch):
    """Also what another process has written since the folder was listed."""
    store = ObjectStore(monkeypatch)
    folder = f"{store.url}/layers"
    store.put("layers/below/state", b"x")
    assert {"below/state"} == filesystem.names_below(folder, {})
    other = fsspec.filesystem("s3", skip_instance_cache=True)
    other.pipe_file(f"{folder}/more", b"x")
    other.rm_file(f"{folder}/below/state")
    assert {"more"} == filesystem.names_below(folder, {})
    assert set() == filesystem.names_below(f"{store.url}/nothing", {})
    other.touch(f"{folder}/")  # as consoles of object stores mark a folder
    assert {"more"} == filesystem.names_below(folder, {})


def test_globs(storage):
    """Sorted; where there are listings."""
    if isinstance(storage, WebServer):
        pytest.skip("rule: a web server has no listings")
    for name in ("b.txt", "a.txt", "c.csv"):
        storage.put(name, name.encode())
    assert ["a.txt", "b.txt"] == records(f"{storage.url}/*.txt")
    with pytest.raises(FileNotFoundError, match="No file matches"):
        records(f"{storage.url}/*.parquet")


def test_many_paths_cost_one_listing(storage, monkeypatch):
    """Not one question each."""
    urls = [storage.put(f"{i:03}.txt", b"%d\n" % i) for i in range(30)]
    system, _ = fsspec.core.url_to_fs(storage.url)
    asked = []
    info = type(system).info
    monkeypatch.setattr(type(system), "info", lambda *a, **k: asked.append(a) or info(*a, **k))
    found = filesystem.list_files(urls, {})
    assert urls == [info.path for info in found]
    if not isinstance(storage, (Local, WebServer)):  # here a question costs nothing; no listings
        assert not asked
        assert all(info.size in (2, 3) for info in found)


def test_missing(storage):
    """Named."""
    storage.put("a.txt", b"a\n")
    with pytest.raises(FileNotFoundError):
        records([f"{storage.url}/a.txt", f"{storage.url}/b.txt"])


def test_manifest(storage):
    """A list of paths, relative to it or not."""
    for name in ("b.txt", "a.txt"):
        url = storage.put(name, name.encode())
    manifest = storage.put("list.txt", f"# files\n\nb.txt\n{url}\n".encode())
    assert ["b.txt", "a.txt"] == records(f"@{manifest}")
    with pytest.raises(FileNotFoundError, match="No manifest at"):
        records(f"@{storage.url}/none.txt")


def test_what_a_glob_means(tmp_path, caplog):
    """Links to files too; no index that a reader keeps."""
    storage = Local(tmp_path)
    (tmp_path / "data").mkdir()
    for name in ("data/a.txt", "b.txt", "b.txt.index.npz", "b.txt.index.npz.17.part", "d.part"):
        storage.put(name, name.encode())
    (tmp_path / "c.txt").symlink_to(tmp_path / "data" / "a.txt")
    (tmp_path / "folder").symlink_to(tmp_path / "data")
    (tmp_path / ".git").mkdir()
    assert ["b.txt", "data/a.txt", "d.part"] == records(f"{tmp_path}/*")
    assert "hidden" not in caplog.text  # as no file is


def test_what_a_glob_leaves_out_is_said(tmp_path, caplog):
    """Once; louder if there is no file that it could be the index of."""
    storage = Local(tmp_path)
    for name in ("a.txt", "a.txt.index.npz", "b.index.npz"):
        storage.put(name, name.encode())
    with caplog.at_level(logging.INFO):
        for pattern in ("a*", "a*", "*"):
            assert ["a.txt"] == records(f"{tmp_path}/{pattern}")
    said = [(record.levelname, record.getMessage()[:9]) for record in caplog.records]
    assert [("INFO", "1 matches"), ("WARNING", "2 matches")] == said


@pytest.mark.parametrize("chain", ["", "memory://", "zip://"])
def test_hidden_files(tmp_path, chain, caplog):
    """As Python's glob: not meant, unless the pattern says so; which is said once."""
    names = ["a.txt", "._a.txt", "in/b.txt", ".in/c.txt", "in/.d.txt", ".up/in/e.txt"]
    for folder in ("in", ".in", ".up/in"):
        (tmp_path / folder).mkdir(parents=True)
    end = ""
    if chain == "zip://":
        with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
            for name in names:
                archive.writestr(name, name)
        root, end = "zip://", f"::{tmp_path}/all.zip"
    else:
        place = Memory() if chain else Local(tmp_path)
        first, *_ = [place.put(name, name.encode()) for name in names]
        root = first.removesuffix("a.txt")
    for _ in range(2):
        assert ["a.txt"] == records(f"{root}*.txt{end}")
        assert ["a.txt", "in/b.txt"] == records(f"{root}**/*.txt{end}")
    assert 2 == len([r for r in caplog.records if "are hidden" in r.getMessage()])
    assert ["._a.txt"] == records(f"{root}.*.txt{end}")
    assert [".in/c.txt"] == records(f"{root}.in/*{end}")
    assert [".up/in/e.txt"] == records(f"{root}.up/**/*.txt{end}")


def test_a_link_to_nothing(tmp_path):
    """It is no reason to read less."""
    (tmp_path / "a.txt").write_text("a\n")
    (tmp_path / "b.txt").symlink_to(tmp_path / "c")
    with pytest.raises(FileNotFoundError, match=r"b\.txt"):
        records(f"{tmp_path}/*.txt")


def test_a_storage_that_fails_is_no_bad_record(server):
    """Whatever on_error says."""
    url = server.put("a.txt", b"1\n2\n")
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(
        tdi.FileDataset([url, url], on_error="skip"), global_batch_size=4
    )
    iterator = iter(dataset)
    server.failures = 1000
    with pytest.raises(tdi.SourceError, match="503"):
        next(iterator)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_server_that_says_it_has_no_ranges(suffix):
    """It is read from one end to the other."""
    server = WebServer(ranges=None)
    lines = [f"{i}" for i in range(5000)]
    content = "\n".join(lines).encode()
    url = server.put(f"a.txt{suffix}", gzip.compress(content) if suffix else content)
    assert lines == records(url, split_files=True)
    server.close()


def test_chained_urls(tmp_path):
    """Archives and caches, also of many files."""
    lines = {f"{i:02}.txt": f"{i}\n" for i in range(12)}
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for name, line in lines.items():
            archive.writestr(name, line)
            (tmp_path / name).write_text(line)
    expected = [str(i) for i in range(12)]
    for pattern in (f"zip://*.txt::{tmp_path}/all.zip", f"simplecache::file://{tmp_path}/*.txt"):
        found = filesystem.list_files([pattern], {})
        assert all("::" in info.path for info in found)
        assert expected == records(pattern)
        assert expected == records([info.path for info in found])


def test_names_that_look_like_globs(tmp_path):
    """A file of that very name comes first."""
    storage = Local(tmp_path)
    storage.put("a[1].txt", b"brackets")
    storage.put("a1.txt", b"one")
    assert ["brackets"] == records(f"{tmp_path}/a[1].txt")
    assert ["one"] == records(f"{tmp_path}/a[0-9].txt")


class TestNetwork:
    """Ranges and retries."""

    def test_failures_that_pass(self, server):
        """Tried again, and counted."""
        url = server.put("a.txt", b"1\n2\n")
        dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(
            tdi.FileDataset(url), global_batch_size=4
        )
        with iter(dataset) as iterator:
            server.failures = 2
            assert [["1", "2"]] == list(iterator)
            assert iterator.stats().retries == 2

    def test_failures_that_do_not_pass(self, server):
        """The last one is raised, with the file."""
        url = server.put("a.txt", b"1\n2\n")
        dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(
            tdi.FileDataset(url), global_batch_size=4
        )
        iterator = iter(dataset)
        server.failures = 1000
        with pytest.raises(tdi.SourceError, match=r"503.*a.txt.*after 5 attempts"):
            next(iterator)

    def test_a_server_without_ranges(self):
        """Small files are read at once; large ones have a cure."""
        server = WebServer(ranges=False)
        assert ["1", "2"] == records(server.put("a.txt", b"1\n2\n"))
        large = server.put("b.txt", LARGE)
        with pytest.raises(tdi.SourceError, match="simplecache::"):
            records(large)
        assert 6000 == len(records(f"simplecache::{large}"))
        server.close()

    def test_a_cut_file_asks_for_its_ranges_only(self, server):
        """Large requests, not many."""
        url = server.put("a.txt", LARGE)
        assert 6000 == len(records(url))
        assert server.requests["GET", "/a.txt"] <= 6

    def test_ranged_files_behave_like_files(self):
        """Seek, tell, read past the end; a short answer is an error."""
        content = bytes(range(256)) * 100
        opened = open_ranged(lambda a, b: content[a:b], len(content), path="x", retries=Retries())
        plain = io.BytesIO(content)
        for file in (opened, plain):
            assert file.seek(-10, io.SEEK_END) == len(content) - 10
            assert file.read() == content[-10:]
            assert file.read(5) == b""
            assert file.seek(300) == 300
            assert file.read(7) == content[300:307]
            assert file.tell() == 307
        short = open_ranged(lambda a, b: content[a : b - 1], 999, path="x", retries=Retries())
        with pytest.raises(OSError, match="x: expected 999 bytes from 0 on, got 998"):
            short.read(10)

    def test_what_may_pass(self):
        """A missing file is missing; a timeout may pass."""

        def failing(error, times):
            calls = iter([error] * times)

            def call():
                for raised in calls:
                    raise raised
                return "done"

            return call

        retries = Retries()
        assert attempt(failing(TimeoutError(), 3), retries) == "done"
        assert retries.count == 3
        for error in (FileNotFoundError(), PermissionError(), ValueError()):
            with pytest.raises(type(error)):
                attempt(failing(error, 1), retries)
        with pytest.raises(OSError, match="ConnectionResetError: .*after 5 attempts"):
            attempt(failing(ConnectionResetError(), 5), retries)


@pytest.mark.parametrize(
    ("reader", "library", "extra"),
    [
        ("parquet", "pyarrow.parquet", "arrow"),
        ("arrow", "pyarrow.ipc", "arrow"),
        ("tfrecord", "google_crc32c", "tfrecord"),
        ("text", "backports.zstd", "zstd"),
    ],
)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_missing_library(tmp_path, monkeypatch, reader, library, extra, on_error):
    """It says what to install; it is no bad record."""
    from torch_distinput.data.formats.arrow import columns
    from torch_distinput.data.formats.tfrecord import records

    form = FORMATS[reader]
    path = tmp_path / f"a.{'zst' if extra == 'zstd' else form.suffix}"
    path.write_bytes(form.write([1, 2, 3]))
    for cached in (columns.load_arrow, records._crc32c):
        cached.cache_clear()
    monkeypatch.setitem(sys.modules, library, None)
    recipe = tdi.FileDataset(path, reader=form.reader, on_error=on_error)
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(recipe, global_batch_size=4)
    errors = (tdi.ConfigurationError, tdi.SourceError)
    with pytest.raises(errors, match=rf"pip install .*\[{extra}"):
        list(dataset)


def test_threads_do_not_share_a_position_in_memory():
    """fsspec has one file object for all who open a file in memory."""
    storage = Memory()
    url = storage.put("a.txt", b"1\n2\n3\n")
    (info,) = filesystem.list_files([url], {})
    opened = filesystem.open_file(info, {}, bad=print, retries=Retries())
    with opened.open() as one, opened.open() as other:
        assert one.readline() == other.readline() == b"1\n"


@pytest.mark.parametrize("braces", ["{00..99}", "{a,b}"])
def test_braces_are_not_expanded_and_the_error_says_so(tmp_path, braces):
    with pytest.raises(FileNotFoundError, match="braces are not expanded. Write a glob"):
        filesystem.list_files([f"{tmp_path}/train-{braces}.tar"], {})
