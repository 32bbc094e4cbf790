"""Moments of columns whose shape shows with the first row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from torch_distinput.preprocessing.states.moments import Moments


@final
class ColumnMoments:
    """Exact moments for each place of rows of one shape; of none until a row has come."""

    def __init__(self) -> None:
        self._shape: tuple[int, ...] = ()
        self._moments: Moments | None = None

    @property
    def num_seen(self) -> int:
        """The fewest values that a place has got, NaN not counted; 0 before the first row."""
        if self._moments is None:
            return 0
        return int((self._moments.count + self._moments.num_infinite).min())

    @property
    def num_nan(self) -> int:
        """NaNs in all places."""
        return 0 if self._moments is None else int(self._moments.num_nan.sum())

    def update(self, values: NDArray[np.float32]) -> None:
        """Add float32 rows ``(rows, ...)``.

        Raises:
            ValueError: for rows of another shape than before.
        """
        shape = values.shape[1:]
        num_features = int(np.prod(shape))
        if not len(values) or not num_features:
            return
        self._expect(shape).update(values.reshape(-1, num_features))

    def merge(self, other: ColumnMoments) -> None:
        """Add all that another state has seen."""
        if other._moments is not None:
            self._expect(other._shape).merge(other._moments)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the shape and the sums."""
        if self._moments is None:
            return {}
        return {"shape": np.array(self._shape, "<i8"), **self._moments.to_arrays()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> ColumnMoments:
        """Build the state that ``to_arrays`` described."""
        state = cls()
        if "shape" in arrays:
            state._shape = tuple(arrays["shape"].tolist())
            state._moments = Moments.from_arrays(arrays)
        return state

    def finalize(
        self, *, ignore_nan: bool = False, for_float32: bool = False
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean and variance, of the shape of a row, each rounded once."""
        assert self._moments is not None, "a row has come"
        mean, variance = self._moments.finalize(ignore_nan=ignore_nan, for_float32=for_float32)
        return mean.reshape(self._shape), variance.reshape(self._shape)

    def _expect(self, shape: tuple[int, ...]) -> Moments:
        if self._moments is None:
            self._shape = shape
            self._moments = Moments(int(np.prod(shape)))
        if shape != self._shape:
            msg = (
                f"Expected means for places of shape {self._shape}, as in the rows before, got "
                f"rows with places of shape {shape}. Batches need one shape behind dimension 0."
            )
            raise ValueError(msg)
        return self._moments
