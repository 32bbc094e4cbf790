"""What a storage refuses or cuts off is no bad record: it is raised, whatever ``on_error`` says."""

from __future__ import annotations

import errno
import gc
import gzip
import io
import math
import re
import tarfile
import zipfile
from types import SimpleNamespace

import aiohttp
import pytest
from aiohttp.http_exceptions import BadHttpMessage
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.zip import ZipFileSystem

import torch_distinput as tdi
from tests.distribute.street import play
from tests.formats import FORMATS
from tests.storages import WebServer
from torch_distinput.data.storage import retries

NUM_RECORDS = 60_000
LINES = b"".join(b"%06d some text that takes some room\n" % n for n in range(NUM_RECORDS))
GIVEN_UP = retries.StorageError(errno.EIO, "after 5 attempts")


@pytest.fixture(params=[True, None], ids=["ranges", "no ranges"])
def server(request):
    opened = WebServer(ranges=request.param)
    opened.has_ranges = bool(request.param)
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(retries, "_FIRST_PAUSE", 0)


def count_records(url, **keywords):
    files = tdi.FileDataset(url, on_error="skip", **keywords)
    (steps,) = play(files, 10_000)
    return sum(len(batch) for step in steps for batch in step)


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
@pytest.mark.parametrize("num_granted", [0, 2])
def test_a_right_that_ends(server, name, num_granted):
    """As that of a signed link does, from the first byte on or in the middle of a file."""
    if num_granted and not server.has_ranges:
        num_granted = 0  # there is one request for the whole
    content = LINES * 8
    url = server.put(name, gzip.compress(content, 0) if name.endswith("gz") else content)
    server.num_granted = num_granted
    with pytest.raises(tdi.SourceError, match=r"PermissionError.*403"):
        count_records(url)


@pytest.mark.parametrize("kind", sorted(FORMATS))
def test_every_format(kind):
    """Whether its own library reads the file or this one."""
    server = WebServer()
    one = FORMATS[kind]
    url = server.put(f"a{one.suffix}", one.write(list(range(300))))
    server.num_granted = 0
    with pytest.raises(tdi.SourceError, match=r"PermissionError.*403"):
        count_records(url, reader=one.reader)
    server.close()


def put_archive(server, kind):
    """The lines in two members."""
    half = len(LINES) // 2
    content, members = io.BytesIO(), {"a.txt": LINES[:half], "b.txt": LINES[half:]}
    if kind == "zip":
        with zipfile.ZipFile(content, "w") as archive:
            for name, lines in members.items():
                archive.writestr(name, lines)
    else:
        with tarfile.open(fileobj=content, mode="w") as archive:
            for name, lines in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(lines)
                archive.addfile(info, io.BytesIO(lines))
    return server.put(f"all.{kind}", content.getvalue())


@pytest.mark.parametrize("kind", ["zip", "tar"])
@pytest.mark.parametrize("ends", ["failures", "num_cut", "num_lost"])
def test_an_archive_is_opened_again(server, kind, ends):
    """It is opened to list its members, and once more for each of them."""
    url = put_archive(server, kind)
    if not server.has_ranges:
        with pytest.raises(tdi.ConfigurationError, match=f"'{kind}://\\*.txt::simplecache::{url}'"):
            count_records(f"{kind}://*.txt::{url}")
        assert NUM_RECORDS == count_records(f"{kind}://*.txt::simplecache::{url}")
        return
    count = 2 if ends == "num_lost" else 1  # aiohttp asks once more itself
    setattr(server, ends, count)
    files = tdi.FileDataset(f"{kind}://*.txt::{url}", on_error="skip")
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(files, global_batch_size=1000)
    with iter(dataset) as steps:
        first = next(steps)
        setattr(server, ends, count)
        assert NUM_RECORDS == len(first) + sum(map(len, steps))


@pytest.mark.parametrize("kind", ["zip", "tar"])
@pytest.mark.parametrize("server", [True], indirect=True)
def test_an_archive_that_never_comes_is_asked_for_five_times(server, kind):
    """Not five times by who opens it, each of which is five times by who reads a part."""
    url = put_archive(server, kind)
    server.num_lost = math.inf
    with pytest.raises(OSError, match=f"{url}: .*after 5 attempts$") as caught:
        tdi.FileDataset(f"{kind}://*.txt::{url}").list_files()
    assert "after 5 attempts, after" not in str(caught.value)


