"""Tar archives of records."""

from __future__ import annotations

import gzip
import io
import logging
import tarfile
from dataclasses import replace

import pytest

from torch_distinput.data.formats import framing, sidecar_index, tar_records
from torch_distinput.data.formats.reader import Part
from torch_distinput.data.formats.tar import Tar
from torch_distinput.data.storage import filesystem
from torch_distinput.data.storage.retries import Retries
from torch_distinput.testing import check_reader

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


def archive(members, kind=tarfile.GNU_FORMAT, headers=None):
    """Members are (name, content), or a TarInfo."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=kind, pax_headers=headers or {}) as opened:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                opened.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                opened.addfile(info, io.BytesIO(member[1]))
    return out.getvalue()


def in_memory(content, bad=None):
    (info,) = filesystem.list_files([__file__], {})
    file = filesystem.open_file(info, {}, bad=bad, retries=Retries())
    return replace(file, size=len(content), open=lambda: io.BytesIO(content))


def read(content, part=None):
    """Columns of all records, and what was reported."""
    reported = []
    file = in_memory(content, lambda where, reason: reported.append((where, str(reason))))
    joined = {}
    for chunk in Tar().read(file, part or Part()):
        for name, column in chunk.items():
            joined.setdefault(name, []).extend(column)
    return joined, reported


def content_of(i):
    return bytes([i % 251]) * (i * 7 % 1500)


RECORDS = 240
MEMBERS = [
    member
    for i in range(RECORDS)
    for member in ((f"dir.x/{i:05d}.cls", b"%d" % i), (f"dir.x/{i:05d}.seg.PNG", content_of(i)))
]
EXPECTED = {
    "__key__": [f"dir.x/{i:05d}" for i in range(RECORDS)],
    "cls": [b"%d" % i for i in range(RECORDS)],
    "seg.png": [content_of(i) for i in range(RECORDS)],
}


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "kind"), [*zip(["", ".gz", ""], FORMATS, strict=True)])
def test_keeps_the_promises(tmp_path, monkeypatch, suffix, kind):
    content = archive(MEMBERS, kind)
    path = tmp_path / f"a.tar{suffix}"
    path.write_bytes(gzip.compress(content) if suffix else content)
    for part_bytes, chunk_bytes in ((4 << 20, 1 << 20), (50_000, 7000)):
        monkeypatch.setattr(sidecar_index, "PART_BYTES", part_bytes)
        monkeypatch.setattr(framing, "CHUNK_BYTES", chunk_bytes)
        monkeypatch.setattr(framing, "_SEEK_BYTES", chunk_bytes)
        records = check_reader(Tar(), str(path), num_records=RECORDS)
        assert records == [dict(zip(EXPECTED, row)) for row in zip(*EXPECTED.values())]  # noqa: B905
    if not suffix:
        assert len(Tar().parts(in_memory(content))) > 10


def test_keeps_the_promises_with_a_kept_index(tmp_path, monkeypatch):
    monkeypatch.setattr(sidecar_index, "PART_BYTES", 50_000)
    path = tmp_path / "a.tar"
    path.write_bytes(archive(MEMBERS))
    reader = Tar(index=str(tmp_path / "kept"))
    assert reader.counted
    assert len(check_reader(reader, str(path), num_records=RECORDS)) == RECORDS


@pytest.mark.parametrize("kind", FORMATS)
def test_long_names_links_and_directories(kind):
    folder = tarfile.TarInfo("a folder.x")
    folder.type = tarfile.DIRTYPE
    link = tarfile.TarInfo("0001.lnk")
    link.type, link.linkname = tarfile.SYMTYPE, "y" * (90 if kind == FORMATS[0] else 200)
    hard = tarfile.TarInfo("0001.hrd")
    hard.type, hard.linkname, hard.size = tarfile.LNKTYPE, "0001.txt", 0
    long = "d" * 60 + "/" + "n" * 95 + ("é" * 100 if kind != FORMATS[0] else "")
    members = [folder, ("0001.txt", b"one"), link, hard, (f"{long}.txt", b"two"), ("3.txt", b"")]
    expected = {"__key__": ["0001", long, "3"], "txt": [b"one", b"two", b""]}
    assert (expected, []) == read(archive(members, kind))


def pax_record(key, value):
    line = f" {key}={value}\n"
    length = len(line) + 1
    while len(f"{length}{line}") != length:
        length = len(f"{length}{line}")
    return f"{length}{line}".encode()


def header(name, size, kind=b"0", *, field=None):
    block = bytearray(512)
    block[:100] = name.encode().ljust(100, b"\0")
    block[124:136] = field or b"%011o\0" % size
    block[148:156] = b" " * 8
    block[156:157] = kind
    block[257:265] = b"ustar\x0000"
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def padded(content):
    return content + bytes(-len(content) % 512)


def test_sizes_in_pax_headers_and_in_base_256():
    pax = pax_record("size", "5") + pax_record("path", "a.txt") + pax_record("mtime", "1.5")
    content = (
        header("x", len(pax), b"x")
        + padded(pax)
        + header("wrong", 0)
        + padded(b"abcde")
        + header("b.txt", 0, field=b"\x80" + (3).to_bytes(11, "big"))
        + padded(b"xyz")
        + header("c.txt", 0, field=b"%012o" % 2)
        + padded(b"ok")
    )
    expected = {"__key__": ["a", "b", "c"], "txt": [b"abcde", b"xyz", b"ok"]}
    assert read(content + bytes(1024)) == (expected, [])
    found, reported = read(content)  # cut off where a member ends
    assert found == expected
    assert [where for where, _ in reported] == ["the end"]
    assert read(content * 2)[0]["txt"] == expected["txt"] * 2


def test_a_global_header_forbids_cuts(monkeypatch):
    monkeypatch.setattr(sidecar_index, "PART_BYTES", 2000)
    pax = pax_record("path", "all.txt")
    content = header("g", len(pax), b"g") + padded(pax) + header("x.txt", 1) + padded(b"1")
    content += archive(MEMBERS)
    assert len(Tar().parts(in_memory(content))) == 1
    harmless = archive(MEMBERS, tarfile.PAX_FORMAT, {"comment": "made by nobody"})
    assert len(Tar().parts(in_memory(harmless))) > 10
    assert read(harmless) == (EXPECTED, [])


def test_files_in_another_order_make_the_same_record():
    members = [("1.a", b"1"), ("1.b", b"2"), ("2.b", b"4"), ("2.a", b"3")]
    assert read(archive(members))[0] == {
        "__key__": ["1", "2"],
        "a": [b"1", b"3"],
        "b": [b"2", b"4"],
    }


def test_records_that_differ_from_the_first_are_bad():
    members = [
        *(("1.a", b"1"), ("1.b", b"2")),
        ("2.a", b"3"),
        *(("3.a", b"5"), ("3.b", b"6"), ("3.c", b"7")),
        *(("4.a", b"5"), ("4.a", b"6"), ("4.b", b"7")),
        *(("5.a", b"8"), ("5.b", b"9")),
    ]
    got, reported = read(archive(members))
    assert got == {"__key__": ["1", "5"], "a": [b"1", b"8"], "b": [b"2", b"9"]}
    assert [where for where, _ in reported] == ["record '2'", "record '3'", "record '4'"]
    expected = "expected files a, b, as in the first record of the archive, each once, got a."
    assert expected in reported[0][1]


def test_names_that_differ_only_in_case_are_one_column_twice():
    got, reported = read(archive([("1.jpg", b"1"), ("1.JPG", b"2")]))
    assert not got
    assert "expected files jpg, as in the first record" in reported[0][1]
    assert "got jpg, jpg." in reported[0][1]


def test_a_part_asks_the_first_record_of_the_archive(monkeypatch):
    monkeypatch.setattr(sidecar_index, "PART_BYTES", 1)
    content = archive([("1.a", b"1"), ("1.b", b"2"), ("2.a", b"3"), ("3.b", b"4"), ("3.a", b"5")])
    parts = Tar().parts(in_memory(content))
    assert [part.num_records for part in parts] == [1, 1, 1]
    assert [len(read(content, part)[1]) for part in parts] == [0, 1, 0]
    assert read(content, parts[2])[0] == {"__key__": ["3"], "a": [b"5"], "b": [b"4"]}


def test_names_that_are_not_utf8_are_bad():
    content = header("good.txt", 1) + padded(b"1")
    broken = bytearray(header("XX.txt", 1))
    broken[:2] = b"\xff\xfe"
    broken[148:156] = b" " * 8
    broken[148:156] = b"%06o\0 " % sum(broken)
    got, reported = read(content + bytes(broken) + padded(b"2") + header("z.txt", 1) + padded(b"3"))
    assert got["txt"] == [b"1", b"3"]
    assert "UTF-8" in reported[0][1]


def test_a_size_below_zero_is_bad():
    broken = header("b.txt", 0, field=b"-0000001000\0")  # it would lead back to where it stands
    got, reported = read(header("a.txt", 1) + padded(b"1") + broken)
    assert (got["txt"], len(reported)) == ([b"1"], 1)


def test_other_files_are_passed_over(caplog):
    members = [("README", b"?"), ("a/.hidden.txt", b"?"), ("1.txt", b"1"), ("LICENSE", b"?")]
    tar_records._said.clear()
    with caplog.at_level(logging.WARNING):
        assert read(archive(members)) == ({"__key__": ["1"], "txt": [b"1"]}, [])
    assert len(caplog.records) == 1
    assert "README" in caplog.text


@pytest.mark.parametrize("chunk_bytes", [1 << 20, 2000])
@pytest.mark.parametrize("place", [5, 130, 150, 260])
def test_after_a_damaged_header_the_next_one_is_found(monkeypatch, chunk_bytes, place):
    monkeypatch.setattr(framing, "CHUNK_BYTES", chunk_bytes)
    members = [(f"{i:03d}.txt", b"%d" % i * 700) for i in range(20)]
    content = bytearray(archive(members))
    starts = [content.find(b"%03d.txt" % i) for i in range(20)]
    for number in (0, 7, 8, 19):
        content[starts[number] + place] ^= 3
    got, reported = read(bytes(content))
    kept = [i for i in range(20) if i not in (0, 7, 8, 19)]
    assert got == {
        "__key__": [f"{i:03d}" for i in kept],
        "txt": [b"%d" % i * 700 for i in kept],
    }
    assert [where for where, _ in reported] == [f"member at byte {starts[i]}" for i in (0, 7, 19)]


def test_a_cut_archive_is_reported():
    content = archive([("1.txt", b"1" * 600), ("2.txt", b"2" * 600)])
    got, reported = read(content[:2000])
    assert got["__key__"] == ["1"]
    assert [where for where, _ in reported] == ["member at byte 1536"]
    assert "cut off" in reported[0][1]


def test_joined_archives_large_members_and_empty_files():
    large = [("1.txt", bytes(5 << 20)), ("2.txt", b"2"), ("3.txt", bytes(9 << 20))]
    assert read(archive(large)) == (
        {"__key__": ["1", "2", "3"], "txt": [content for _, content in large]},
        [],
    )
    assert read(b"") == ({}, [])
    assert read(archive([])) == ({}, [])
    assert list(Tar().parts(in_memory(b""))) == []


def test_chunks_stay_small_beside_large_records(tmp_path):
    members = [(f"{i}.txt", bytes(20 << 20 if i == 3 else 1000)) for i in range(10)]
    path = tmp_path / "a.tar"
    path.write_bytes(archive(members))
    sizes = [
        (len(chunk["txt"]), sum(map(len, chunk["txt"])))
        for chunk in Tar().read(in_memory(path.read_bytes()), Part())
    ]
    assert sum(count for count, _ in sizes) == 10
    assert all(count == 1 or size < 8 << 20 for count, size in sizes)


NESTED = archive([("inner.txt", b"no record of this archive")])


def sparse_in_gnus_form():
    """The map has two blocks of its own, and what is stored looks like members."""
    head = bytearray(header("1.txt", len(NESTED), b"S"))
    head[482] = 1
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + bytes(504) + b"\1" + bytes(7) + bytes(512) + padded(NESTED)


def sparse_in_pax_form():
    pax = pax_record("GNU.sparse.major", "1") + pax_record("GNU.sparse.name", "1.txt")
    member = header("GNUSparseFile.1/1.txt", len(NESTED)) + padded(NESTED)
    return header("x", len(pax), b"x") + padded(pax) + member


def behind_damaged_pax(pax):
    member = header("1.txt", len(NESTED)) + padded(NESTED)
    return header("x", len(pax), b"x") + padded(pax) + member


REFUSED = {
    "sparse, GNU": (sparse_in_gnus_form(), "without --sparse"),
    "sparse, pax": (sparse_in_pax_form(), "without --sparse"),
    "unknown": (header("1.txt", len(NESTED), b"Z") + padded(NESTED), "of type 'Z'"),
    "continued": (header("1.txt", len(NESTED), b"M") + padded(NESTED), "in one volume"),
    "damaged": (behind_damaged_pax(b"16 path=long.txt\n"), "expected lines of 'length key=value'"),
    "no sign": (behind_damaged_pax(b"9 pathxx\n"), "expected lines of 'length key=value'"),
}


@pytest.mark.parametrize("chunk_bytes", [1 << 20, 600])
@pytest.mark.parametrize("kind", REFUSED)
def test_members_that_cannot_be_read_are_bad(monkeypatch, kind, chunk_bytes):
    """Told once, and passed over whole: nothing of their content is taken for a member."""
    monkeypatch.setattr(framing, "CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(framing, "_SEEK_BYTES", chunk_bytes)
    member, reason = REFUSED[kind]
    before, after = (header(f"{n}.txt", 1) + padded(b"%d" % n) for n in (0, 2))
    content = before + member + after + bytes(1024)
    found, reported = read(content)
    assert {"__key__": ["0", "2"], "txt": [b"0", b"2"]} == found
    assert [f"member at byte {len(before)}"] == [where for where, _ in reported]
    assert reason in reported[0][1]
    assert "1.txt: expected" in reported[0][1]
    assert [2] == [part.num_records for part in Tar().parts(in_memory(content))]


def test_what_says_nothing_about_a_member_changes_nothing():
    """GNU's long names of links, folders of backups, contiguous files, pax headers of Solaris."""
    pax, empty = pax_record("path", "2.txt"), pax_record("path", "")
    content = (
        header("x", len(pax), b"X") + padded(pax)
        + header("@LongLink", 6, b"K") + padded(b"where\0")
        + header("wrong", 1, b"7") + padded(b"2")
        + header("1.txt", 30, b"D") + padded(b"Ya.txt\0")
        + header("x", len(pax + empty), b"x") + padded(pax + empty)
        + header("3.txt", 1) + padded(b"3")
        + bytes(1024)
    )  # fmt: skip
    assert ({"__key__": ["2", "3"], "txt": [b"2", b"3"]}, []) == read(content)


def test_links_are_passed_over_and_named(caplog):
    link = tarfile.TarInfo("2.txt")
    link.type, link.linkname = tarfile.LNKTYPE, "1.txt"
    tar_records._said.clear()
    with caplog.at_level(logging.WARNING):
        assert ["1"] == read(archive([("1.txt", b"1"), link]))[0]["__key__"]
    assert "links, such as '2.txt', are skipped" in caplog.text
