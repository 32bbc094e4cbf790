"""Lines of JSON as columns, parsed by orjson or by Python."""

from __future__ import annotations

import gzip
import json

import pytest
import torch

import torch_distinput as tdi
from torch_distinput.data.formats import column_types, json_rows, text
from torch_distinput.data.formats.jsonl import JSONL
from torch_distinput.testing import check_reader, simulate


@pytest.fixture(params=["orjson", "python"])
def parser(request, monkeypatch):
    if request.param == "python":
        monkeypatch.setattr(json_rows, "_orjson_loads", lambda: None)
    return request.param


def lines(*records):
    return [json.dumps(record).encode() for record in records]


def packed(encoded):
    """Lines as they are read: with their ends."""
    return tdi.PackedStrings.from_list([line + b"\n" for line in encoded], bytes)


def decode(*records, columns=None):
    """Records are objects, or lines."""
    encoded = [r if isinstance(r, bytes) else json.dumps(r).encode() for r in records]
    return JSONL(columns).decode(packed(encoded))


def record(i):
    return {
        "id": i,
        "x": i / 8,
        "yes": i % 2 == 0,
        "text": f"täxt\n{i}",
        "day": f"2020-01-{i % 28 + 1:02d}",
        "maybe": None if i % 3 else "here",
        "in": {"a": i, "b": {"c": str(i)}},
        "pair": [i, -i],
        "tags": ["t"] * (i % 3),
        "mixed": [None, 1, "a"][i % 3],
    }


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "end"), [("", "\n"), (".gz", "\r\n"), ("", "\n\n \n")])
def test_keeps_the_promises(tmp_path, monkeypatch, parser, suffix, end):
    count = 30
    keys = ("id", "x", "yes", "text", "day", "in", "pair")
    rows = [{key: record(i)[key] for key in keys} for i in range(count)]
    content = "".join(json.dumps(row) + end for row in rows).encode()
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(gzip.compress(content) if suffix else content)
    for part_bytes, chunk_bytes in ((4 << 20, 1 << 20), (2003, 777)):
        monkeypatch.setattr(text, "_PART_BYTES", part_bytes)
        monkeypatch.setattr(text, "CHUNK_BYTES", chunk_bytes)
        got = check_reader(JSONL(), str(path), num_records=count)
        assert [row["text"] for row in got] == [row["text"] for row in rows]
        assert [row["in"]["b"]["c"] for row in got] == [str(i) for i in range(count)]
        assert [row["pair"].tolist() for row in got] == [[i, -i] for i in range(count)]


def test_each_kind_of_value_has_its_column(parser):
    batch = decode(*map(record, range(7)))
    assert torch.equal(batch["id"], torch.arange(7))
    assert torch.equal(batch["x"], torch.arange(7, dtype=torch.float64) / 8)
    assert batch["yes"].tolist() == [i % 2 == 0 for i in range(7)]
    assert batch["text"][3] == "täxt\n3"
    assert batch["day"][:2] == ["2020-01-01", "2020-01-02"]
    assert batch["maybe"] == ["here", None, None, "here", None, None, "here"]
    assert torch.equal(batch["in"]["a"], torch.arange(7))
    assert batch["in"]["b"]["c"] == [str(i) for i in range(7)]
    assert batch["pair"].tolist() == [[i, -i] for i in range(7)]
    assert batch["tags"].dtype == object
    assert batch["tags"].tolist() == [["t"] * (i % 3) for i in range(7)]
    assert batch["mixed"].tolist() == [None, 1, "a", None, 1, "a", None]


def test_a_column_of_several_types_is_told_once(parser, caplog):
    """Other rows, on another rank, may be of one type."""
    column_types._say_mixed.cache_clear()
    for _ in range(2):
        assert decode({"n": 1, "s": "a"}, {"n": "b", "s": "c"})["n"].dtype == object
    (told,) = caplog.messages
    assert "column 'n' holds values of several types (int, str)" in told


@pytest.mark.parametrize("counts", [(0, 1, 2), (2, 2, 2), (1,), (0, 0), ()])
def test_lists_of_any_length(parser, counts):
    """Jagged where that was asked for, and only there: never by what a batch happens to hold."""
    rows = [{"some": [0.5] * count} for count in counts]
    batch = decode(*rows, columns={"some": (torch.float32, ...)})
    assert batch["some"].is_nested
    assert [row["some"] for row in rows] == [row.tolist() for row in batch["some"].unbind()]
    assert batch["some"].dtype == torch.float32
    if len(set(counts)) > 1:
        with pytest.raises(ValueError, match=r"got 0 to 2 numbers.*\(torch.float64, ...\)"):
            decode(*rows)
    with pytest.raises(ValueError, match="'some' that fit torch.float32, got 1"):
        decode({"some": 1}, columns={"some": (torch.float32, ...)})


