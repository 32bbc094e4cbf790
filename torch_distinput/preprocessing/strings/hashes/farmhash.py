"""FarmHash Fingerprint64 (Geoff Pike's farmhashna::Hash64), which TensorFlow hashes strings with.

Every branch that the width of the data allows is worked out for all rows, and each row takes the
one of its length: no shape depends on data. :func:`cross` is TensorFlow's crossing of such hashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torch_distinput.preprocessing.strings.hashes.words import (
    read_last_words,
    rotate_right,
    shift_right,
    split_words,
    to_signed,
)

_K0 = to_signed(0xC3A5C85C97CB3127)
_K1 = to_signed(0xB492B66FBE98F273)
_K2 = to_signed(0x9AE16A3B2F90404F)
_CHUNK = 64
"""Bytes that the loop over a long row takes at once."""
_CROSS_KEY = 0xDECAFCAFFE
"""What ``tf.sparse.cross_hashed`` starts from, unless it is told otherwise."""
_CROSS_FACTOR = to_signed(0xC6A4A7935BD1E995)


class _State(NamedTuple):
    """The 56 bytes that a long row is folded into."""

    x: Tensor
    y: Tensor
    z: Tensor
    v0: Tensor
    v1: Tensor
    w0: Tensor
    w1: Tensor


def fingerprint64(data: Tensor, lengths: Tensor) -> Tensor:
    """Return the fingerprint of each row, as the int64 that has its bits.

    Args:
        data: uint8 (rows, L), zero past the length of each row.
        lengths: int64 (rows,).
    """
    width = data.shape[1]
    words = split_words(data)
    hashes = _up_to_3(words[0], lengths)
    if width > 3:
        multiplier = _K2 + lengths * 2
        count = next(count for limit, count in _LAST_WORDS if width <= limit)
        last = read_last_words(words, lengths, count)
        hashes = torch.where(lengths > 3, _up_to_32(words, last, lengths, multiplier), hashes)
    if width > 32:
        hashes = torch.where(lengths > 32, _up_to_64(words, last, multiplier), hashes)
    if width > 64:
        hashes = torch.where(lengths > 64, _above_64(words, last, lengths, width), hashes)
    return hashes


def cross(columns: Sequence[Tensor]) -> Tensor:
    """Return one hash for each row of columns of one shape: TensorFlow's ``FingerprintCat64``.

    Args:
        columns: int64 each: of strings their ``fingerprint64``, and integers as they are.
    """
    hashes = torch.full_like(columns[0], _CROSS_KEY)
    for column in columns:
        mixed = _shift_mix(column * _CROSS_FACTOR) * _CROSS_FACTOR
        joined = (hashes ^ _CROSS_FACTOR ^ mixed) * _CROSS_FACTOR
        hashes = _shift_mix(_shift_mix(joined) * _CROSS_FACTOR)
    return hashes


_LAST_WORDS = ((16, 1), (32, 2), (64, 4), (float("inf"), 8))
"""How many words, counted from its end, the longest row of a width needs."""


def _up_to_3(first: Tensor, lengths: Tensor) -> Tensor:
    inside = lengths.clamp(1, 3)
    begin_and_middle = (first & 0xFF) | (((first >> ((inside >> 1) << 3)) & 0xFF) << 8)
    end_and_length = lengths + (((first >> ((inside - 1) << 3)) & 0xFF) << 2)
    mixed = _shift_mix((begin_and_middle * _K2) ^ (end_and_length * _K0)) * _K2
    return torch.where(lengths > 0, mixed, _K2)


def _up_to_32(words: Tensor, last: Tensor, lengths: Tensor, multiplier: Tensor) -> Tensor:
    """Return the hash of 4 to 32 bytes: three ways to two words, which are mixed alike."""
    first = words[0]
    end = (first >> ((lengths.clamp(4, 7) - 4) << 3)) & 0xFFFFFFFF
    pair = lengths + ((first & 0xFFFFFFFF) << 3), end
    if words.shape[0] > 1:  # rows of 8 bytes and more
        begin = first + _K2
        from_8 = (
            rotate_right(last[-1], 37) * multiplier + begin,
            (rotate_right(begin, 25) + last[-1]) * multiplier,
        )
        pair = _choose(lengths > 7, from_8, pair)
    if last.shape[0] > 1:  # rows of 17 bytes and more
        pair = _choose(lengths > 16, _both_ends(words, last, multiplier, first * _K1), pair)
    return _mix(*pair, multiplier)


def _up_to_64(words: Tensor, last: Tensor, multiplier: Tensor) -> Tensor:
    """Return the hash of 33 to 64 bytes."""
    a = words[0] * _K2
    y, other = _both_ends(words, last, multiplier, a)
    z = _mix(y, other, multiplier)
    e = words[2] * multiplier
    f = words[3]
    g = (y + last[-4]) * multiplier
    h = (z + last[-3]) * multiplier
    first = rotate_right(e + f, 43) + rotate_right(g, 30) + h
    return _mix(first, e + rotate_right(f + a, 18) + g, multiplier)


def _both_ends(words: Tensor, last: Tensor, multiplier: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """Return two words of the first 16 bytes and the last 16."""
    b = words[1]
    c = last[-1] * multiplier
    d = last[-2] * _K2
    return rotate_right(a + b, 43) + rotate_right(c, 30) + d, a + rotate_right(b + _K2, 18) + c


def _above_64(words: Tensor, last: Tensor, lengths: Tensor, width: int) -> Tensor:
    """Return the hash of 65 bytes and more: full chunks, then the last 64 bytes once more."""
    seed = torch.full_like(lengths, 81)
    y = seed * _K1 + 113
    zero = torch.zeros_like(lengths)
    state = _State(
        seed * _K2 + words[0], y, _shift_mix(y * _K2 + 113) * _K2, zero, zero, zero, zero
    )
    for begin in range(0, width - _CHUNK, _CHUNK):
        folded = _fold(state, words[begin // 8 : begin // 8 + 8], _K1, 1)
        if begin:  # every row that counts here has a first chunk
            more = lengths > begin + _CHUNK
            folded = _State(*(torch.where(more, *both) for both in zip(folded, state, strict=True)))
        state = folded
    multiplier = _K1 + ((state.z & 0xFF) << 1)
    w0 = state.w0 + ((lengths - 1) & 63)
    v0 = state.v0 + w0
    final = _fold(state._replace(v0=v0, w0=w0 + v0), last, multiplier, 9)
    return _mix(
        _mix(final.v0, final.w0, multiplier) + _shift_mix(final.y) * _K0 + final.z,
        _mix(final.v1, final.w1, multiplier) + final.x,
        multiplier,
    )


def _fold(state: _State, chunk: Tensor, multiplier: Tensor | int, weight: int) -> _State:
    """Take in 64 bytes."""
    x, y, z, v0, v1, w0, w1 = state
    x = rotate_right(x + y + v0 + chunk[1], 37) * multiplier
    y = rotate_right(y + v1 + chunk[6], 42) * multiplier
    x = x ^ (w1 * weight)
    y = y + v0 * weight + chunk[5]
    z = rotate_right(z + w0, 33) * multiplier
    v0, v1 = _fold_half(chunk[:4], v1 * multiplier, x + w0)
    w0, w1 = _fold_half(chunk[4:], z + w1, y + chunk[2])
    return _State(z, y, x, v0, v1, w0, w1)


def _fold_half(half: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    a = a + half[0]
    b = rotate_right(b + a + half[3], 21)
    c = a
    a = a + half[1] + half[2]
    return a + half[3], b + rotate_right(a, 44) + c


def _choose(
    condition: Tensor, chosen: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    return torch.where(condition, chosen[0], other[0]), torch.where(condition, chosen[1], other[1])


def _mix(u: Tensor, v: Tensor, multiplier: Tensor) -> Tensor:
    return _shift_mix((v ^ _shift_mix((u ^ v) * multiplier)) * multiplier) * multiplier


def _shift_mix(words: Tensor) -> Tensor:
    return words ^ shift_right(words, 47)
