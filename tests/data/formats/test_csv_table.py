"""Tables as text."""

from __future__ import annotations

import csv
import gzip
import io
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torch_distinput import SourceError
from torch_distinput.data.batch.rows import concat_rows
from torch_distinput.data.formats import csv_table
from torch_distinput.data.formats.csv_table import CSV
from torch_distinput.data.formats.reader import Part
from torch_distinput.data.storage import filesystem
from torch_distinput.data.storage.retries import Retries
from torch_distinput.testing import check_reader


def read(content, **options):
    """All rows together (None: there are none), and what was reported."""
    reported = []
    content = content.encode() if isinstance(content, str) else content
    (info,) = filesystem.list_files([__file__], {})
    bad = lambda where, reason: reported.append((where, str(reason)))
    file = filesystem.open_file(info, {}, bad=bad, retries=Retries())
    file = replace(file, size=len(content), open=lambda: io.BytesIO(content))
    chunks = list(CSV(**options).read(file, Part()))
    return (concat_rows(chunks) if chunks else None), reported


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_keeps_the_promises(tmp_path, monkeypatch, suffix):
    rows = [(i, i / 8, f'text "{i}",\n' + "ä" * (i % 50)) for i in range(2000)]
    out = io.StringIO()
    csv.writer(out).writerows([("id", "x", "text"), *rows])
    content = out.getvalue().encode()
    path = tmp_path / f"a.csv{suffix}"
    path.write_bytes(gzip.compress(content) if suffix else content)
    for chunk_bytes in (1 << 20, 5003):
        monkeypatch.setattr(csv_table, "CHUNK_BYTES", chunk_bytes)
        reader = CSV({"id": torch.int64, "x": torch.float64, "text": str})
        got = check_reader(reader, str(path), num_records=2000)
        assert [(row["id"].item(), row["x"].item(), row["text"]) for row in got] == rows


def test_types_are_inferred():
    batch, reported = read("a,b,c,d,e\n1,1.5,x,9223372036854775807.0,1_0\n-2,3,,1e3,2\n")
    assert batch["a"].tolist() == [1, -2]
    assert batch["a"].dtype == torch.int64
    assert batch["b"].tolist() == [1.5, 3.0]
    assert batch["b"].dtype == torch.float64
    assert batch["c"] == ["x", ""]
    assert batch["d"].tolist() == [2.0**63, 1000.0]
    assert batch["e"] == ["1_0", "2"]
    assert reported == []


@pytest.mark.parametrize(
    "large",
    [f"{2**63}", f"{-(2**63) - 1}", f" +0{2**64}", "7" * 5000, "0" * 5000 + f"{2**63}"],
    ids=["2**63", "negative", "2**64", "long", "long zeros"],
)
@pytest.mark.parametrize("other", ["9007199254740993", "1.5"])
def test_integers_that_int64_does_not_hold_are_text(large, other):
    """As float64 they would be rounded, and two of them might become equal."""
    batch, reported = read(f"id,x\n{large},1\n{other},2\n")
    assert batch["id"] == [large, other]
    assert reported == []
    batch, _ = read(f"id\n{2**63}\n", columns={"id": torch.float64})
    assert batch["id"].tolist() == [2.0**63]


def test_the_beginning_of_a_file_decides(monkeypatch):
    monkeypatch.setattr(csv_table, "CHUNK_BYTES", 6)
    batch, reported = read("a,b\n1,x\n2,y\n3.5,z\n4,w\n,v\n")
    assert batch["a"].tolist() == [1, 2, 4]
    assert batch["a"].dtype == torch.int64
    assert batch["b"] == ["x", "y", "w"]
    assert [where for where, _ in reported] == ["line 4", "line 6"]
    expected = "expected torch.int64 in column 'a', got '3.5'. Fix the file, or give another type"
    assert reported[0][1].startswith(expected)