def test_columns_choose_and_fix_types(parser):
    columns = {"x": torch.float32, "id": torch.int16, "text": str, "some": torch.float32}
    batch = decode(
        {"x": 1, "y": 0, "id": 2, "some": [1]}, {"x": 2, "id": 3, "some": [2]}, columns=columns
    )
    assert list(batch) == ["x", "id", "text", "some"]
    assert batch["x"].dtype == torch.float32
    assert batch["id"].dtype == torch.int16
    assert batch["text"] == [None, None]
    assert batch["some"].tolist() == [[1.0], [2.0]]
    assert batch["some"].dtype == torch.float32
    assert list(decode({"x": 1, "y": 0}, columns=["y"])) == ["y"]
    assert decode(columns={"x": torch.int8})["x"].dtype == torch.int8
    times = decode({"t": "2020-01-01"}, {"t": "2020-01-02"}, columns={"t": str})
    assert times["t"] == ["2020-01-01", "2020-01-02"]


@pytest.mark.parametrize(
    ("records", "columns", "match"),
    [
        ([{"a": 1}, {"a": None}], None, "column 'a' in every record.* missing in 1 of 2"),
        ([{"a": 1}, {}], None, "column 'a' in every record"),
        ([{"a": {"b": 1}}, {"a": {}}], None, "column 'a.b' in every record"),
        ([{"a": {"b": 1}}, {"a": None}], None, "column 'a' in every record"),
        ([{"a": [1]}, {"a": None}], None, "column 'a' in every record"),
        (
            [{"a": 1}, {"a": 2**63}],
            None,
            "column 'a' that fit torch.int64, got 9223372036854775808",
        ),
        ([{"a": 1.5}, {"a": 10**400}], None, "an integer of 1329 bits"),
        ([{"a": 1}, {"a": 1.5}], {"a": torch.int64}, "column 'a' that fit torch.int64, got 1.5"),
        ([{"a": 1}, {"a": 300}], {"a": torch.uint8}, "fit torch.uint8, got 300"),
        ([{"a": 1.0}, {"a": True}], {"a": torch.float32}, "fit torch.float32, got True"),
        ([{"a": 1}, {"a": 70_000}], {"a": torch.float16}, r"fit torch.float16, got 70000"),
        ([{"a": 1}, {"a": -1e39}], {"a": torch.float32}, r"fit torch.float32, got -1e\+39"),
        ([{"a": [1, 1e39]}], {"a": (torch.bfloat16, ...)}, r"fit torch.bfloat16, got 1e\+39"),
        ([b'{"a": 1.5}', b'{"a": -1e999}'], None, "that fit float64, got -1e999"),
        ([b'{"a": [1.0, 2' + b"0" * 309 + b".0]}"], None, "that fit float64, got 2000"),
        ([{"a": 1}], {"a": torch.bool}, "fit torch.bool, got 1"),
        ([{"a": 1}], {"a": str}, "fit str, got 1"),
        ([{"a": 1}, {"a": [2]}], {"a": torch.int64}, r"fit torch.int64, got \[2\]"),
        ([{"a": 0.5}], {"a": (torch.int64, ...)}, "fit torch.int64, got 0.5"),
        ([{"a": "1"}], {"a": torch.int64}, "fit torch.int64, got '1'"),
        ([{"a": 1}, {"a": 2}], ["b"], r"Expected column 'b'.* there are \['a'\]"),
        ([{}, {}], None, "objects with something in them"),
        ([b'{"a": 1}', b"[1]"], None, r"JSON object in each line, got b'\[1\]', a list"),
        ([b'{"a": 1}', b'{"a": 1} {"a": 2}'], None, "JSON object in each line"),
        ([b'{"a": 1}', b'{"a": 1}{"a": 2}'], None, "JSON object in each line"),
        ([b'{"a": "\xff"}'], None, "JSON object in each line.*utf-8"),
        ([b'{"a": 1', b'}{"a": 1}'], None, "JSON object in each line"),
    ],
)
def test_what_does_not_fit_is_an_error(parser, records, columns, match):
    with pytest.raises(ValueError, match=match):
        decode(*records, columns=columns)


@pytest.mark.parametrize("columns", ["a", {"a": int}, {"a": torch.complex64}, [1], 3])
def test_wrong_columns_are_refused(columns):
    with pytest.raises(ValueError, match="Expected"):
        JSONL(columns)


