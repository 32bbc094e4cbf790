"""The hash of tokens: of a part as of the whole, and different for what is different."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.preprocessing.hashes.packed import bits, check_export, pack, random_rows, strings
from torch_distinput.preprocessing.strings.hashes.token_hash import (
    prefix_sums,
    span_hash,
    token_hash,
)

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
seeds = st.integers(0, MASK)


def mixed(word: int) -> int:
    word = (word ^ (word & MASK) >> 30) * 0xBF58476D1CE4E5B9 & MASK
    word = (word ^ word >> 27) * 0x94D049BB133111EB & MASK
    return word ^ word >> 31


def reference(row: bytes, seed: int) -> int:
    base, multiplier, per_byte = (mixed((seed * 3 + at) * GOLDEN & MASK) for at in range(3))
    multiplier = multiplier // 8 * 8 + 3
    table = [mixed(byte * GOLDEN + base & MASK) for byte in range(256)]
    total = sum(
        (table[byte] - table[0]) * pow(multiplier, at, MASK + 1) for at, byte in enumerate(row)
    )
    return mixed(total + len(row) * (per_byte | 1) + base & MASK)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(strings, max_size=6), st.integers(0, 20), seeds)
def test_equals_the_definition_in_plain_python(rows, padding, seed):
    width = max(map(len, rows), default=0) + padding
    expected = [bits(reference(row, seed)) for row in rows]
    assert token_hash(*pack(rows, width), seed).tolist() == expected


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(strings, st.data(), seeds)
def test_a_part_has_the_hash_of_the_row_that_it_would_be(row, data, seed):
    cuts = data.draw(st.lists(st.integers(0, len(row)), min_size=2, max_size=8))
    spans = [(min(pair), max(pair)) for pair in product(cuts, cuts)]
    starts, ends = torch.tensor(spans).t().unsqueeze(1)
    parts = span_hash(prefix_sums(pack([row])[0], seed), starts, ends, seed)
    expected = token_hash(*pack([row[start:end] for start, end in spans]), seed)
    assert torch.equal(parts[0], expected)


def test_parts_of_a_long_document():
    document = bytes(range(250)) * 40
    data, sizes = pack([document, document[::-1]])
    starts, ends = (
        torch.tensor([[0, 9_990, 5_000]] * 2),
        torch.tensor([[10_000, 10_000, 5_000]] * 2),
    )
    parts = span_hash(prefix_sums(data, 3), starts, ends, 3)
    assert torch.equal(parts[:, 0], token_hash(data, sizes, 3))
    assert torch.equal(parts[:, 1], token_hash(data[:, -10:], torch.tensor([10, 10]), 3))
    assert torch.equal(parts[:, 2], token_hash(*pack([b"", b""]), 3))


@pytest.mark.slow
def test_no_two_of_many_similar_tokens_meet():
    short = [bytes(row) for size in range(7) for row in product(b"\0\1a\xff", repeat=size)]
    numbers = [b"%d" % number for number in range(20_000)]
    rows = list({*short, *numbers, *(bytes(size) for size in range(30))})
    for seed in (0, 1):
        assert token_hash(*pack(rows), seed).unique().numel() == len(rows)


def test_another_seed_is_another_table_and_another_multiplier():
    rows = pack([b"", b"a", b"ab", b"ba"])
    hashes = torch.stack([token_hash(*rows, seed) for seed in range(100)])
    assert hashes.unique().numel() == hashes.numel()


def test_every_bit_of_the_hash_is_one_half_of_the_time():
    hashes = token_hash(*pack([b"%d" % number for number in range(4_000)]), 5)
    ones = (hashes[:, None] >> torch.arange(64) & 1).double().mean(0)
    assert ((ones - 0.5).abs() < 0.05).all()


@pytest.mark.slow
@pytest.mark.parametrize("width", [0, 12, 300])
def test_exported_it_gives_the_same(width):
    def whole_and_parts(data, lengths):
        starts = torch.stack([lengths // 2, lengths // 3], 1)
        ends = torch.stack([lengths, lengths // 2], 1)
        parts = span_hash(prefix_sums(data, 9), starts, ends, 9)
        return token_hash(data, lengths, 9), parts

    check_export(whole_and_parts, lambda num_rows: random_rows(num_rows, width))


@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("width", [1, 2, 40])
def test_rows_may_lie_in_memory_in_any_way(rows, width):
    """At odd addresses, in rows of odd length, or column by column."""
    data = torch.arange((rows + 1) * (width + 3), dtype=torch.uint8).view(rows + 1, width + 3)
    lengths = torch.full((rows,), width)
    for part in (data[1:, 1 : width + 1], data.t().contiguous().t()[1:, 2 : width + 2]):
        assert torch.equal(token_hash(part.clone(), lengths, 5), token_hash(part, lengths, 5))
