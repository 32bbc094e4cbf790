"""Who reads each part of files that all workers share: parts without own rows are passed over.

The pieces of a batch lie in the order of the workers, so those of a part do:

    rows      0       4       8       12      16         batches of 8 rows, 4 workers
    workers   0 0 1 1 2 2 3 3 0 0 1 1 2 2 3 3
    part            |-----------|                        rows 3 to 8: workers 1, 2, 3, 0

A last batch that is partial is cut into other pieces, perhaps for more workers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torch_distinput.inspect.planner.totals.epoch_totals import Integers, Mask, Pieces


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Neighbours:
    """Workers that read each part, one after another and round the end.

    Attributes:
        first: the first worker.
        last: behind the last one; ``first`` where nobody reads it.
        among: how many workers have rows of a batch.
    """

    first: Integers
    last: Integers
    among: int

    def sum_over(self, values: Integers, num_workers: int) -> Integers:
        """Give each worker the values of the parts that it reads."""
        change = np.zeros(2 * self.among + 1, dtype=np.int64)
        np.add.at(change, self.first, values)
        np.add.at(change, self.last, -values)
        total = np.zeros(num_workers, dtype=np.int64)
        total[: self.among] = np.cumsum(change[:-1]).reshape(2, self.among).sum(axis=0)
        return total

    def holds(self, worker: Integers | int) -> Mask:
        """Of each part whether a worker is among its readers; or of one, of each worker."""
        is_read = np.zeros(np.broadcast(self.first, worker).shape, dtype=np.bool_)
        for number in (worker, worker + self.among):
            is_read |= (self.first <= number) & (number < self.last)
        return is_read & (np.asarray(worker) < self.among)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Readers:
    """Who reads each part, in the order of the stream.

    Attributes:
        num_workers: workers.
        in_full: those who need rows of full batches.
        in_partial: those who need rows of a partial one at the end.
    """

    num_workers: int
    in_full: _Neighbours
    in_partial: _Neighbours

    def sum_over(self, values: Integers) -> Integers:
        """Give each worker the values of the parts that it reads, each once."""
        total = self.in_full.sum_over(values, self.num_workers)
        total += self.in_partial.sum_over(values, self.num_workers)
        workers = np.arange(self.num_workers)
        for part in np.flatnonzero(self._has_both).tolist():  # one at most
            both = self._of_part(self.in_full, part).holds(workers)
            both &= self._of_part(self.in_partial, part).holds(workers)
            total -= both * values[part]
        return total

    def parts_of(self, worker: int) -> Integers:
        """The numbers of the parts that a worker reads, in the order of the stream."""
        return np.flatnonzero(self.in_full.holds(worker) | self.in_partial.holds(worker))

    @property
    def _has_both(self) -> Mask:
        in_full, in_partial = self.in_full, self.in_partial
        return (in_full.last > in_full.first) & (in_partial.last > in_partial.first)

    def _of_part(self, readers: _Neighbours, part: int) -> _Neighbours:
        one = slice(part, part + 1)
        return _Neighbours(first=readers.first[one], last=readers.last[one], among=readers.among)


def find_readers(pieces: Pieces, begins: Integers, ends: Integers, stop: int) -> Readers:
    """Say who needs rows of each part.

    Args:
        pieces: how batches are cut.
        begins: the row with which each part begins.
        ends: the row after its last one; no part behind ``stop`` is read.
        stop: the row after the last one that is delivered.
    """
    border = stop // pieces.full_size * pieces.full_size
    return Readers(
        num_workers=pieces.num_workers,
        in_full=_find_neighbours(
            pieces, pieces.full_size, np.minimum(begins, border), np.minimum(ends, border)
        ),
        in_partial=_find_neighbours(
            pieces, stop - border, np.maximum(begins - border, 0), np.maximum(ends - border, 0)
        ),
    )


def _find_neighbours(pieces: Pieces, size: int, begins: Integers, ends: Integers) -> _Neighbours:
    """Who needs rows of parts of a stream that is cut into batches of one size."""
    starts = pieces.bound(size, np.arange(pieces.num_workers + 1) * pieces.per_worker)
    among = max(1, int(np.count_nonzero(np.diff(starts))))
    length, last_row = max(1, size), np.maximum(0, ends - 1)
    first = np.searchsorted(starts[: among + 1], begins % length, side="right") - 1
    last = np.searchsorted(starts[: among + 1], last_row % length, side="right")
    last += (last_row // length - begins // length) * among
    is_read = ends > begins
    first = np.where(is_read, first, 0)
    last = np.where(is_read, np.minimum(last, first + among), 0)
    return _Neighbours(first=first, last=last, among=among)
