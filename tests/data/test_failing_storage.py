"""What a storage refuses or cuts off is no bad record: it is raised, whatever ``on_error`` says."""

from __future__ import annotations

import gzip

import pytest

import torch_distinput as tdi
from tests.distribute.street import play
from tests.formats import FORMATS
from tests.storages import WebServer
from torch_distinput.data.storage import retries

NUM_RECORDS = 60_000
LINES = b"".join(b"%06d some text that takes some room\n" % n for n in range(NUM_RECORDS))


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
def test_a_connection_that_is_cut(server, name):
    url = server.put(name, gzip.compress(LINES, 0) if name.endswith("gz") else LINES)
    server.cuts_bodies = True
    with pytest.raises(tdi.SourceError, match=r"OSError.*Client"):
        count_records(url)
