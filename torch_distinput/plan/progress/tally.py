"""Numbers of a step that the workers join when they vote: some are added up, of some the largest.

They travel together, once for all steps of a vote:

    worker 0    step 0: tokens 30, of source "a" 3, of "b" 1 | step 1: ...
    worker 1    step 0: tokens 25, of source "a" 2, of "b" 2 | step 1: ...
    joined      step 0: tokens 55, of source "a" 5, of "b" 3 | step 1: ...
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Tally(NamedTuple):
    """Numbers of one step; none stand for zeros.

    Attributes:
        sums: are added up.
        peaks: of these the largest counts.
    """

    sums: tuple[int, ...] = ()
    peaks: tuple[int, ...] = ()


NO_TALLY = Tally()


class TallySize(NamedTuple):
    """How many numbers there are of each kind."""

    num_sums: int = 0
    num_peaks: int = 0

    def encode(self, tallies: Sequence[Tally], num_steps: int) -> NDArray[np.int64]:
        """A worker's numbers as a vector; zeros for steps that it does not have."""
        matrix = np.zeros((num_steps, sum(self)), dtype=np.int64)
        for row, (sums, peaks) in zip(matrix, tallies, strict=False):
            row[: len(sums)] = sums
            row[self.num_sums : self.num_sums + len(peaks)] = peaks
        return matrix.ravel()

    def join(self, vectors: NDArray[np.int64]) -> list[Tally]:
        """The numbers of each step, from the vectors of all workers."""
        table = vectors.reshape(len(vectors), -1, sum(self))
        sums = table[:, :, : self.num_sums].sum(axis=0).tolist()
        peaks = table[:, :, self.num_sums :].max(axis=0).tolist()
        return [Tally(tuple(own), tuple(most)) for own, most in zip(sums, peaks, strict=True)]


NOTHING_TALLIED = TallySize()
