"""Mean and variance of float32 columns, from sums that are exact.

A float32 is an integer times 2^-149 and its square an integer times 2^-298, so their sums are
integers: nothing is rounded before ``finalize``, and no order of additions can show.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from operator import truediv
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from torch_distinput.preprocessing.states.exact_sums import MOST_REPEATS, MOST_ROWS, ExactSums

_LOWEST = -149  # the exponent of the last bit of a float32
# Words for the bits of the largest float32 (277) and of its square (554) in those units, for the
# number of values (63), and for a sign.
_NUM_WORDS, _NUM_WORDS_OF_SQUARES = 11, 20
_MAGNITUDE, _INFINITY = np.uint32(0x7FFFFFFF), 0x7F800000  # bits of a float32
_MOST_COLUMNS = 1024  # at a time, so that the scratch memory stays in the second level cache

_Float64 = NDArray[np.float64]
_Int64 = NDArray[np.int64]


class _Tally(NamedTuple):
    """Numbers of values (features,) by what they are."""

    num_finite: _Int64
    num_nan: _Int64
    num_positive_infinity: _Int64
    num_negative_infinity: _Int64


@final
class Moments:
    """Exact first and second moments of each of ``num_features`` columns.

    NaN and the infinities are counted apart, and are in no sum.

    Args:
        num_features: columns of the arrays to come, at least 1.
    """

    def __init__(self, num_features: int) -> None:
        if num_features < 1:
            raise ValueError(f"Moments need at least one feature; got num_features={num_features}.")
        self._num_features = num_features
        self._tally = _Tally(*(np.zeros(num_features, np.int64) for _ in _Tally._fields))
        self._sums = ExactSums(num_features, num_words=_NUM_WORDS, unit=_LOWEST)
        self._squares = ExactSums(num_features, num_words=_NUM_WORDS_OF_SQUARES, unit=2 * _LOWEST)
        # A block of rows is summed as an array of long rows: this many rows of features stand
        # side by side in each.
        self._repeats = -(-MOST_REPEATS // num_features)
        self._block_rows = MOST_ROWS * self._repeats
        # Small batches wait here for a whole block.
        self._waiting: NDArray[np.float32] | None = None
        self._num_waiting = 0

    @property
    def num_features(self) -> int:
        """Columns."""
        return self._num_features

    @property
    def count(self) -> _Int64:
        """Finite values seen in each column."""
        return self._flush().num_finite.copy()

    @property
    def num_nan(self) -> _Int64:
        """NaNs seen in each column."""
        return self._flush().num_nan.copy()

    @property
    def num_infinite(self) -> _Int64:
        """Infinities of either sign seen in each column."""
        tally = self._flush()
        return tally.num_positive_infinity + tally.num_negative_infinity

    def update(self, values: NDArray[np.float32]) -> None:
        """Add float32 rows of shape ``(rows, num_features)``."""
        if values.dtype != np.float32 or values.shape[1:] != (self._num_features,):
            raise ValueError(
                f"Moments take float32 arrays of shape (rows, {self._num_features}); got "
                f"{values.dtype} of shape {values.shape}. Cast or reshape the values first."
            )
        done = 0
        while done < len(values):
            rest = values[done : done + self._block_rows - self._num_waiting]
            if len(rest) == self._block_rows and rest.flags.c_contiguous:
                self._add_block(rest, self._block_rows)
            else:
                self._keep(rest)
            done += len(rest)

    def merge(self, other: Moments) -> None:
        """Add all that ``other`` has seen; ``other`` says the same as before."""
        if other._num_features != self._num_features:
            raise ValueError(
                f"Moments of {self._num_features} features cannot take those of "
                f"{other._num_features}: merge states of the same columns."
            )
        for mine, theirs in zip(self._flush(), other._flush(), strict=True):
            np.add(mine, theirs, out=mine)
        self._sums.merge(other._sums)
        self._squares.merge(other._squares)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the sums as words of integers ``(words, features)``, and the counts."""
        tally = self._flush()
        return {
            "sum": self._sums.to_words(),
            "sum_of_squares": self._squares.to_words(),
            **{name: count.astype("<i8") for name, count in tally._asdict().items()},
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Moments:
        """Build the state that ``to_arrays`` described."""
        moments = cls(arrays["num_finite"].size)
        for name, count in moments._tally._asdict().items():
            count[:] = arrays[name]
        moments._sums.set_words(arrays["sum"])
        moments._squares.set_words(arrays["sum_of_squares"])
        return moments

    def __reduce__(self) -> tuple[object, ...]:
        return Moments.from_arrays, (self.to_arrays(),)

    def finalize(
        self, *, ignore_nan: bool = False, for_float32: bool = False
    ) -> tuple[_Float64, _Float64]:
        """Return mean and variance (ddof 0) of each column: the exact ones, rounded once.

        ``for_float32``: rounded so that float32 of it is the exact one rounded once.

        As IEEE arithmetic has it, a NaN (unless ``ignore_nan``) or infinities of both signs make
        the mean NaN, infinities of one sign make it infinite, and each of them makes the
        variance NaN. Each column must have a value: the caller looks at the counts.
        """
        count, num_nan, above, below = self._flush()
        nans = np.zeros_like(num_nan) if ignore_nan else num_nan
        assert np.all(count + nans + above + below), "each column has a value"
        sums = self._sums.to_integers(), self._squares.to_integers()
        columns = zip(*sums, count.tolist(), strict=True)
        divide = _divide_to_odd if for_float32 else truediv
        found = [_compute_moments(*column, divide) for column in columns]
        mean, variance = np.array(found).T.copy()
        mean[above > 0] = np.inf
        mean[below > 0] = -np.inf
        mean[(nans > 0) | ((above > 0) & (below > 0))] = np.nan
        variance[nans + above + below > 0] = np.nan
        return mean, variance

    def _flush(self) -> _Tally:
        """The counts, when nothing waits any more."""
        if self._num_waiting:
            assert self._waiting is not None, "it holds the waiting rows"
            stop = -(-self._num_waiting // self._repeats) * self._repeats
            self._waiting[self._num_waiting : stop] = 0  # in no sum, and not counted
            self._add_block(self._waiting[:stop], self._num_waiting)
            self._num_waiting = 0
        return self._tally

    def _keep(self, rows: NDArray[np.float32]) -> None:
        if self._waiting is None:
            self._waiting = np.empty((self._block_rows, self._num_features), np.float32)
        self._waiting[self._num_waiting : self._num_waiting + len(rows)] = rows
        self._num_waiting += len(rows)
        if self._num_waiting == self._block_rows:
            self._flush()

    def _add_block(self, block: NDArray[np.float32], num_rows: int) -> None:
        """Add rows, of which those from ``num_rows`` on are zeros that fill the last lanes."""
        self._tally.num_finite[:] += num_rows
        lanes = block.reshape(-1, self._repeats * self._num_features)
        if self._repeats > 1:
            self._add_lanes(lanes, slice(0, self._num_features))
            return
        for start in range(0, self._num_features, _MOST_COLUMNS):
            features = slice(start, min(start + _MOST_COLUMNS, self._num_features))
            self._add_lanes(lanes[:, features], features)

    def _add_lanes(self, lanes: NDArray[np.float32], features: slice) -> None:
        """Add an array ``(rows, repeats x features)``."""
        magnitudes = lanes.view(np.uint32) & _MAGNITUDE
        highest = int(magnitudes.max())
        if highest >= _INFINITY:
            finite = self._set_apart(lanes, features)
            self._add_lanes(finite, features)
            return
        if not highest:
            return
        magnitudes -= np.uint32(1)  # a zero wraps around, and is not the smallest
        lowest = int(magnitudes.min()) + 1
        # All values are multiples of 2^start and below 2^stop.
        start, stop = max(lowest >> 23, 1) - 150, max(highest >> 23, 1) - 126
        values = lanes.astype(np.float64)
        squares = np.square(values)  # exact: 48 bits
        self._sums.add(values, start=start, stop=stop, features=features)
        self._squares.add(squares, start=2 * start, stop=2 * stop, features=features)

    def _set_apart(self, lanes: NDArray[np.float32], features: slice) -> NDArray[np.float32]:
        """Count what is not finite, and return the values with zeros in its place."""
        count, *others = (numbers[features] for numbers in self._tally)
        kinds = (np.isnan(lanes), lanes == np.inf, lanes == -np.inf)
        for numbers, kind in zip(others, kinds, strict=True):
            found = kind.reshape(-1, len(count)).sum(axis=0)
            np.add(numbers, found, out=numbers)
            np.subtract(count, found, out=count)
        return np.where(np.isfinite(lanes), lanes, np.float32(0))


def _compute_moments(
    total: int, squares: int, count: int, divide: Callable[[int, int], float]
) -> tuple[float, float]:
    """Of ``count`` values; Python divides integers of any length and rounds once."""
    if not count:
        return 0.0, 0.0  # overwritten: all values of the column were set apart
    mean = divide(total, count << -_LOWEST)
    return mean, divide(count * squares - total * total, count * count << -2 * _LOWEST)


def _divide_to_odd(numerator: int, denominator: int) -> float:
    """Round to odd: a quotient beside the middle of two float32 does not become the middle."""
    near = numerator / denominator
    top, bottom = near.as_integer_ratio()
    error = numerator * bottom - top * denominator
    is_even = not int(np.float64(near).view(np.int64)) & 1
    return math.nextafter(near, math.copysign(math.inf, error)) if error and is_even else near