def test_columns_choose_and_fix_types():
    columns = {"c": torch.float32, "a": str, "d": torch.bool, "b": torch.uint8}
    batch, reported = read(
        "a,b,c,d,e\n1,2,3,true,\n4,5,6,0,\n7,256,8,1,\n7,1,8,2,\n", columns=columns
    )
    assert list(batch) == list("cadb")
    assert batch["c"].dtype == torch.float32
    assert batch["a"] == ["1", "4"]
    assert batch["d"].tolist() == [True, False]
    assert batch["b"].tolist() == [2, 5]
    assert [where for where, _ in reported] == ["line 4", "line 5"]
    assert list(read("a,b\n1,2\n", columns=["b"])[0]) == ["b"]


def test_no_number_becomes_infinite():
    columns = {"a": torch.float16, "b": torch.float32}
    batch, reported = read("a,b\n1,inf\n70000,1\n2,-1e39\n-inf,3\n", columns=columns)
    assert batch["a"].tolist() == [1, -math.inf]
    assert batch["b"].tolist() == [math.inf, 3]
    assert [where for where, _ in reported] == ["line 3", "line 4"]
    assert reported[0][1].startswith("expected torch.float16 in column 'a', got '70000'.")
    batch, reported = read("a\n1.5\n-1e999\n1E400\n-Infinity\n", columns={"a": torch.float64})
    assert batch["a"].tolist() == [1.5, -math.inf]
    assert [where for where, _ in reported] == ["line 3", "line 4"]
    assert read("a\n1.5\n1e999\n")[0]["a"] == ["1.5", "1e999"]  # as long integers, whole


def test_names_without_a_header():
    batch, _ = read("1;x\n2;y\n", header=False, delimiter=";")
    assert batch["0"].tolist() == [1, 2]
    assert batch["1"] == ["x", "y"]
    batch, _ = read("1,x\n2,y\n", header=False, columns=["n", "t"])
    assert batch["n"].tolist() == [1, 2]
    batch, reported = read("1,x\n2,y\n", header=False, columns={"n": torch.float32})
    assert batch is None
    assert reported[0] == ("line 1", "expected 1 fields, got 2")


def test_quotes_line_ends_and_a_byte_order_mark():
    batch, reported = read('\ufeffa,b\r\n"x ""y"", z","1\n2"\r\n\r\nu,v')
    assert batch == {"a": ['x "y", z', "u"], "b": ["1\n2", "v"]}
    assert reported == []


def test_bad_rows_have_their_line():
    content = b'a,b\n1,x\n2\n3,"multi\nline"\n4,y,z\n5,\xff\n6,"q"r\n7,w\n'
    batch, reported = read(content)
    assert batch["a"].tolist() == [1, 3, 7]
    assert batch["b"] == ["x", "multi\nline", "w"]
    # The shape of all rows comes first, then what is in their fields.
    assert [where for where, _ in reported] == ["line 3", "line 6", "line 8", "line 7"]
    assert reported[0][1] == "expected 2 fields, got 1"
    assert "UTF-8 text in column 'b'" in reported[3][1]


@pytest.mark.parametrize("end", ["", '"\n'])
def test_nothing_follows_a_field_that_is_too_large(end):
    """Its text is no rows, nor is what may be text of it."""
    batch, reported = read('a\n1\n"2\n' + "3\n" * 200_000 + end + "4\n")
    assert batch["a"].tolist() == [1]
    assert len(reported) == 1
    assert "field_size_limit" in reported[0][1]


def test_a_chunk_of_bad_rows_is_not_the_end(monkeypatch):
    monkeypatch.setattr(csv_table, "CHUNK_BYTES", 4)
    batch, reported = read("a\n" + "1,2\n" * 50 + "3\n" + "x\n" * 50 + "4\n")
    assert batch["a"].tolist() == [3, 4]
    assert len(reported) == 100


def test_files_without_rows():
    assert read("") == (None, [])
    assert read("a,b\n") == (None, [])
    assert read("\n\n") == (None, [])


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        ("a,a,b\n1,2,3\n", {}, r"with \['a'\] more than once"),
        ("a;b\n1;2\n", {"columns": ["b"]}, r"expected columns \['b'\], each once, got \['a;b'\]\."),
    ],
)
def test_a_wrong_header_is_an_error(content, options, words):
    with pytest.raises(SourceError, match=words):
        read(content, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"columns": "a"},
        {"columns": {"a": int}},
        {"columns": {"a": (torch.int64, ...)}},
        {"delimiter": ""},
    ],
)
def test_wrong_options_are_refused(options):
    with pytest.raises(ValueError, match="Expected"):
        CSV(**options)


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)


