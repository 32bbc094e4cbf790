"""Sums of float64 columns that round nothing, at the speed of sums that do.

The true sum is kept as an integer in units of a power of two. Values are added up in float64
nevertheless: a block is split into *levels*, each of so few bits that float64 sums of its rows
are exact in any order, numpy's pairwise one included.
"""

from __future__ import annotations

from math import ldexp
from typing import final

import numpy as np
from numpy.typing import NDArray

MOST_ROWS = 64
"""Rows of an array to add."""
MOST_REPEATS = 1 << 9
"""Times that the features stand side by side in a row."""

_ROW_BITS = 6
_FLOAT_BITS = 53  # an integer of at most this many bits is exact in a float64
_WORD_BITS = 32
_LOW_WORD = (1 << _WORD_BITS) - 1
_MOST_ADDITIONS = 1 << 30  # of numbers below 2^32 to an int64, before it must hand its carry on


@final
class ExactSums:
    """Sums of ``num_features`` columns, as two's complement integers of ``num_words`` words.

    Args:
        num_features: columns.
        num_words: words of 32 bits, enough for the largest sum.
        unit: all values are multiples of 2^unit.
    """

    def __init__(self, num_features: int, *, num_words: int, unit: int) -> None:
        # The lowest word first. Words are wider than their 32 bits, so that carries can wait.
        self._words = np.zeros((num_words, num_features), np.int64)
        self._unit = unit
        self._num_additions = 0

    def add(self, values: NDArray[np.float64], *, start: int, stop: int, features: slice) -> None:
        """Add an array ``(rows, repeats x features)``, which is destroyed.

        Its values are multiples of 2^start, and none is beyond 2^stop.
        """
        high = None
        # The rows of one lane add up to at most 2^(stop + _ROW_BITS).
        while stop + _ROW_BITS - start > _FLOAT_BITS:
            unit = stop + _ROW_BITS - _FLOAT_BITS
            # At the anchor a float64 steps by 2^unit, so values are rounded to multiples of that.
            # Neither subtraction rounds.
            anchor = 1.5 * ldexp(1.0, unit + _FLOAT_BITS - 1)
            high = np.add(values, anchor, out=high)
            high -= anchor
            values -= high
            self._add_level(high, unit, features)
            stop = unit - 1
        self._add_level(values, start, features)

    def merge(self, other: ExactSums) -> None:
        """Add the sums of ``other``."""
        mine, theirs = self.carry(), other.carry()
        mine += theirs

    def carry(self) -> NDArray[np.int64]:
        """Words (words, features) in their one form: below 2^32, the highest one modulo 2^32."""
        words = self._words
        for i in range(len(words) - 1):
            words[i + 1] += words[i] >> _WORD_BITS
            words[i] &= _LOW_WORD
        self._num_additions = 0
        return words

    def to_words(self) -> NDArray[np.uint32]:
        """The integers' words ``(words, features)``, the lowest first."""
        return self.carry().astype("<u4")

    def set_words(self, words: NDArray[np.uint32]) -> None:
        """Become what ``to_words`` described."""
        self._words[:] = words

    def to_integers(self) -> list[int]:
        """The sum of each column in units of 2^unit."""
        columns = np.ascontiguousarray(self.to_words().T)
        return [int.from_bytes(column.tobytes(), "little", signed=True) for column in columns]

    def _add_level(self, level: NDArray[np.float64], unit: int, features: slice) -> None:
        """Add values whose rows have sums of at most 2^53 times 2^unit."""
        if self._num_additions >= _MOST_ADDITIONS:
            self.carry()
        self._num_additions += 1
        lanes = (level.sum(axis=0) * ldexp(1.0, -unit)).astype(np.int64)
        words = self._words[:, features]
        # At most 2^53 times MOST_REPEATS: 62 bits and a sign.
        sums = lanes.reshape(-1, words.shape[1]).sum(axis=0)
        word, shift = divmod(unit - self._unit, _WORD_BITS)
        low = (sums & _LOW_WORD) << shift
        high = ((sums >> _WORD_BITS) << shift) + (low >> _WORD_BITS)
        words[word] += low & _LOW_WORD
        words[word + 1] += high & _LOW_WORD
        words[word + 2] += high >> _WORD_BITS
