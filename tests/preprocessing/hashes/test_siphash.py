"""SipHash-2-4 against its authors' values, recorded ones and the algorithm in plain Python."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.preprocessing.hashes.packed import bits, check_export, pack, random_rows, strings
from torch_distinput.preprocessing.strings.hashes.siphash import siphash24
from torch_distinput.preprocessing.strings.hashes.words import choose_bucket

MASK = (1 << 64) - 1
KEY = (0x0706050403020100, 0x0F0E0D0C0B0A0908)
# From the authors' vectors: of the bytes 0, 1, 2, ... with KEY, for each number of bytes.
VECTORS = {
    0: 0x726FDB47DD0E0E31,
    1: 0x74F839C593DC67FD,
    8: 0x93F5F5799A932462,
    15: 0xA129CA6149BE45E5,
    63: 0x958A324CEB064572,
}
STRINGS = ["", " ", "a\0b", "\0", "é", "日本語", "c" * 65, "d" * 300, "[UNK]", "-1"]
# The cases hashing/salt_0, salt_1 and salt_2 of keras.json, modulo 1,000.
KERAS = {
    (0, 0): [367, 743, 394, 877, 832, 56, 510, 563, 658, 483],
    (133, 133): [907, 44, 136, 745, 118, 331, 234, 440, 563, 766],
    (133, 137): [900, 981, 383, 371, 134, 278, 182, 872, 72, 874],
}


def rotate_left(word: int, num_bits: int) -> int:
    return (word << num_bits | word >> (64 - num_bits)) & MASK


def rounds(v: list[int], count: int) -> None:
    def add_rotate_xor(a: int, b: int, num_bits: int) -> None:
        v[a] = v[a] + v[b] & MASK
        v[b] = rotate_left(v[b], num_bits) ^ v[a]

    for _ in range(count):
        add_rotate_xor(0, 1, 13)
        add_rotate_xor(2, 3, 16)
        v[0] = rotate_left(v[0], 32)
        add_rotate_xor(0, 3, 21)
        add_rotate_xor(2, 1, 17)
        v[2] = rotate_left(v[2], 32)


def reference(row: bytes, key: tuple[int, int]) -> int:
    initial = b"somepseudorandomlygeneratedbytes"
    v = [
        int.from_bytes(initial[at * 8 : at * 8 + 8], "big") ^ key[at % 2] & MASK for at in range(4)
    ]
    padded = row + bytes(7 - len(row) % 8) + bytes([len(row) % 256])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        v[3] ^= word
        rounds(v, 2)
        v[0] ^= word
    v[2] ^= 0xFF
    rounds(v, 4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def test_the_authors_vectors():
    rows = [bytes(range(size)) for size in VECTORS]
    assert siphash24(*pack(rows), KEY).tolist() == [*map(bits, VECTORS.values())]


@pytest.mark.parametrize("key", KERAS)
def test_hashes_of_keras(key):
    rows = [string.encode() for string in STRINGS]
    assert choose_bucket(siphash24(*pack(rows), key), 1000).tolist() == KERAS[key]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.lists(strings, max_size=6),
    st.integers(0, 20),
    st.tuples(st.integers(0, MASK), st.integers(-(1 << 63), MASK)),
)
def test_equals_the_algorithm_in_plain_python(rows, padding, key):
    width = max(map(len, rows), default=0) + padding
    expected = [bits(reference(row, key)) for row in rows]
    assert siphash24(*pack(rows, width), key).tolist() == expected


@pytest.mark.slow
@pytest.mark.parametrize("width", [0, 20])
def test_exported_it_gives_the_same(width):
    check_export(
        lambda data, lengths: siphash24(data, lengths, (1, MASK)),
        lambda num_rows: random_rows(num_rows, width),
    )
