"""Keyed permutations: the same on every machine, frozen by golden vectors in the tests.

Up to 65,536 items a permutation is exact: the stable argsort of raw Philox words. Above, it is a
Feistel network over a x b >= n cells; values outside n walk on along their cycle until they are
inside. A round adds to one half of a cell a number that depends on the other half only, so those
numbers are kept, once as many are asked for at a time: six tables of about sqrt(n) entries, 1.5 MB
for a billion items.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from math import isqrt

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
_Words = NDArray[np.uint64]

LARGEST_EXACT = 65_536
_ROUNDS = 6
_LARGEST_TABLE = 1 << 16
"""Entries of a table; beyond 4 billion items the numbers are worked out anew instead."""


def permute(num_items: int, *, key: tuple[int, ...]) -> Indices:
    """Return a keyed permutation of a few items, such as a window of a stream or a file list."""
    words = np.random.Philox(np.random.SeedSequence(key)).random_raw(num_items)
    return _argsort(words)


def permute_files(num_files: int, *, seed: int, epoch: int) -> Indices:
    """Return the order of an epoch in which files, or parts of them, are dealt out."""
    name = int.from_bytes(blake2b(b"files", digest_size=4).digest(), "big")
    return permute(num_files, key=(name, seed, epoch, 0))


@lru_cache(maxsize=4)
def permute_exactly(num_items: int, key: tuple[int, int]) -> Indices:
    """Return a permutation as a whole, not to be written to: it is kept for the next call."""
    order = _argsort(_philox(num_items, key))
    order.flags.writeable = False
    return order


@lru_cache(maxsize=4)
def make_network(num_items: int, key: tuple[int, int]) -> FeistelNetwork:
    """Return a larger permutation with the tables that it has made so far."""
    return FeistelNetwork(num_items, key)


class FeistelNetwork:
    """A bijection on 0..num_items-1, of which any part can be asked for."""

    def __init__(self, num_items: int, key: tuple[int, int]) -> None:
        """Lay the items out in cells of rows and columns, as many as each other."""
        self._num_items = num_items
        self._columns = isqrt(num_items - 1) + 1
        self._rows = -(-num_items // self._columns)
        self._words = _philox(_ROUNDS, key)
        self._tables: list[Indices] | None = None

    def __call__(self, positions: Indices) -> Indices:
        """Return the items at positions, which are all below ``num_items``."""
        if self._tables is None and self._columns <= min(positions.size, _LARGEST_TABLE):
            sides = (self._columns, self._rows)
            halves = [np.arange(sides[turn % 2]) for turn in range(_ROUNDS)]
            self._tables = [self._shift(turn, half) for turn, half in enumerate(halves)]
        out = self._permuted(positions.ravel())
        outside = np.flatnonzero(out >= self._num_items)
        while outside.size:
            out[outside] = self._permuted(out[outside])
            outside = outside[out[outside] >= self._num_items]
        return out.reshape(positions.shape)

    def _permuted(self, cells: Indices) -> Indices:
        row = cells // self._columns
        scratch = row * self._columns
        column = cells - scratch
        for turn in range(_ROUNDS):
            even = turn % 2 == 0
            half, other = (row, column) if even else (column, row)
            if self._tables is None:
                scratch = self._shift(turn, other)
            else:  # "clip" is the one mode that writes straight to `out`; nothing is outside
                np.take(self._tables[turn], other, out=scratch, mode="clip")
            _add_modulo(half, scratch, self._rows if even else self._columns)
        row *= self._columns
        row += column
        return row

    def _shift(self, turn: int, half: Indices) -> Indices:
        """What a round adds to one half, for values of the other."""
        modulus = self._rows if turn % 2 == 0 else self._columns
        mixed = _mix(half.view(np.uint64), self._words[turn])
        return (mixed % np.uint64(modulus)).view(np.int64)


def _argsort(words: _Words) -> Indices:
    """The stable order of words, of which two are hardly ever equal: others are found faster."""
    order = np.argsort(words)
    ordered = words[order]
    if (ordered[1:] == ordered[:-1]).any():
        order = np.argsort(words, kind="stable")
    return order


def _add_modulo(values: Indices, added: Indices, modulus: int) -> None:
    """Add in place, where both are below the modulus; spoils ``added``."""
    values += added
    np.subtract(values, modulus, out=added)
    # What was below the modulus is now a huge number without a sign, so the other is the least.
    least = values.view(np.uint64)
    np.minimum(least, added.view(np.uint64), out=least)


def _philox(count: int, key: tuple[int, int]) -> _Words:
    words = np.random.Philox(key=np.array(key, dtype=np.uint64)).random_raw(count)
    return np.asarray(words, dtype=np.uint64)


def _mix(values: _Words, word: np.uint64) -> _Words:
    """Scramble 64 bits; the products wrap around on purpose."""
    mixed = values * np.uint64(0x9E3779B97F4A7C15) + word
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(0xD6E8FEB86659FD93)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(32)
    return mixed
