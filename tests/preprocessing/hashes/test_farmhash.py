"""Fingerprint64 against published values, recorded ones and the algorithm in plain Python."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.preprocessing.hashes.packed import (
    bits,
    check_export,
    pack,
    random_rows,
    strings,
)
from torch_distinput.preprocessing.strings.hashes.farmhash import fingerprint64

K0, K1, K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F
MASK = (1 << 64) - 1


def rotate(word: int, num_bits: int) -> int:
    word &= MASK
    return word >> num_bits | word << (64 - num_bits) & MASK


def shift_mix(word: int) -> int:
    word &= MASK
    return word ^ word >> 47


def mix(u: int, v: int, mul: int) -> int:
    return shift_mix((v ^ shift_mix((u ^ v) * mul)) * mul) * mul & MASK


def reference(s: bytes) -> int:
    """Fingerprint64 of one string, branch by branch as FarmHash has it."""
    size = len(s)
    mul = K2 + size * 2

    def fetch(at: int, num_bytes: int = 8) -> int:
        return int.from_bytes(s[at : at + num_bytes], "little")

    if size == 0:
        return K2
    if size < 4:
        y = s[0] + (s[size >> 1] << 8)
        return shift_mix(y * K2 ^ (size + (s[-1] << 2)) * K0) * K2 & MASK
    if size < 8:
        return mix(size + (fetch(0, 4) << 3), fetch(size - 4, 4), mul)
    if size < 17:
        a, b = fetch(0) + K2, fetch(size - 8)
        return mix(rotate(b, 37) * mul + a & MASK, (rotate(a, 25) + b) * mul & MASK, mul)
    if size < 65:
        a, b = fetch(0) * (K1 if size < 33 else K2), fetch(8)
        c, d = fetch(size - 8) * mul, fetch(size - 16) * K2
        y = rotate(a + b, 43) + rotate(c, 30) + d & MASK
        z = mix(y, a + rotate(b + K2, 18) + c & MASK, mul)
        if size < 33:
            return z
        e, f = fetch(16) * mul, fetch(24)
        g, h = (y + fetch(size - 32)) * mul, (z + fetch(size - 24)) * mul
        first = rotate(e + f, 43) + rotate(g, 30) + h & MASK
        return mix(first, e + rotate(f + a, 18) + g & MASK, mul)
    return reference_of_long(s)


def weak(words: list[int], a: int, b: int) -> tuple[int, int]:
    a += words[0]
    b = rotate(b + a + words[3], 21)
    c = a
    a += words[1] + words[2]
    return a + words[3], b + rotate(a, 44) + c


def reference_of_long(s: bytes) -> int:
    def words(at: int) -> list[int]:
        return [int.from_bytes(s[at + i : at + i + 8], "little") for i in range(0, 64, 8)]

    x, y = 81 * K2 + words(0)[0], 81 * K1 + 113
    z = shift_mix(y * K2 + 113) * K2
    v, w = (0, 0), (0, 0)
    for at in range(0, (len(s) - 1) // 64 * 64, 64):
        chunk = words(at)
        x = rotate(x + y + v[0] + chunk[1], 37) * K1 ^ w[1]
        y = rotate(y + v[1] + chunk[6], 42) * K1 + v[0] + chunk[5]
        z = rotate(z + w[0], 33) * K1
        v, w = weak(chunk[:4], v[1] * K1, x + w[0]), weak(chunk[4:], z + w[1], y + chunk[2])
        z, x = x, z
    mul = K1 + ((z & 0xFF) << 1)
    chunk = words(len(s) - 64)
    w = (w[0] + (len(s) - 1 & 63), w[1])
    v = (v[0] + w[0], v[1])
    w = (w[0] + v[0], w[1])
    x = rotate(x + y + v[0] + chunk[1], 37) * mul ^ w[1] * 9
    y = rotate(y + v[1] + chunk[6], 42) * mul + v[0] * 9 + chunk[5]
    z = rotate(z + w[0], 33) * mul
    v, w = weak(chunk[:4], v[1] * mul, x + w[0]), weak(chunk[4:], z + w[1], y + chunk[2])
    z, x = x, z
    first = mix(v[0] & MASK, w[0] & MASK, mul) + shift_mix(y) * K0 + z & MASK
    return mix(first, mix(v[1] & MASK, w[1] & MASK, mul) + x & MASK, mul)


# BigQuery documents the first three (FARM_FINGERPRINT), "hello" is known from CityHash, which has
# the same branch, and the empty string is a constant of the source.
PUBLISHED = {
    b"1footrue": -1541654101129638711,
    b"2applefalse": 2794438866806483259,
    b"3true": -4880158226897771312,
    b"hello": bits(0xB48BE5A931380CE8),
    b"": bits(K2),
}
# The case hashing/lengths of keras.json, modulo 2^40: lengths of texts, and what Keras gives.
SIZES = (
    0, 1, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256,
    257, 299,
)  # fmt: skip
KERAS = (
    254201053263, 326239815601, 689171182611, 203826467746, 1059464621651, 864848015524,
    524788327234, 54602341133, 571538001001, 1079621582715, 659275984990, 604931314879,
    1028907722614, 423114538213, 155436222198, 100647318363, 933180214782, 887096238236,
    1085465852904, 838014786720, 679885339448, 892146830178, 24510638962, 881616263837,
    625839298641,
)  # fmt: skip


def test_published_fingerprints():
    assert fingerprint64(*pack([*PUBLISHED])).tolist() == [*PUBLISHED.values()]


def test_fingerprints_of_keras():
    rows = [bytes(97 + (7 * size + at) % 26 for at in range(size)) for size in SIZES]
    assert (fingerprint64(*pack(rows)) % 2**40).tolist() == [*KERAS]


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.lists(strings, max_size=6), st.integers(0, 20))
def test_equals_the_algorithm_in_plain_python(rows, padding):
    width = max(map(len, rows), default=0) + padding
    expected = [bits(reference(row)) for row in rows]
    assert fingerprint64(*pack(rows, width)).tolist() == expected


@pytest.mark.slow
def test_every_length_in_rows_of_its_width_and_of_all():
    rows = [bytes((at * 89 + size) % 256 for at in range(size)) for size in range(301)]
    expected = [bits(reference(row)) for row in rows]
    assert fingerprint64(*pack(rows)).tolist() == expected
    assert [fingerprint64(*pack([row])).item() for row in rows] == expected


def test_a_long_document():
    row = bytes(range(251)) * 40
    assert fingerprint64(*pack([row, b"x"])).tolist() == [bits(reference(r)) for r in (row, b"x")]


def test_slices_are_hashed_where_they_lie():
    data, sizes = random_rows(6, 40)
    expected = fingerprint64(data[1:, 3:35].contiguous(), sizes[1:].clamp(max=32))
    assert torch.equal(fingerprint64(data[1:, 3:35], sizes[1:].clamp(max=32)), expected)


@pytest.mark.slow
@pytest.mark.parametrize("width", [0, 3, 20, 140])
def test_exported_it_gives_the_same(width):
    check_export(fingerprint64, lambda num_rows: random_rows(num_rows, width))
