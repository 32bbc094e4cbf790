"""Quantiles of float32 values, from a histogram whose buckets only the values decide.

The bits of a float32, with the sign turned over, are an integer in the order of the values: its
*key*. A bucket holds the values whose keys agree in all but the lowest L bits, and L is the
smallest number that leaves at most ``MOST_BUCKETS`` buckets with a value in them.

Why no order of values shows: fewer values never have more buckets, so the L of a part is at most
the L of the whole. A state only drops a bit when it has too many buckets without, and then the
whole has too many as well. It ends at the L of the whole, however its parts were cut and merged;
and counts in buckets of L + 1 are sums of counts in buckets of L.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

MOST_BUCKETS = 131_072
"""Distinct values up to which quantiles are exact."""

_MOST_WAITING = 1 << 19  # values, to be sorted at once
_SIGN = np.uint32(1 << 31)

_Keys = NDArray[np.uint32]
_Counts = NDArray[np.int64]


@final
class Quantiles:
    """Counts of values in at most 131,072 buckets.

    Zeros of both signs are one value, infinities are ordinary values, and NaNs are only counted.
    """

    def __init__(self) -> None:
        self._dropped_bits = 0
        self._keys: _Keys = np.empty(0, np.uint32)  # without the dropped bits, ascending
        self._counts: _Counts = np.empty(0, np.int64)
        self._num_nan = 0
        self._waiting: NDArray[np.float32] | None = None
        self._num_waiting = 0

    @property
    def count(self) -> int:
        """Values seen that are not NaN."""
        self._flush()
        return int(self._counts.sum())

    @property
    def num_nan(self) -> int:
        """NaNs seen."""
        self._flush()
        return self._num_nan

    def update(self, values: NDArray[np.float32]) -> None:
        """Add float32 values of any shape."""
        if values.dtype != np.float32:
            raise ValueError(
                f"Quantiles take float32 arrays; got {values.dtype} of shape {values.shape}. "
                "Cast the values first."
            )
        flat = values.ravel(order="K")  # any order will do
        done = 0
        while done < len(flat):
            rest = flat[done : done + _MOST_WAITING - self._num_waiting]
            if len(rest) == _MOST_WAITING:
                self._add_values(rest)
            else:
                self._keep(rest)
            done += len(rest)

    def merge(self, other: Quantiles) -> None:
        """Add all that ``other`` has seen; ``other`` says the same as before."""
        self._flush()
        other._flush()
        self._num_nan += other._num_nan
        self._add_buckets(other._keys, other._counts, other._dropped_bits)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the buckets, ascending, and how many of the lowest bits their keys lack."""
        self._flush()
        return {
            "keys": self._keys.astype("<u4"),
            "counts": self._counts.astype("<i8"),
            "dropped_bits": np.array(self._dropped_bits, "<i8"),
            "num_nan": np.array(self._num_nan, "<i8"),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Quantiles:
        """Build the state that ``to_arrays`` described."""
        quantiles = cls()
        quantiles._keys = arrays["keys"].astype(np.uint32)
        quantiles._counts = arrays["counts"].astype(np.int64)
        quantiles._dropped_bits = int(arrays["dropped_bits"])
        quantiles._num_nan = int(arrays["num_nan"])
        return quantiles

    def __reduce__(self) -> tuple[object, ...]:
        return Quantiles.from_arrays, (self.to_arrays(),)

    def finalize(self, num_bins: int) -> NDArray[np.float32]:
        """Return ``num_bins - 1`` ascending boundaries; of fewer values, all but the last.

        Boundary i is the quantile i / num_bins of type 4: numpy's "interpolated_inverted_cdf".
        Its position among the values is exact. Between two neighbours it is interpolated in
        float64, three operations that round, and rounded to float32. Where a neighbour is
        infinite there is nothing between them, and the lower one is taken.

        With more than 131,072 distinct values each stands for its bucket: it keeps its first bits
        and is truncated towards zero. At least one value must have been seen.
        """
        if num_bins < 1:
            raise ValueError(f"Quantiles need at least one bin; got num_bins={num_bins}.")
        num_values = self.count
        assert num_values, "the caller looks at the count"
        values = self._find_values()
        if num_values < num_bins:
            return np.repeat(values, self._counts)[:-1]
        # Python's integers: num_values x num_bins may be long.
        positions = [divmod(num_values * i, num_bins) for i in range(1, num_bins)]
        ranks = np.array([rank for rank, _ in positions], np.int64)  # of the upper neighbours
        weights = np.array([rest / num_bins for _, rest in positions], np.float64)
        ends = np.cumsum(self._counts)
        lower = values[np.searchsorted(ends, ranks - 1, side="right")].astype(np.float64)
        upper = values[np.searchsorted(ends, ranks, side="right")].astype(np.float64)
        upper = np.where(np.isfinite(lower) & np.isfinite(upper), upper, lower)
        with np.errstate(invalid="ignore"):  # infinity less infinity
            boundaries = np.where(upper == lower, lower, lower + (upper - lower) * weights)
        return boundaries.astype(np.float32) + np.float32(0)  # not -0, to which tiny ones round

    def _find_values(self) -> NDArray[np.float32]:
        """The value of each bucket that is nearest to zero, ascending."""
        keys = self._keys << np.uint32(self._dropped_bits)
        low_bits = np.uint32((1 << self._dropped_bits) - 1)
        # A negative value is nearer to zero the higher its key is.
        bits = np.where(keys & _SIGN, keys ^ _SIGN, ~(keys | low_bits))
        return bits.view(np.float32) + np.float32(0)  # no -0.0

    def _keep(self, values: NDArray[np.float32]) -> None:
        if self._waiting is None:
            self._waiting = np.empty(_MOST_WAITING, np.float32)  # memory comes as it is filled
        self._waiting[self._num_waiting : self._num_waiting + len(values)] = values
        self._num_waiting += len(values)
        if self._num_waiting == _MOST_WAITING:
            self._flush()

    def _flush(self) -> None:
        if self._num_waiting:
            assert self._waiting is not None, "it holds the waiting values"
            num_waiting, self._num_waiting = self._num_waiting, 0
            self._add_values(self._waiting[:num_waiting])

    def _add_values(self, values: NDArray[np.float32]) -> None:
        nans = np.isnan(values)
        if nans.any():
            values = values[~nans]
            self._num_nan += len(nans) - len(values)
        bits = (values + np.float32(0)).view(np.uint32)  # -0.0 becomes 0.0
        # All bits of a negative number are turned over, and the sign of a positive one.
        keys = bits ^ ((bits.view(np.int32) >> 31).view(np.uint32) | _SIGN)
        keys >>= np.uint32(self._dropped_bits)
        keys.sort()
        more = _count_spare_bits(keys)
        keys >>= np.uint32(more)
        starts = _find_runs(keys)
        counts = np.diff(starts, append=len(keys))
        self._add_buckets(keys[starts], counts, self._dropped_bits + more)

    def _add_buckets(self, keys: _Keys, counts: _Counts, dropped_bits: int) -> None:
        most = max(dropped_bits, self._dropped_bits)
        mine = self._keys >> np.uint32(most - self._dropped_bits)
        keys = np.concatenate([mine, keys >> np.uint32(most - dropped_bits)])
        counts = np.concatenate([self._counts, counts])
        order = np.argsort(keys, kind="stable")  # two ascending runs: one pass
        keys, counts = _fold(keys[order], counts[order])
        more = _count_spare_bits(keys)
        if more:
            keys, counts = _fold(keys >> np.uint32(more), counts)
        self._keys, self._counts, self._dropped_bits = keys, counts, most + more


def _count_spare_bits(keys: _Keys) -> int:
    """How many bits ascending keys must drop to become few enough."""
    changes = keys[1:] ^ keys[:-1]  # without a bit left, two neighbours are in one bucket
    num_bits = 0
    while np.count_nonzero(changes) >= MOST_BUCKETS:
        changes >>= np.uint32(1)
        num_bits += 1
    return num_bits


def _fold(keys: _Keys, counts: _Counts) -> tuple[_Keys, _Counts]:
    """Ascending keys once each, with the sum of their counts."""
    starts = _find_runs(keys)
    return keys[starts], np.add.reduceat(counts, starts) if len(starts) else counts


def _find_runs(keys: _Keys) -> NDArray[np.int64]:
    """Where the ascending keys change, the first one included."""
    is_start = np.ones(len(keys), np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=is_start[1:])
    return np.flatnonzero(is_start)
