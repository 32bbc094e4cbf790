"""Tar archives whose records have files that not all of them have, or that nobody wants."""

from __future__ import annotations

import io
import random
import tarfile

import pytest

import torch_distinput as tdi
from tests.data.formats.test_tar import archive, in_memory
from torch_distinput.data.formats import framing, sidecar_index
from torch_distinput.data.formats.reader import Part
from torch_distinput.data.formats.tar import Tar
from torch_distinput.errors import ConfigurationError, SourceError
from torch_distinput.testing import check_reader, simulate

RECORDS = 150


def records(seed):
    """Files of each record: some lack ``txt`` or ``json``; two in three have one that is extra."""
    rng = random.Random(seed)
    made = []
    for i in range(RECORDS):
        files = {"jpg": bytes([i]) * rng.randrange(900), "cls": b"%d" % i}
        for name, share in (("txt", 0.5), ("json", 0.1), ("extra", 0.7)):
            if rng.random() < share:
                files[name] = name.encode() * rng.randrange(3)
        names = rng.sample(sorted(files), len(files)) if seed else sorted(files)
        made.append({name: files[name] for name in names})
    return made


def archive_of(made):
    return archive([(f"{i:04d}.{n}", c) for i, files in enumerate(made) for n, c in files.items()])


def rows(made, columns):
    return [
        {"__key__": f"{i:04d}", **{name: files.get(name) for name in columns}}
        for i, files in enumerate(made)
    ]


def read(reader, content):
    """Rows, and the reasons why others are bad."""
    reasons = []
    file = in_memory(content, lambda where, reason: reasons.append((where, reason)))
    chunks = list(reader.read(file, Part()))
    return [
        dict(zip(chunk, row, strict=True))
        for chunk in chunks
        for row in zip(*map(list, chunk.values()), strict=True)
    ], reasons


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("packed", [False, True])
def test_what_records_lack_is_none_and_other_files_are_left_out(
    tmp_path, monkeypatch, seed, packed
):
    monkeypatch.setattr(sidecar_index, "PART_BYTES", 20_000)
    made = records(seed)
    path = tmp_path / "a.tar"
    path.write_bytes(archive_of(made))
    reader = Tar(packed=packed, columns=["cls", "jpg"], optional=["json", "txt"])
    for chunk_bytes in (1 << 20, 3000):
        monkeypatch.setattr(framing, "CHUNK_BYTES", chunk_bytes)
        monkeypatch.setattr(framing, "_SEEK_BYTES", chunk_bytes)
        found = check_reader(reader, str(path), num_records=RECORDS)
        assert rows(made, ["cls", "jpg", "json", "txt"]) == found


@pytest.mark.parametrize("first", [{"jpg": b"0", "txt": b"t"}, {"jpg": b"0"}])
def test_optional_files_are_columns_also_if_the_first_record_lacks_them(first):
    made = [first, {"txt": b"1", "jpg": b""}, {"jpg": b"2"}, {"jpg": b"3", "extra": b"e"}]
    found, reasons = read(Tar(optional=["txt"]), archive_of(made))
    assert rows(made[:3], ["jpg", "txt"]) == found
    assert [list(row) for row in found] == [["__key__", "jpg", "txt"]] * 3
    expected = "expected files jpg, as in the first record of the archive and perhaps txt, each"
    assert expected in str(reasons)


def test_a_record_that_lacks_a_chosen_file_is_bad():
    made = [{"jpg": b"0", "cls": b"0", "x": b""}, {"jpg": b"1"}, {"x": b""}]
    made.append({"cls": b"", "jpg": b"3"})
    found, reasons = read(Tar(columns=["cls", "jpg"]), archive_of(made))
    assert ["0000", "0003"] == [row["__key__"] for row in found]
    assert ["record '0001'", "record '0002'"] == [where for where, _ in reasons]
    assert "expected files cls, jpg, each once, got jpg. readers.Tar(columns=)" in reasons[0][1]


def test_a_file_that_is_there_twice_is_bad_also_if_nobody_wants_it():
    content = archive([("1.a", b"1"), ("1.x", b""), ("1.X", b""), ("2.a", b"2")])
    found, reasons = read(Tar(columns=["a"]), content)
    assert [{"__key__": "2", "a": b"2"}] == found
    assert len(reasons) == 1


