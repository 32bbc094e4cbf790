"""TFRecord files that are damaged or cut: what is lost is counted, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest

from tests.data.formats.tfrecord.examples import opened, read
from tests.tfrecords import frame
from torch_distinput.data.formats import framing as framed
from torch_distinput.data.formats import sidecar_index as kept_index
from torch_distinput.data.formats.tfrecord.records import TFRecord

FRAMES = [frame(b"record %d " % i + b"x" * (i * 37 % 900)) for i in range(400)]
STARTS = np.cumsum([0, *map(len, FRAMES)]).tolist()


def payloads(frames):
    return [f[12:-4] for f in frames]


@pytest.mark.parametrize("chunk_bytes", [1 << 20, 3000])
def test_a_damaged_payload_is_one_bad_record(monkeypatch, chunk_bytes):
    monkeypatch.setattr(framed, "CHUNK_BYTES", chunk_bytes)
    content = bytearray(b"".join(FRAMES))
    content[STARTS[7] + 14] ^= 1
    got, reported = read(bytes(content))
    assert got == payloads(FRAMES[:7] + FRAMES[8:])
    assert [where for where, _ in reported] == [f"record at byte {STARTS[7]}"]


@pytest.mark.parametrize("chunk_bytes", [1 << 20, 3000])
@pytest.mark.parametrize("offset", [0, 7, 9])
def test_after_a_damaged_length_the_next_frame_is_found(monkeypatch, chunk_bytes, offset):
    monkeypatch.setattr(framed, "CHUNK_BYTES", chunk_bytes)
    content = bytearray(b"".join(FRAMES))
    for number in (0, 7, 8, 399):
        content[STARTS[number] + offset] ^= 0x21
    got, reported = read(bytes(content))
    assert got == payloads(FRAMES[1:7] + FRAMES[9:399])
    # 7 and 8 are one damaged place: what stands between was searched, and nothing found.
    assert [where for where, _ in reported] == [f"record at byte {STARTS[i]}" for i in (0, 7, 399)]
    assert all("checksum of the length" in reason for _, reason in reported)


@pytest.mark.slow
def test_damage_in_every_record_takes_no_longer():
    content = bytearray(b"".join(FRAMES[:1] * 4000))
    for start in range(0, len(content), 2 * len(FRAMES[0])):
        content[start] ^= 1
    got, reported = read(bytes(content))
    assert len(got) == len(reported) == 2000


def test_a_cut_end_is_reported_and_what_was_appended_is_found():
    got, reported = read(b"".join(FRAMES)[:-1])
    assert got == payloads(FRAMES[:-1])
    assert [where for where, _ in reported] == [f"record at byte {STARTS[399]}"]
    assert "cut off" in reported[0][1]
    long = frame(bytes(10_000))
    got, reported = read(FRAMES[0] + long[:200] + FRAMES[1] + FRAMES[2])
    assert got == payloads(FRAMES[:3])
    assert len(reported) == 1


def test_parts_of_a_damaged_file_are_together_the_file(monkeypatch):
    monkeypatch.setattr(kept_index, "PART_BYTES", 5000)
    monkeypatch.setattr(framed, "_SEEK_BYTES", 1000)
    content = bytearray(b"".join(FRAMES))
    for number in (0, 7, 100, 399):
        content[STARTS[number] + 1] ^= 0x21
    whole, reported = read(bytes(content))
    parts = TFRecord().parts(opened(bytes(content), None))
    assert len(parts) > 10
    in_parts = [read(bytes(content), part) for part in parts]
    assert [payload for got, _ in in_parts for payload in got] == whole
    assert [line for _, lines in in_parts for line in lines] == reported
    assert [part.num_records for part in parts] == [len(got) for got, _ in in_parts]


def test_large_records_and_empty_files():
    large = [frame(bytes(3 << 20)), frame(b""), frame(bytes(5 << 20))]
    assert read(b"".join(large)) == (payloads(large), [])
    assert read(b"") == ([], [])
    assert list(TFRecord().parts(opened(b"", None))) == []