@given(
    st.lists(
        st.tuples(TEXT, st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False)), max_size=8
    )
)
def test_what_is_written_is_read(rows):
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL).writerows([("a", "b", "c"), *rows])
    columns = {"a": str, "b": torch.int64, "c": torch.float64}
    batch, reported = read(out.getvalue(), columns=columns)
    assert reported == []
    if rows:
        got = list(zip(batch["a"], batch["b"].tolist(), batch["c"].tolist(), strict=True))
        assert got == rows


def test_a_column_that_is_text_for_an_empty_field_alone_is_told(caplog):
    csv_table._told.clear()
    for _ in range(2):
        batch, _ = read("a,b,c,d\n1,,x,1\n, ,,2\n3,,,3\n")
        assert batch["a"] == ["1", "", "3"]
    (told,) = caplog.messages  # not b and c, which hold no numbers
    assert "line 3: column 'a' has an empty field" in told
    assert "columns={'a': str}" in told


def test_text_that_was_asked_for_is_not_told(caplog):
    batch, _ = read('a\n1\n""\n', columns={"a": str})
    assert batch["a"] == ["1", ""]
    assert not caplog.messages


def test_zeros_that_integers_do_not_keep_are_told(caplog):
    csv_table._told.clear()
    for _ in range(2):
        batch, _ = read("zip,n,share,name\n90210,0,00.5,007x\n 01234,-1,0.25,01\n")
        assert batch["zip"].tolist() == [90210, 1234]
    (told,) = caplog.messages  # of no other column: one zero is a number, and texts keep theirs
    assert "line 3: column 'zip' becomes torch.int64" in told
    assert "in front of '01234'" in told
    assert "columns={'zip': str}" in told


def test_zeros_of_codes_among_floats_are_told(caplog):
    csv_table._told.clear()
    batch, _ = read("zip\n01234\n0.5\n")
    assert batch["zip"].tolist() == [1234, 0.5]
    assert "line 2: column 'zip' becomes torch.float64" in caplog.text


@pytest.mark.parametrize("number", [2**53 + 1, -(2**63), 2**63, 10**30])
def test_whole_numbers_that_floats_do_not_hold_are_text(number, caplog):
    """As ids of 64 bits are: among floats some would become equal."""
    csv_table._told.clear()
    holds = number == -(2**63)
    batch, _ = read(f"a\n{number}\n0.5\n")
    assert batch["a"] == [str(number), "0.5"] if not holds else batch["a"].tolist() == [number, 0.5]
    assert holds == (f"holds {number}" not in caplog.text)


def test_a_later_number_that_floats_do_not_hold_is_bad(monkeypatch):
    monkeypatch.setattr(csv_table, "CHUNK_BYTES", 6)
    batch, reported = read(f"a\n0.5\n1.5\n{2**53 + 1}\n{2**53}\n")
    assert batch["a"].tolist() == [0.5, 1.5, 2**53]
    assert [("line 4", "expected torch.float64 in column 'a'")] == [
        (where, reason.partition(",")[0]) for where, reason in reported
    ]


@pytest.mark.parametrize("dtype", [str, torch.int64])
def test_zeros_under_a_type_that_was_given_are_not_told(caplog, dtype):
    read("zip\n01234\n", columns={"zip": dtype})
    assert not caplog.messages


@pytest.mark.parametrize("header", [True, False])
def test_a_first_line_of_numbers_that_is_taken_for_names_is_told(caplog, header):
    csv_table._told.clear()
    for _ in range(2):
        read("1,2.5\n3,4\n", header=header)
    read("a,2\n3,4\n")
    assert header == len(caplog.messages)
    assert all("has numbers: 1, 2.5." in told for told in caplog.messages)