def test_a_later_record_with_a_file_twice_is_bad():
    found, reasons = read(Tar(), archive([("1.a", b"1"), ("2.a", b"2"), ("2.a", b"3")]))
    assert [{"__key__": "1", "a": b"1"}] == found
    assert len(reasons) == 1


def test_a_file_called_like_the_keys_is_no_column():
    """It would stand in their place."""
    found, reasons = read(Tar(), archive([("1.a", b"1"), ("1.__key__", b"other")]))
    assert not found
    assert len(reasons) == 1


@pytest.mark.parametrize("strings", ["list", "packed"])
@pytest.mark.parametrize("mapped", [False, True])
def test_a_dataset_delivers_each_record_once(tmp_path, monkeypatch, strings, mapped):
    monkeypatch.setattr(framing, "CHUNK_BYTES", 2000)  # the first chunks have no txt at all
    made = records(0)
    for i in range(RECORDS):
        made[i].pop("txt", None)
        if i > RECORDS // 2:
            made[i]["txt"] = b"t%d" % i
    (tmp_path / "a.tar").write_bytes(archive_of(made[:100]))
    (tmp_path / "b.tar").write_bytes(archive_of(made[100:]))

    def main(strategy):
        reader = tdi.readers.Tar(columns=["cls"], optional=["txt"])
        files = tdi.FileDataset(str(tmp_path / "*.tar"), reader=reader, strings=strings)
        if mapped:
            files = files.map(lambda row: {**row, "txt": row["txt"] or b""})
        found = []
        for batch in strategy.distribute_dataset(files, global_batch_size=16):
            found += zip(map(bytes, batch["cls"]), batch["txt"], strict=True)
        return found

    found = [row for rank in simulate(main, num_workers=2) for row in rank]
    absent = b"" if mapped else None
    expected = [(files["cls"], files.get("txt", absent)) for files in made]
    assert sorted(map(repr, expected)) == sorted(map(repr, found))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"columns": "jpg"}, "columns must be different extensions"),
        ({"columns": []}, "columns must be different extensions"),
        ({"columns": ["JPG"]}, "in lower case"),
        ({"columns": [".jpg"]}, "as in"),
        ({"columns": [b"jpg"]}, "as in"),
        ({"columns": ["a/b"]}, "as in"),
        ({"columns": ["__key__"]}, "as in"),
        ({"columns": {"a", "b"}}, "as in"),
        ({"columns": 5}, "as in"),
        ({"optional": ["a", "a"]}, "optional must be different"),
        ({"columns": ["a", "b"], "optional": ["b"]}, "'b'.* got both"),
    ],
)
def test_names_that_no_file_has_are_refused(arguments, match):
    with pytest.raises(ConfigurationError, match=match):
        Tar(**arguments)


def test_a_reader_is_the_same_for_any_sequence_of_names():
    assert Tar(columns=["a"], optional=[]) == Tar(columns=("a",))


def test_the_error_says_how_to_read_such_archives(tmp_path):
    (tmp_path / "a.tar").write_bytes(archive_of([{"a": b"", "b": b""}, {"a": b""}]))
    files = tdi.FileDataset(str(tmp_path / "a.tar"), reader="tar")
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(files, global_batch_size=2)
    with pytest.raises(SourceError, match=r"0001.*expected files a, b.*got a\. readers\.Tar\(col"):
        list(dataset)


def headers_in(content):
    """Where the headers of files are."""
    with tarfile.open(fileobj=io.BytesIO(content)) as opened:
        return [member.offset for member in opened]


def read_in_parts(reader, content):
    reasons = []
    file = in_memory(content, lambda where, _: reasons.append(where))
    rows = [
        dict(zip(chunk, row, strict=True))
        for part in reader.parts(file)
        for chunk in reader.read(file, part)
        for row in zip(*chunk.values(), strict=True)
    ]
    return rows, reasons


