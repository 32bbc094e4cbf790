"""Our own hash of tokens, which that of any part of a row can be had from by prefix sums.

A polynomial modulo 2^64 over words that a table gives for the bytes, then a mixing of its bits with
the length. NUL has the word 0, so that what pads a row adds nothing. A vocabulary in which two
tokens meet is built again with another seed. Texts made for it (Thue-Morse, 1,024 bytes and more)
meet with every seed: this hash is for lookups in a table that was checked, not against attackers.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from torch_distinput.preprocessing.strings.hashes.words import MASK_64, shift_right, to_signed

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_FEWEST_COLUMNS = 16
_MOST_BLOCKS = 16


class _Key(NamedTuple):
    """The words that a seed stands for."""

    table: int
    multiplier: int
    inverse: int
    length: int


def token_hash(data: Tensor, lengths: Tensor, seed: int) -> Tensor:
    """Return the hash of each row.

    Args:
        data: uint8 (rows, L), zero past the length of each row.
        lengths: int64 (rows,).
        seed: picks the table and the multiplier.
    """
    key = _make_key(seed)
    return _finish(_sum_polynomials(data, key), lengths, key)


def prefix_sums(data: Tensor, seed: int) -> Tensor:
    """Return what ``span_hash`` needs of rows: int64 (rows, L + 1)."""
    key = _make_key(seed)
    words = _look_up(_make_table(key, data.device), data)
    terms = words.mul_(_make_powers(key.multiplier, data.shape[1], data.device))
    return pad(terms.cumsum(1), (1, 0))


def span_hash(prefix: Tensor, starts: Tensor, ends: Tensor, seed: int) -> Tensor:
    """Return the ``token_hash`` of parts of rows, (rows, parts).

    Args:
        prefix: the ``prefix_sums`` of the rows.
        starts: int64 (rows, parts), the first byte of each part.
        ends: int64 (rows, parts), one past the last.
        seed: that of the prefix sums.
    """
    key = _make_key(seed)
    shifts = _make_powers(key.inverse, prefix.shape[1], prefix.device).expand_as(prefix)
    sums = prefix.gather(1, ends) - prefix.gather(1, starts)
    return _finish(sums * shifts.gather(1, starts), ends - starts, key)


def _make_key(seed: int) -> _Key:
    table, multiplier, length = (_mix_int((seed * 3 + at) * _GOLDEN & MASK_64) for at in range(3))
    # 3 modulo 8: its powers have the longest period, and few zero bits at the end of differences.
    multiplier = (multiplier & ~7) | 3
    inverse = pow(multiplier, -1, 1 << 64)
    return _Key(to_signed(table), to_signed(multiplier), to_signed(inverse), to_signed(length | 1))


def _sum_polynomials(data: Tensor, key: _Key) -> Tensor:
    """Return the polynomial of each row, block by block of columns.

    Temporary memory of a block is used again; that of a whole batch goes back to the system and
    is faulted in anew. A wide row has larger blocks: a graph stays small.
    """
    width = data.shape[1]
    if not torch.compiler.is_compiling() and data.device.type == "cpu" and width:
        return _sum_pairs(data, key)
    size = max(_FEWEST_COLUMNS, -(-width // _MOST_BLOCKS))
    table = _make_table(key, data.device)
    powers = _make_powers(key.multiplier, width, data.device)
    sums = torch.zeros(data.shape[0], dtype=torch.int64, device=data.device)
    for begin in range(0, width, size):
        block = slice(begin, begin + size)
        sums += _look_up(table, data[:, block]).mul_(powers[block]).sum(1)
    return sums


def _sum_pairs(data: Tensor, key: _Key) -> Tensor:
    """Return the same by a table of pairs of bytes, which is too large for a graph.

    A column of all rows lies in one piece, so that sums are of vectors.
    """
    row, byte = data.stride()
    if data.shape[1] % 2 or row % 2 or byte != 1 or data.storage_offset() % 2:
        whole = pad(data, (0, data.shape[1] % 2))
        data = whole.clone(memory_format=torch.contiguous_format)
    pairs = data.view(torch.int16).t().to(torch.int32, memory_format=torch.contiguous_format)
    pairs.bitwise_and_(0xFFFF)
    table = torch.from_numpy(_make_pair_table(key))
    powers = _make_powers(key.multiplier, data.shape[1], data.device)[::2, None]
    sums = torch.zeros(data.shape[0], dtype=torch.int64, device=data.device)
    for begin in range(0, len(pairs), _FEWEST_COLUMNS // 2):
        block = slice(begin, begin + _FEWEST_COLUMNS // 2)
        words = table.index_select(0, pairs[block].reshape(-1)).view(pairs[block].shape)
        sums += words.mul_(powers[block]).sum(0)
    return sums


@lru_cache(maxsize=4)  # there is one, but for tokens that meet
def _make_pair_table(key: _Key) -> NDArray[np.int64]:
    """The words of two bytes at once, of which the first one is the lower: 512 KiB."""
    words = [_mix_int((byte * _GOLDEN + key.table) & MASK_64) for byte in range(256)]
    first = np.array([(word - words[0]) & MASK_64 for word in words], np.uint64).view(np.int64)
    pairs: NDArray[np.int64] = (first[:, None] * np.int64(key.multiplier) + first).reshape(-1)
    return pairs


def _make_table(key: _Key, device: torch.device) -> Tensor:
    table = _mix(torch.arange(256, device=device) * to_signed(_GOLDEN) + key.table)
    return table - table[0]


def _look_up(table: Tensor, data: Tensor) -> Tensor:
    """Return the word of each byte; indexing with two dimensions is several times slower."""
    return table.index_select(0, data.int().reshape(-1)).view(data.shape)


def _make_powers(base: int, count: int, device: torch.device) -> Tensor:
    """Return the powers 0 to count - 1; worked out on the device, as sending takes longer."""
    return torch.where(torch.arange(count, device=device) > 0, base, 1).cumprod(0)


def _finish(polynomials: Tensor, lengths: Tensor, key: _Key) -> Tensor:
    return _mix(polynomials + lengths * key.length + key.table)


def _mix(words: Tensor) -> Tensor:
    """Mix the bits as splitmix64 does (Steele, Lea and Flood): no two words become one."""
    words = (words ^ shift_right(words, 30)) * to_signed(_FIRST)
    words = (words ^ shift_right(words, 27)) * to_signed(_SECOND)
    return words ^ shift_right(words, 31)


def _mix_int(word: int) -> int:
    word = (word ^ (word >> 30)) * _FIRST & MASK_64
    word = (word ^ (word >> 27)) * _SECOND & MASK_64
    return word ^ (word >> 31)
