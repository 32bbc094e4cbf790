"""What is odd in files of a format: packed, it is what it is in lists."""

from __future__ import annotations

import io
import tarfile

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import torch_distinput as tdi
from tests.data.test_packed_files import outcome
from tests.formats import example
from tests.tfrecords import frame
from torch_distinput import readers
from torch_distinput.data.formats import json_rows, jsonl

folders = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def outcomes(path, reader, *, on_error="raise", size=4):
    """All that is read of a file as lists and packed, or the error."""

    def make(strings):
        files = tdi.FileDataset(str(path), reader=reader, strings=strings, on_error=on_error)
        return lambda strategy: strategy.distribute_dataset(files, global_batch_size=size)

    return outcome(make("list")), outcome(make("packed"))


LINES = [
    '{"a": 1, "t": "x"}', '{"a": 2, "t": "é\\n"}', '{"a": 3, "t": null}', '{"a": 4}',
    "", "   ", "\t", "[1]", "nonsense", '{"a": 1}{"a": 2}', '{"a": "x}', '{y"}', '{"a": {}',
    '{"t": "2024-01-01"}', '{"a": 1, "t": {"u": "v", "w": [1]}}', '{"t": ["p", "q"]}', "{}",
    ' {"a": 5, "t": "y"}', '{"a": 6, "t": "y"} ', '{"a": 1, "t": "\\udcff"}',
    '{"a": ' + "[" * 120 + "]" * 120 + "}", '{"a": 1, "t": "' + "[" * 300 + '"}',
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("quick", [True, False], ids=["orjson", "python"])
@folders
@given(
    lines=st.lists(st.sampled_from(LINES), max_size=5),
    end=st.sampled_from(["", "\n", "\r\n"]),
    on_error=st.sampled_from(["raise", "skip"]),
    columns=st.sampled_from([None, {"t": str}, {"a": torch.float32, "t": str}]),
)
def test_json_lines(tmp_path_factory, quick, lines, end, on_error, columns):
    """Blank, deep, broken, of several shapes, with and without orjson."""
    path = tmp_path_factory.getbasetemp() / "lines.jsonl"
    path.write_bytes(((end or "\n").join(lines) + end).encode("utf-8", "surrogateescape"))
    with pytest.MonkeyPatch.context() as patches:
        if not quick:
            patches.setattr(json_rows, "_orjson_loads", lambda: None)
        lists, packed = outcomes(path, readers.JSONL(columns=columns), on_error=on_error)
        assert lists == packed


def test_json_text_that_utf_8_lacks_is_bad(tmp_path):
    """Half of a pair of surrogates: a list may hold it, bytes cannot."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"t": "\\ud800"}\n{"t": "b"}\n')
    lists, packed = outcomes(path, "jsonl")
    assert ["\ud800", "b"] == lists[0][0][0]["t"]
    assert "record 0: Expected text that UTF-8 can express, got '\\ud800'" in packed


def test_objects_over_several_lines_are_bad(tmp_path):
    """Also where another line has two, so that there are as many as lines."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"a":\n{"b": 1}}\n{"a": {"b": 2}}{"a": {"b": 3}}\n')
    lists, packed = outcomes(path, "jsonl")
    assert "record 0: Expected a JSON object in each line" in lists
    assert lists == packed


@pytest.mark.parametrize("strings", ["list", "packed"])
def test_text_that_is_null_is_not_to_blame_for_others(tmp_path, strings):
    """A record that lacks a number is left out, and no record beside it."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1, "t": "x"}\n{"a": 2, "t": null}\n{"t": "y"}\n')
    files = tdi.FileDataset(str(path), reader="jsonl", strings=strings, on_error="skip")
    read, skipped = outcome(lambda s: s.distribute_dataset(files, global_batch_size=4))
    assert [({"a": [1, 2], "t": ["x", None]}, [[0, 0], [0, 1]])] == read
    assert {str(path): 1} == skipped


def test_packed_lines_keep_their_ends_until_they_are_parsed():
    """Else a string could go on in the next line, and two objects stand for two lines."""
    lines = jsonl._pack_lines(b'{"a": "x}\n\n{y"}\r\n{}{}')
    assert [b'{"a": "x}\n', b'{y"}\n', b"{}{}\n"] == lines.to_bytes()


@pytest.mark.slow
@folders
@given(
    rows=st.lists(
        st.tuples(st.text('a,é"\r\n ', max_size=4), st.sampled_from(["1", "x", ""])), max_size=5
    ),
    on_error=st.sampled_from(["raise", "skip"]),
)
def test_csv(tmp_path_factory, rows, on_error):
    path = tmp_path_factory.getbasetemp() / "rows.csv"
    quoted = ('"' + text.replace('"', '""') + f'",{number}' for text, number in rows)
    path.write_bytes("\n".join(["t,n", *quoted]).encode())
    for columns in (None, {"t": str, "n": torch.int64}):
        lists, packed = outcomes(path, readers.CSV(columns=columns), on_error=on_error)
        assert lists == packed


FEATURES = {
    "text": {"t": str},
    "default": {"t": (str, (), "none"), "id": torch.int64},
    "bytes": {"t": bytes, "id": (torch.int64, ())},
    "shaped": {"t": (bytes, (1,))},
    "ragged": {"t": (str, ...)},
    "raw": None,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FEATURES)
@folders
@given(
    texts=st.lists(
        st.sampled_from([b"", b"a", "é".encode(), b"\xff", b"x" * 200, None]), min_size=1,
        max_size=6,
    ),
    on_error=st.sampled_from(["raise", "skip"]),
)  # fmt: skip
def test_tfrecord(tmp_path_factory, name, texts, on_error):
    """Text that is none, features that are missing, and records as they are."""
    path = tmp_path_factory.getbasetemp() / "a.tfrecord"
    rows = ({"id": n, **({} if t is None else {"t": t})} for n, t in enumerate(texts))
    path.write_bytes(b"".join(frame(example(row)) for row in rows))
    reader = readers.TFRecord(FEATURES[name])
    lists, packed = outcomes(path, reader, on_error=on_error)
    assert lists == packed


@pytest.mark.parametrize("sizes", [[3, 0, 70_000], [3 << 20, 1, 2 << 20]])
def test_tar(tmp_path, sizes):
    """Small members, empty ones, and some larger than a chunk."""
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        for number, size in enumerate(sizes):
            for suffix, content in (("bin", bytes([number]) * size), ("cls", b"7")):
                info = tarfile.TarInfo(f"{number}.{suffix}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    lists, packed = outcomes(path, "tar", size=2)
    assert lists == packed
    assert sizes == [len(row) for step, _ in packed[0] for row in step["bin"]]


def test_readers_of_your_own_pack_where_they_say_so(tmp_path):
    class Words(readers.Reader):
        """Words of a file."""

        def read(self, file, part):
            with file.open() as opened:
                yield opened.read().decode().split()

    class PackedWords(readers.Reader):
        """The same, packed."""

        def read(self, file, part):
            for words in Words().read(file, part):
                yield tdi.PackedStrings.from_list(words)

    class EitherWords(Words):
        """Whichever is asked for."""

        def with_packed_strings(self):
            return PackedWords()

    path = tmp_path / "words"
    path.write_text("a b c")
    with pytest.raises(tdi.ConfigurationError, match="can pack strings.*got Words"):
        tdi.FileDataset(str(path), reader=Words(), strings="packed")
    lists, packed = outcomes(path, EitherWords())
    assert lists == packed
