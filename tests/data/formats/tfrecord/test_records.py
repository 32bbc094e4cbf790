"""TFRecord frames, and the examples in them."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import LONG
from tests.data.formats.tfrecord.examples import (
    bytes_list,
    decode,
    example,
    float_list,
    int_list,
    read,
)
from tests.tfrecords import frame, message
from torch_distinput import ConfigurationError
from torch_distinput.data.formats import framing as framed
from torch_distinput.data.formats import sidecar_index as kept_index
from torch_distinput.data.formats.tfrecord import records
from torch_distinput.data.formats.tfrecord.records import TFRecord
from torch_distinput.packed_strings import PackedStrings
from torch_distinput.testing import check_reader

PAYLOADS = [bytes([i % 251]) * (i * 7 % 1500) for i in range(1000 if LONG else 400)]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_keeps_the_promises(tmp_path, monkeypatch, suffix):
    content = b"".join(map(frame, PAYLOADS))
    path = tmp_path / f"a.tfrecord{suffix}"
    path.write_bytes(gzip.compress(content) if suffix else content)
    for part_bytes, chunk_bytes in ((4 << 20, 1 << 20), (100_000, 7000)):
        monkeypatch.setattr(kept_index, "PART_BYTES", part_bytes)
        monkeypatch.setattr(framed, "CHUNK_BYTES", chunk_bytes)
        monkeypatch.setattr(framed, "_SEEK_BYTES", min(chunk_bytes, 1000))
        assert PAYLOADS == check_reader(TFRecord(), str(path), num_records=len(PAYLOADS))


@pytest.mark.slow
def test_keeps_the_promises_with_a_kept_index(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_index, "PART_BYTES", 100_000)
    path = tmp_path / "a.tfrecord"
    path.write_bytes(b"".join(map(frame, PAYLOADS[:400])))
    for index in ("beside", str(tmp_path / "kept")):
        reader = TFRecord(index=index)
        assert check_reader(reader, str(path), num_records=400) == PAYLOADS[:400]
    assert path.with_name("a.tfrecord.index.npz").exists()


FEATURES = {
    "id": torch.int64,
    "image": (torch.float32, (2, 3)),
    "weight": (torch.float32, (), 1.0),
    "ids": (torch.int64, ...),
    "raw": bytes,
    "text": (str, (), "none"),
    "tags": (str, ...),
    "pair": (bytes, (2,)),
}


def full_example(i, *, packed=True):
    features = {
        "id": int_list(i - 100, packed=packed),
        "image": float_list(*range(i, i + 6), packed=packed),
        "ids": int_list(*(1 << j for j in range(i % 5)), packed=packed),
        "raw": bytes_list(bytes(i % 300)),
        "tags": bytes_list(*(f"täg{j}".encode() for j in range(i % 3))),
        "pair": bytes_list(b"a", b"%d" % i),
        "unwanted": int_list(1, 2, 3),
    }
    if i % 4:
        features["weight"] = float_list(i / 2, packed=packed)
        features["text"] = bytes_list(f"text {i}".encode())
    names = list(features)
    order = np.random.default_rng(i % 7).permutation(len(names)) if i % 3 else range(len(names))
    return example(**{names[k]: features[names[k]] for k in order})


def check_rows(rows):
    for i, row in enumerate(rows):
        assert row["id"] == i - 100
        assert row["image"].tolist() == [[i, i + 1, i + 2], [i + 3, i + 4, i + 5]]
        assert row["weight"] == (i / 2 if i % 4 else 1.0)
        assert row["ids"].tolist() == [1 << j for j in range(i % 5)]
        assert row["raw"] == bytes(i % 300)
        assert row["text"] == (f"text {i}" if i % 4 else "none")
        assert list(row["tags"]) == [f"täg{j}" for j in range(i % 3)]
        assert row["pair"].tolist() == [b"a", b"%d" % i]


COUNT = 500 if LONG else 200  # examples; a field of 128 bytes has a longer length


@pytest.mark.slow
@pytest.mark.parametrize("packed", [True, False, None])
def test_parses_examples(tmp_path, packed):
    """In any order of features, packed or not, and both in one file."""
    path = tmp_path / "a.tfrecord"
    kinds = [i % 2 == 0 if packed is None else packed for i in range(COUNT)]
    records = [full_example(i, packed=kind) for i, kind in enumerate(kinds)]
    path.write_bytes(b"".join(map(frame, records)))
    check_rows(check_reader(TFRecord(FEATURES), str(path), num_records=COUNT))
    batch = decode(FEATURES, *records)
    assert batch["id"].dtype == torch.int64
    assert batch["image"].shape == (COUNT, 2, 3)
    assert batch["image"].dtype == torch.float32
    assert batch["ids"].is_nested
    assert batch["pair"].shape == (COUNT, 2)


def test_no_records_give_empty_columns():
    batch = decode(FEATURES)
    assert batch["image"].shape == (0, 2, 3)
    assert batch["raw"] == []
    assert batch["tags"].shape == (0,)
    assert batch["ids"].shape[0] == 0


INT64 = st.integers(-(2**63), 2**63 - 1)
VALUES = st.fixed_dictionaries(
    {
        "a": st.lists(INT64, max_size=4),
        "b": st.lists(st.floats(width=32, allow_nan=False), max_size=4),
        "c": st.lists(st.binary(max_size=200), max_size=3),
        "packed": st.booleans(),
        "order": st.permutations("abcx"),
        "unknown": st.sampled_from(["", "example", "entry", "feature", "split"]),
        "absent": st.sampled_from("abcdd"),
    }
)


def encoded(values):
    """Valid messages, also such as no library writes."""
    features = {
        "a": int_list(*values["a"], packed=values["packed"]),
        "b": float_list(*values["b"], packed=values["packed"]),
        "c": bytes_list(*values["c"]),
        "x": b"",
    }
    extra = dict.fromkeys(("", "example", "entry", "feature", "split"), b"")
    extra[values["unknown"]] = b"\x78\x05" + message(20, b"?") + b"\x7d1234" + b"\x7912345678"
    entries = [
        message(
            1,
            message(1, name.encode())
            + message(2, features[name] + extra["feature"])
            + extra["entry"],
        )
        for name in values["order"]
        if name != values["absent"]
    ]
    if values["unknown"] == "split":
        return b"".join(message(1, entry) for entry in entries)
    return message(1, b"".join(entries)) + extra["example"]


@pytest.mark.slow
@given(st.lists(VALUES, max_size=8))
def test_any_valid_example_is_parsed(examples):
    features = {"a": (torch.int64, ...), "b": (torch.float32, ...), "c": (bytes, ...)}
    batch = decode(features, *map(encoded, examples))
    for row, values in enumerate(examples):
        expected = {name: [] if name == values["absent"] else values[name] for name in "abc"}
        assert batch["a"][row].tolist() == expected["a"]
        assert batch["b"][row].tolist() == expected["b"]
        assert batch["c"][row] == expected["c"]


@pytest.mark.slow
@given(st.lists(VALUES, min_size=1, max_size=3), st.data())
def test_damaged_examples_raise_or_parse(examples, data):
    """They never read beyond a record, and never raise anything else."""
    records = list(map(encoded, examples))
    victim = bytearray(records[0])
    if victim:
        victim[data.draw(st.integers(0, len(victim) - 1))] = data.draw(st.integers(0, 255))
    features = {"a": (torch.int64, ...), "b": (torch.float32, ...), "c": (bytes, ...)}
    try:
        together = decode(features, bytes(victim), *records[1:])
    except ValueError:
        with pytest.raises(ValueError):
            decode(features, bytes(victim))
        return
    alone = decode(features, bytes(victim))
    assert torch.equal(alone["a"][0], together["a"][0])
    assert torch.equal(alone["b"][0].nan_to_num(), together["b"][0].nan_to_num())
    assert alone["c"][0] == together["c"][0]


def test_the_last_of_two_equal_names_counts():
    one = message(1, message(1, b"a") + message(2, int_list(1)))
    two = message(1, message(1, b"a") + message(2, int_list(2)))
    assert decode({"a": torch.int64}, message(1, one + two))["a"].tolist() == [2]


@pytest.mark.parametrize(
    ("features", "record", "match"),
    [
        ({"a": torch.int64}, example(), "record 1 of this batch has none. Describe it as"),
        ({"a": torch.int64}, example(a=b""), "record 1 of this batch has none. Describe it as"),
        (
            {"a": torch.int64},
            example(a=float_list(1)),
            "hold int64 values, got float32",
        ),
        ({"a": torch.int64}, example(a=int_list(1, 2)), "Expected 1 values of feature 'a'.* got 2"),
        ({"a": torch.int64}, b"no proto", "Expected a tf.train.Example, got 8 bytes"),
        ({"a": torch.int64}, example(a=int_list(1))[:-1], "Expected a tf.train.Example"),
        ({"a": torch.int64}, example(a=message(3, message(1, b"\xff"))), "int64 that is cut off"),
        (
            {"a": torch.int64},
            example(a=message(3, message(1, b"\xff" * 10 + b"\x01"))),
            "more than 10 bytes in record 1",
        ),
    ],
)
def test_what_is_not_there_is_an_error(features, record, match):
    good = example(a=int_list(7))
    assert decode(features, good)["a"].tolist() == [7]
    with pytest.raises(ValueError, match=match):
        decode(features, good, record)


def test_floats_of_odd_length_and_bad_text_are_errors():
    with pytest.raises(ValueError, match="float32 values of 3 bytes"):
        decode({"a": torch.float32}, example(a=message(2, message(1, b"abc"))))
    with pytest.raises(UnicodeDecodeError):
        decode({"a": str}, example(a=bytes_list(b"\xff")))


@pytest.mark.parametrize(
    "described",
    [int, torch.float64, (torch.int64, 3), (torch.int64, (-1,)), (bytes, ..., b""), (str, (), 1)],
)
def test_wrong_descriptions_are_refused(described):
    with pytest.raises(ValueError, match="feature 'a'"):
        TFRecord({"a": described})
    with pytest.raises(ValueError, match="index"):
        TFRecord(index="")


def test_a_missing_library_is_named(monkeypatch):
    records._crc32c.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "google_crc32c", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'torch_distinput\[tfrecord\]'"):
        read(frame(b"record"))
    records._crc32c.cache_clear()


@pytest.mark.parametrize("packed", [False, True])
def test_payloads_in_a_list_and_frames(packed):
    """What a list of payloads becomes is what packed frames become."""
    records = [example(a=int_list(number), b=bytes_list(b"%d" % number)) for number in range(3)]
    reader = TFRecord({"a": torch.int64, "b": bytes}, packed=packed)
    frames = [bytes(12) + record + bytes(4) for record in records]
    found = [reader.decode(records), reader.decode(PackedStrings.from_list(frames, bytes))]
    for columns in found:
        assert [0, 1, 2] == columns["a"].tolist()
        assert [b"0", b"1", b"2"] == list(columns["b"])
        assert isinstance(columns["b"], PackedStrings) == packed