@pytest.mark.parametrize("part_bytes", [1 << 20, 3000, 1])
def test_what_is_damaged_is_not_taken_for_what_a_record_lacks(monkeypatch, part_bytes):
    """The record that it is of is left out; a neighbour stays, unless it could be its file."""
    monkeypatch.setattr(sidecar_index, "PART_BYTES", part_bytes)
    made = [dict.fromkeys(("jpg", "txt")[:1 + n % 2], b"x" * n) for n in range(12)]
    reader = Tar(columns=["jpg"], optional=["txt"])
    expected, content = rows(made, ["jpg", "txt"]), archive_of(made)
    owners = [number for number, files in enumerate(made) for _ in files]
    for at, owner in zip(headers_in(content), owners, strict=True):
        damaged = content[: at + 148] + b"7654321" + content[at + 155 :]
        found, reasons = read_in_parts(reader, damaged)
        beside = {owner - 1, owner, owner + 1}
        assert [row for n, row in enumerate(expected) if n not in beside] == [
            row for row in found if int(row["__key__"]) not in beside
        ]
        assert all(row in expected for row in found)
        assert expected[owner] not in found
        assert len(found) + len(reasons) >= len(expected)


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_SPARSE, tarfile.LNKTYPE, tarfile.SYMTYPE])
@pytest.mark.parametrize("part_bytes", [1 << 20, 1])
def test_an_optional_file_without_its_content_is_bad(monkeypatch, kind, part_bytes):
    """Only the record whose name it has; a link that nobody wants is passed over."""
    monkeypatch.setattr(sidecar_index, "PART_BYTES", part_bytes)
    links = []
    for name in ("1.txt", "1.log"):
        links.append(tarfile.TarInfo(name))
        links[-1].type, links[-1].linkname = kind, "0.txt"
    wanted, unwanted = links
    if kind == tarfile.GNUTYPE_SPARSE:
        unwanted = ("1.log", b"")
    pictures = [(f"{n}.jpg", b"%d" % n) for n in range(3)]
    reader = Tar(columns=["jpg"], optional=["txt"])
    found, reasons = read_in_parts(reader, archive([*pictures[:2], unwanted, pictures[2]]))
    assert (["0", "1", "2"], []) == ([row["__key__"] for row in found], reasons)
    found, reasons = read_in_parts(reader, archive([*pictures[:2], wanted, pictures[2]]))
    assert ["0", "2"] == [row["__key__"] for row in found]
    assert ["member at byte 2048", "record '1'"] == reasons
    found, reasons = read_in_parts(reader, archive([pictures[0], wanted, *pictures[1:]]))
    assert ["0", "2"] == [row["__key__"] for row in found]
    assert ["member at byte 1024", "record '1'"] == reasons


def test_the_last_record_of_an_archive_that_was_cut_off_between_its_files():
    content = archive([("0.jpg", b"0"), ("1.jpg", b"1"), ("1.txt", b"one")])
    reader = Tar(columns=["jpg"], optional=["txt"])
    found, reasons = read_in_parts(reader, content[:2048])
    assert ["0"] == [row["__key__"] for row in found]
    assert ["record '1'", "the end"] == reasons


@pytest.mark.parametrize("size", [10, 2 << 20])
def test_a_file_without_a_record_behind_what_is_damaged(size):
    """The record behind it is judged, though the window that follows the damage has none."""
    files = [("0.jpg", b"0"), ("1.txt", b"one"), ("README", bytes(size)), ("1.jpg", b"1")]
    content = archive([*files, ("2.jpg", b"2")])
    damaged = content[: 1024 + 148] + b"7654321" + content[1024 + 155 :]
    found, reasons = read_in_parts(Tar(columns=["jpg"], optional=["txt"]), damaged)
    assert ["2"] == [row["__key__"] for row in found]
    assert ["member at byte 1024", "record '0'", "record '1'"] == reasons


@pytest.mark.parametrize("names", [["txt", "cls"], ["cls", "txt"]])
def test_a_kept_index_of_a_reader_without_optional_files(monkeypatch, tmp_path, names):
    """It may cut right behind a link in the place of one, of which the next part knows nothing."""
    monkeypatch.setattr(sidecar_index, "PART_BYTES", 1)
    link = tarfile.TarInfo("1.txt")
    link.type, link.linkname = tarfile.SYMTYPE, "0.txt"
    pictures = [(f"{n}.jpg", b"%d" % n) for n in range(3)]
    (tmp_path / "a.tar").write_bytes(archive([pictures[0], link, *pictures[1:]]))

    def keys(reader):
        files = tdi.FileDataset(str(tmp_path / "a.tar"), reader=reader, on_error="skip")
        dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(files, global_batch_size=1)
        return [key for batch in dataset for key in batch["__key__"]]

    assert ["0", "1", "2"] == keys(Tar(columns=["jpg"], index="beside"))
    assert ["0", "2"] == keys(Tar(columns=["jpg"], index="beside", optional=names))
    assert ["0", "1", "2"] == keys(Tar(columns=["jpg"], index="beside"))
