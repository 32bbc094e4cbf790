"""The order of an epoch: a keyed permutation with random access and O(1) memory.

``EpochOrder.indices(start, stop)`` answers for any window without making the rest. Up to 65,536
examples the permutation is exact: the stable argsort of raw Philox words. Above, it is a Feistel
network over a x b >= n cells; values outside n walk on along their cycle until they are inside.
The result depends on (num_examples, seed, epoch) only; the tests freeze golden vectors.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from math import isqrt
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from torch_distinput.plan.position import Position

Indices = NDArray[np.int64]
_Words = NDArray[np.uint64]

LARGEST_EXACT = 65_536
_ROUNDS = 6
_WORD_LIMIT = 1 << 64


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochOrder:
    """The examples 0..num_examples-1 in the order of one epoch."""

    num_examples: int
    shuffle: bool = False
    seed: int = 0
    epoch: int = 0
    _key: tuple[int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Fold seed and epoch into the two words of a Philox key."""
        object.__setattr__(self, "_key", (self.seed % _WORD_LIMIT, self.epoch % _WORD_LIMIT))

    def indices(self, start: int, stop: int) -> Indices:
        """Return the indices of the positions ``start`` (inclusive) to ``stop`` (exclusive)."""
        stop = min(stop, self.num_examples)
        if not self.shuffle:
            return np.arange(start, stop, dtype=np.int64)
        if self.num_examples <= LARGEST_EXACT:
            return _exact(self.num_examples, self._key)[start:stop].copy()
        positions = np.arange(start, stop, dtype=np.uint64)
        return _feistel(positions, self.num_examples, self._key).view(np.int64)


class GlobalBatches(Protocol):
    """The global batches of one epoch, as indices."""

    @property
    def num_batches(self) -> int:
        """How many there are."""

    @property
    def num_dropped(self) -> int:
        """Examples left out at the end on request."""

    @property
    def size_counts(self) -> dict[int, int]:
        """How many batches there are of each size."""

    def size(self, batch: int) -> int:
        """Examples in a batch."""

    def indices(self, batch: int) -> Indices:
        """The examples of a batch, in order."""

    @property
    def digest(self) -> str:
        """Names an order that was given."""

    def after(self, position: Position) -> GlobalBatches:
        """Return the batches of what is not delivered yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UniformBatches:
    """Consecutive windows of an order; the last may be partial, unless it is dropped.

    ``first``: the place in the order at which batch 0 begins.
    """

    order: EpochOrder | GivenOrder
    global_batch_size: int
    drop_last: bool = False
    first: int = 0

    @property
    def num_batches(self) -> int:
        """Full batches, and the partial one if it is kept."""
        full, rest = divmod(self._num_examples, self.global_batch_size)
        return full + bool(rest and not self.drop_last)

    @property
    def num_dropped(self) -> int:
        """Examples in the partial batch that ``drop_last`` leaves out."""
        return self._num_examples % self.global_batch_size if self.drop_last else 0

    @property
    def size_counts(self) -> dict[int, int]:
        """How many batches there are of each size."""
        full, rest = divmod(self._num_examples, self.global_batch_size)
        return {self.global_batch_size: full, **({rest: 1} if self.num_batches > full else {})}

    def size(self, batch: int) -> int:
        """Examples in a batch."""
        start = batch * self.global_batch_size
        return min(self.global_batch_size, self._num_examples - start)

    def indices(self, batch: int) -> Indices:
        """The examples of a batch, in order."""
        start = self.first + batch * self.global_batch_size
        return self.order.indices(start, start + self.global_batch_size)

    @property
    def digest(self) -> str:
        """Names the order, if it was given."""
        return self.order.digest if isinstance(self.order, GivenOrder) else ""

    def after(self, position: Position) -> UniformBatches:
        """Return the batches of what is not delivered yet."""
        return replace(self, first=min(position.examples, self.order.num_examples))

    @property
    def _num_examples(self) -> int:
        return self.order.num_examples - self.first


@dataclass(frozen=True, slots=True)
class GivenOrder:
    """An order that a sampler of the user gave."""

    sequence: Indices

    @property
    def digest(self) -> str:
        """Names the order."""
        return blake2b(self.sequence.tobytes(), digest_size=8).hexdigest()

    @property
    def num_examples(self) -> int:
        """Length of the order; a sampler may repeat and leave out examples."""
        return len(self.sequence)

    def indices(self, start: int, stop: int) -> Indices:
        """Return the indices of the positions ``start`` (inclusive) to ``stop`` (exclusive)."""
        return self.sequence[start:stop]


@dataclass(frozen=True, slots=True)
class GivenBatches:
    """Global batches that a batch sampler of the user gave; their sizes may differ."""

    batches: tuple[Indices, ...]
    num_dropped: int = 0

    @property
    def num_batches(self) -> int:
        """How many there are."""
        return len(self.batches)

    @property
    def size_counts(self) -> dict[int, int]:
        """How many batches there are of each size."""
        return dict(Counter(len(batch) for batch in self.batches))

    def size(self, batch: int) -> int:
        """Examples in a batch."""
        return len(self.batches[batch])

    def indices(self, batch: int) -> Indices:
        """The examples of a batch, in order."""
        return self.batches[batch]

    @property
    def digest(self) -> str:
        """Names the order."""
        sizes = np.array([len(batch) for batch in self.batches])
        digest = blake2b(sizes.tobytes(), digest_size=8)
        for batch in self.batches:
            digest.update(batch.tobytes())
        return digest.hexdigest()

    def after(self, position: Position) -> GivenBatches:
        """Return the batches that are not delivered yet; each was one step."""
        return replace(self, batches=self.batches[position.steps :])


def permutation(num_items: int, *, key: tuple[int, ...]) -> Indices:
    """Return a keyed permutation of a few items, such as a window of a stream or a file list."""
    words = np.random.Philox(np.random.SeedSequence(key)).random_raw(num_items)
    return np.argsort(words, kind="stable")


@lru_cache(maxsize=4)
def _exact(num_examples: int, key: tuple[int, int]) -> Indices:
    philox = np.random.Philox(key=np.array(key, dtype=np.uint64))
    order = np.argsort(philox.random_raw(num_examples), kind="stable")
    order.flags.writeable = False  # shared by the cache
    return order


def _feistel(positions: _Words, num_examples: int, key: tuple[int, int]) -> _Words:
    """Permute positions below ``num_examples``: a bijection on a x b cells, with cycle walking."""
    columns = isqrt(num_examples - 1) + 1
    rows = -(-num_examples // columns)
    words = np.random.Philox(key=np.array(key, dtype=np.uint64)).random_raw(_ROUNDS)
    out = _network(positions, words, rows=rows, columns=columns)
    outside = np.flatnonzero(out >= num_examples)
    while outside.size:
        out[outside] = _network(out[outside], words, rows=rows, columns=columns)
        outside = outside[out[outside] >= num_examples]
    return out


def _network(cells: _Words, words: _Words, *, rows: int, columns: int) -> _Words:
    row, column = np.divmod(cells, np.uint64(columns))
    for turn, word in enumerate(words):
        if turn % 2 == 0:
            row = (row + _mix(column, word) % np.uint64(rows)) % np.uint64(rows)
        else:
            column = (column + _mix(row, word) % np.uint64(columns)) % np.uint64(columns)
    return row * np.uint64(columns) + column


def _mix(values: _Words, word: np.uint64) -> _Words:
    """Scramble 64 bits; the products wrap around on purpose."""
    mixed = values * np.uint64(0x9E3779B97F4A7C15) + word
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(0xD6E8FEB86659FD93)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(32)
    return mixed