def test_nulls_in_lists_stay(parser):
    assert decode({"a": [None, 0]})["a"].tolist() == [[None, 0]]
    assert decode({"a": [None, "x"]}, {"a": ["y"]})["a"].tolist() == [[None, "x"], ["y"]]


def test_the_last_of_two_equal_keys_counts(parser):
    assert decode(b'{"a": 1, "b": 5, "a": 2}')["a"].tolist() == [2]


def test_names_are_those_of_all_records(parser):
    """In the order in which they come, also where only a later record has one."""
    batch = decode({"a": "p"}, {"b": "q", "a": "r"}, {"c": "s"})
    assert list(batch) == ["a", "b", "c"]
    assert list(batch.values()) == [["p", "r", None], [None, "q", None], [None, None, "s"]]
    assert decode({"a": "p"}, {"a": "r", "b": "q"}) == {"a": ["p", "r"], "b": [None, "q"]}


def test_columns_of_numbers_are_not_rounded_on_the_way(parser):
    """An integer of 65 bits among floats, and one that its type would take as a float."""
    assert decode({"a": 2**64}, {"a": 0.5})["a"].tolist() == [2.0**64, 0.5]
    assert decode({"a": 2**64}, columns={"a": torch.bfloat16})["a"].tolist() == [2.0**64]
    assert decode({"a": [2**64]}, columns={"a": (torch.float32, ...)})["a"][0].tolist() == [2.0**64]
    with pytest.raises(ValueError, match="int64, got 18446744073709551616"):
        decode({"a": [2**64]}, columns={"a": (torch.int64, ...)})
    with pytest.raises(ValueError, match="int64, got -9223372036854775809"):
        decode({"a": -(2**63) - 1})


@pytest.mark.parametrize("num_workers", [1, 3])
@pytest.mark.parametrize("policy", ["data", "file"])
def test_lists_of_text_that_are_mostly_empty(tmp_path, num_workers, policy):
    """A part in which all are empty is of the kind of the others; so is one with null."""
    tags = [["a", "b"], [], None, [], ["c"], *[[]] * 60]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps({'tags': t})}\n" for t in tags))

    def play(strategy):
        files = tdi.FileDataset(
            str(tmp_path / "a.jsonl"), reader="jsonl", split_files=policy == "file"
        )
        dataset = strategy.distribute_dataset(
            files,
            global_batch_size=2 * num_workers,
            options=tdi.InputOptions(auto_shard_policy=policy),
        )
        return [(batch["tags"].dtype, value) for batch in dataset for value in batch["tags"]]

    found = [pair for part in simulate(play, num_workers=num_workers) for pair in part]
    assert {"object"} == {str(dtype) for dtype, _ in found}
    assert sorted(map(str, tags)) == sorted(str(value) for _, value in found)


DEEP = {"lists": ("[", "]"), "objects": ('{"b":', "}"), "both": ('[{"b":', "}]")}


@pytest.mark.parametrize("depth", [500, 50_000])
@pytest.mark.parametrize("kind", DEEP)
def test_deep_values_are_bad_records(tmp_path, parser, kind, depth):
    """No end of the process, and no error without a place; brackets in text do not count."""
    del parser
    left, right = DEEP[kind]
    path = tmp_path / "a.jsonl"
    good = '{"a": "' + "[" * 500 + '\\"{"}\n{"a": [' + "[],{}," * 200 + "[]]}\n"
    path.write_text(good + '{"a": ' + left * depth + "1" + right * depth + "}\n")
    dataset = tdi.FileDataset(path, reader="jsonl")
    with pytest.raises(tdi.SourceError, match=r"a\.jsonl, record .*at most 100 deep"):
        list(tdi.OneDeviceStrategy("cpu").distribute_dataset(dataset, global_batch_size=1))
    assert 2 == len(_skipping(path))


@pytest.mark.parametrize("kind", ["lists", "objects"])
def test_values_of_100_levels_are_read(tmp_path, kind):
    left, right = DEEP[kind]
    path = tmp_path / "a.jsonl"
    path.write_text(('{"a": ' + left * 99 + "1" + right * 99 + "}\n") * 3)
    assert 3 == len(_skipping(path))


def _skipping(path):
    dataset = tdi.FileDataset(path, reader="jsonl", on_error="skip")
    return list(tdi.OneDeviceStrategy("cpu").distribute_dataset(dataset, global_batch_size=1))


def test_lines_in_a_list():
    """As readers that are made of this one may yield them, with their ends or without."""
    lines = [b'{"a": 1}', b'{"a": 2}\n']
    assert [1, 2] == JSONL().decode(lines)["a"].tolist()