@pytest.mark.parametrize("how", ["damaged", "cut off", "joined"])
@pytest.mark.parametrize("is_remote", [False, True])
def test_half_an_archive(tmp_path, how, is_remote):
    """tarfile takes what it cannot read for the end, and passes over a second archive."""
    server = WebServer()
    whole = server.files[f"/{put_archive(server, 'tar').rpartition('/')[2]}"]
    half = 512 + -(-len(LINES) // 2 // 512) * 512
    found = {
        "damaged": whole[: half + 148] + b"7654321" + whole[half + 155 :],
        "cut off": whole[:half],
        "joined": whole * 2,
    }
    (tmp_path / "all.tar").write_bytes(found[how])
    url = server.put("all.tar", found[how]) if is_remote else f"file://{tmp_path}/all.tar"
    with pytest.raises(tdi.ConfigurationError, match="blocks of zeros expected from byte"):
        count_records(f"tar://*.txt::{url}")
    server.close()


@pytest.mark.parametrize("num_busy", [4, 5])
def test_a_busy_storage_makes_no_pattern_of_a_name(tmp_path, monkeypatch, num_busy):
    """Else another file would match it."""
    for name in ("part[1].txt", "part1.txt"):
        (tmp_path / name).write_text(name)
    asked = []

    def info(self, path, **keywords):
        asked.append(path)
        if "[" in path and len(asked) <= num_busy:
            raise ConnectionResetError("busy")
        return found(self, path, **keywords)

    found = LocalFileSystem.info
    monkeypatch.setattr(LocalFileSystem, "info", info)
    files = tdi.FileDataset(f"file://{tmp_path}/part[1].txt")
    if num_busy == 5:
        with pytest.raises(OSError, match="busy, after 5 attempts"):
            files.list_files()
    else:
        (one,) = files.list_files()
        assert one.path.endswith("part[1].txt")


def test_what_is_no_archive_is_named(tmp_path):
    (tmp_path / "all.zip").write_bytes(LINES)
    url = f"zip://*.txt::file://{tmp_path}/all.zip"
    with pytest.raises(tdi.ConfigurationError, match=f"archive at '{re.escape(url)}', got BadZip"):
        count_records(url)


def test_an_archive_is_closed_when_its_epoch_is_over(tmp_path):
    """Not when the garbage collector comes: it would hold a file open for each member."""
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("a.txt", LINES)
    gc.collect()
    gc.disable()
    try:
        assert NUM_RECORDS == count_records(f"zip://*.txt::simplecache::file://{tmp_path}/all.zip")
        assert not [one for one in gc.get_objects() if isinstance(one, ZipFileSystem)]
    finally:
        gc.enable()


@pytest.mark.parametrize("end", [".tar.gz", ".tgz"])
def test_a_compressed_archive(tmp_path, end):
    """Also behind a copy, which has a name that does not say how it is compressed."""
    with tarfile.open(tmp_path / f"all{end}", "w:gz") as archive:
        info = tarfile.TarInfo("a.txt")
        info.size = len(LINES)
        archive.addfile(info, io.BytesIO(LINES))
    assert NUM_RECORDS == count_records(f"tar://*.txt::simplecache::file://{tmp_path}/all{end}")
    assert NUM_RECORDS == count_records(f"tar://*.txt::file://{tmp_path}/all{end}")


def test_a_manifest_of_a_signed_link():
    """What stands beside it is no part of the signature."""
    server = WebServer()
    server.put("below/list.txt?signature=a/b", b"a.txt\n")
    server.put("below/a.txt", LINES)
    url = f"@{server.url}/below/list.txt?signature=a/b"
    assert NUM_RECORDS == count_records(url)
    server.close()


@pytest.mark.parametrize("columns", [None, ["id"]])
@pytest.mark.parametrize("kind", ["arrow", "arrow_stream"])
def test_arrow_from_a_server_without_ranges(kind, columns):
    server = WebServer(ranges=None)
    url = server.put("a.arrow", FORMATS[kind].write(list(range(30))))
    files = tdi.FileDataset(url, reader=tdi.readers.Arrow(columns=columns))
    (batch,) = tdi.OneDeviceStrategy("cpu").distribute_dataset(files, global_batch_size=30)
    assert list(range(30)) == batch["id"].tolist()
    server.close()


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
@pytest.mark.parametrize("server", [True], indirect=True)
def test_a_range_that_is_cut_once_is_asked_for_again(server, name):
    url = server.put(name, gzip.compress(LINES, 0) if name.endswith("gz") else LINES)
    server.num_cut = 1
    assert NUM_RECORDS == count_records(url)
    assert server.num_cut == 0


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_a_connection_that_is_always_cut(server, name):
    url = server.put(name, gzip.compress(LINES, 0) if name.endswith("gz") else LINES)
    server.num_cut = math.inf
    with pytest.raises(tdi.SourceError, match=r"(OSError|StorageError).*Client"):
        count_records(url)


class ClientError(Exception):
    """As of botocore."""

    __module__ = "botocore.exceptions"

    def __init__(self, status):
        super().__init__(f"said {status}")
        self.response = {"Error": {"Code": "some"}, "ResponseMetadata": {"HTTPStatusCode": status}}


@pytest.mark.parametrize(
    ("status", "number"),
    [(400, errno.EIO), (412, errno.EIO), (403, errno.EACCES), (416, errno.EINVAL)],
)
def test_what_s3_refuses(status, number):
    """s3fs has one number for nearly all of it, and for a range that is not there."""
    error = OSError(errno.EINVAL, "refused")
    error.__cause__ = ClientError(status)
    with pytest.raises(OSError, match="refused|said") as caught:
        retries.attempt(lambda: fail(error), retries.Retries())
    assert number == caught.value.errno


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_disk_that_takes_no_copy(number):
    """It is not asked again."""
    asked = retries.Retries()
    with pytest.raises(OSError, match="full") as caught:
        retries.attempt(lambda: fail(OSError(number, "full")), asked)
    assert (number, 0) == (caught.value.errno, asked.count)


class AnswerError(Exception):
    """As of a client that keeps the status in its own place."""

    __module__ = "huggingface_hub.errors"


@pytest.mark.parametrize("name", ["status", "status_code", "code", "response"])
@pytest.mark.parametrize(("status", "number"), [(404, errno.EIO), (401, errno.EACCES)])
def test_where_clients_keep_the_status(name, status, number):
    """What a server refuses is not asked for again."""
    error, asked = AnswerError("no"), retries.Retries()
    setattr(error, name, SimpleNamespace(status_code=status) if name == "response" else status)
    with pytest.raises(OSError, match="no") as caught:
        retries.attempt(lambda: fail(error), asked)
    assert (number, 0) == (caught.value.errno, asked.count)


@pytest.mark.parametrize("is_wrapped", [True, False])
def test_an_answer_that_is_cut_has_no_status(is_wrapped):
    """aiohttp gives it one of its own: 400."""
    error = BadHttpMessage("cut")
    if is_wrapped:
        error = caused(aiohttp.ClientResponseError(None, (), status=error.code), error)
    assert retries.may_pass(error)
    assert not retries.may_pass(aiohttp.ClientResponseError(None, (), status=400))


@pytest.mark.parametrize("code", ["Throttling", "SlowDown", "LimitExceeded", "TooManyRequests"])
@pytest.mark.parametrize("wrap", [lambda e: e, lambda e: caused(OSError(errno.EIO, "busy"), e)])
def test_amazon_is_busy_with_the_status_400(code, wrap):
    error = ClientError(400)
    error.response["Error"]["Code"] = code
    assert retries.may_pass(wrap(error))


def test_a_timeout_may_pass_whatever_its_status():
    assert retries.may_pass(caused(TimeoutError(errno.ETIMEDOUT, "late"), ClientError(400)))


@pytest.mark.parametrize(("module", "failure"), [("gcsfs.retry", OSError), ("job", ValueError)])
def test_a_value_error_of_a_client_is_no_damage(module, failure):
    """gcsfs raises it for a token that has expired."""
    scope = {"__name__": module}
    exec("def ask(): raise ValueError('Bad Request: no credentials')", scope)  # noqa: S102
    with pytest.raises(failure, match="Bad Request"):
        retries.attempt(scope["ask"], retries.Retries())


def caused(error, cause):
    error.__cause__ = cause
    return error


def test_a_file_that_s3_does_not_have():
    error, asked = FileNotFoundError("no such key"), retries.Retries()
    error.__cause__ = ClientError(404)
    with pytest.raises(FileNotFoundError, match="no such key"):
        retries.attempt(lambda: fail(error), asked)
    assert 0 == asked.count


def test_a_seek_to_where_there_is_nothing():
    """It is damage: no server has said anything."""
    with pytest.raises(OSError, match="nothing there") as caught:
        retries.attempt(lambda: fail(OSError(errno.EINVAL, "nothing there")), retries.Retries())
    assert errno.EINVAL == caught.value.errno


def fail(error):
    raise error


@pytest.mark.parametrize(
    ("cause", "times"), [(None, 0), (KeyError(), 0), (EOFError("cut"), 4), (GIVEN_UP, 0)]
)
def test_what_was_cut_off_is_read_again(cause, times):
    """Zipfile says of it that it is no archive, as of what is none."""
    asked, error = retries.Retries(), zipfile.BadZipFile("File is not a zip file")
    error.__context__ = cause
    with pytest.raises(OSError if times else zipfile.BadZipFile):
        retries.attempt(lambda: fail(error), asked)
    assert times == asked.count
