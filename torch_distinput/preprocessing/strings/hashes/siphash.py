"""SipHash-2-4 (Aumasson and Bernstein): the keyed hash that TensorFlow calls strong."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_distinput.preprocessing.strings.hashes.words import (
    MASK_64,
    rotate_right,
    split_words,
    to_signed,
)

_State = tuple[Tensor, Tensor, Tensor, Tensor]
_INITIAL = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


def siphash24(data: Tensor, lengths: Tensor, key: tuple[int, int]) -> Tensor:
    """Return the hash of each row, as the int64 that has its bits.

    Args:
        data: uint8 (rows, L), zero past the length of each row.
        lengths: int64 (rows,).
        key: two uint64; a negative number is taken for the uint64 that has its bits.
    """
    words = split_words(data)
    num_full = lengths >> 3
    keys = [part & MASK_64 for part in key]
    v0, v1, v2, v3 = (
        torch.full_like(lengths, to_signed(initial ^ keys[at % 2]))
        for at, initial in enumerate(_INITIAL)
    )
    state = v0, v1, v2, v3
    for at in range(words.shape[0]):
        # The last word of a row has its length in the highest byte, which the row leaves free.
        word = words[at] | torch.where(num_full == at, lengths << 56, 0)
        taken_in = _take_in(state, word)
        state = _choose(num_full >= at, taken_in, state) if at else taken_in
    v0, v1, v2, v3 = state
    state = v0, v1, v2 ^ 0xFF, v3
    for _ in range(4):
        state = _round(*state)
    return state[0] ^ state[1] ^ state[2] ^ state[3]


def _take_in(state: _State, word: Tensor) -> _State:
    v0, v1, v2, v3 = state
    v0, v1, v2, v3 = _round(*_round(v0, v1, v2, v3 ^ word))
    return v0 ^ word, v1, v2, v3


def _choose(condition: Tensor, chosen: _State, other: _State) -> _State:
    v0, v1, v2, v3 = (torch.where(condition, *both) for both in zip(chosen, other, strict=True))
    return v0, v1, v2, v3


def _round(v0: Tensor, v1: Tensor, v2: Tensor, v3: Tensor) -> _State:
    v0 = v0 + v1
    v2 = v2 + v3
    v1 = _rotate_left(v1, 13) ^ v0
    v3 = _rotate_left(v3, 16) ^ v2
    v0 = _rotate_left(v0, 32) + v3
    v2 = v2 + v1
    v1 = _rotate_left(v1, 17) ^ v2
    v3 = _rotate_left(v3, 21) ^ v0
    return v0, v1, _rotate_left(v2, 32), v3


def _rotate_left(words: Tensor, num_bits: int) -> Tensor:
    return rotate_right(words, 64 - num_bits)
