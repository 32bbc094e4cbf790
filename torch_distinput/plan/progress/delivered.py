"""What all workers have delivered, as their votes tell: enough to say where the epoch stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torch_distinput.plan.progress.end_of_data import Vote
from torch_distinput.plan.progress.position import Position, ResumePoint, StreamPosition

ResumePoints = tuple[ResumePoint, ...]


class Progress(NamedTuple):
    """Where the workers stand after one step.

    Attributes:
        steps_done: steps of the grid that are over.
        batch: the global batch of the grid that the next step is of.
        rows: rows delivered by each worker since the grid began.
        files_touched: how many files of its own lane each worker has touched.
        resume_points: the places that each worker has told of, in order; perhaps ahead of the step.
    """

    steps_done: int
    batch: int
    rows: Sequence[int] | NDArray[np.int64]
    files_touched: Sequence[int] | NDArray[np.int64]
    resume_points: Sequence[ResumePoints]

    def position(self, before: Position, *, shared: bool) -> Position:
        """Where the epoch stands, given where it was started.

        ``shared``: all workers read one stream.
        """
        rows = [int(number) for number in self.rows]
        streams = tuple(
            _last(resume_points, self.batch, stream)
            for stream, resume_points in zip(before.streams, self.resume_points, strict=True)
        )
        return replace(
            before,
            steps_done=self.steps_done,
            rows=(sum(rows) + before.rows[0],) if shared else tuple(rows),
            files_touched=()
            if shared
            else tuple(int(num_touched) for num_touched in self.files_touched),
            streams=streams,
        )


class Ledger:
    """Adds up the votes of one epoch. All workers keep the same one."""

    def __init__(
        self, before: Position, num_workers: int, *, shared: bool, steps_per_batch: int
    ) -> None:
        """Start where the epoch is started.

        Args:
            before: the position there.
            num_workers: how many vote.
            shared: all of them read one stream; worker 0 tells its places for all.
            steps_per_batch: steps that one batch is played in.
        """
        self._steps_per_batch = steps_per_batch
        self._steps_done = before.steps_done
        zeros = np.zeros(num_workers, dtype=np.int64)
        self._rows = zeros if shared else np.array(before.rows, dtype=np.int64)
        self._files_touched = np.array(before.files_touched or zeros, dtype=np.int64)
        self._resume_points: list[ResumePoints] = [()] * len(before.streams)

    def enter(
        self, votes: Sequence[Vote], news: Sequence[ResumePoints], num_steps: int
    ) -> list[Progress]:
        """Note the steps agreed on in one round, and what the workers told in it."""
        told = zip(self._resume_points, news[: len(self._resume_points)], strict=True)
        kept = tuple((*known, *new) for known, new in told)
        rows = self._rows + np.cumsum(_columns([vote.counts for vote in votes], num_steps), axis=0)
        files_touched = _columns([vote.files_touched for vote in votes], num_steps)
        files_touched = np.maximum(
            self._files_touched, np.maximum.accumulate(files_touched, axis=0)
        )
        after_steps = [
            Progress(
                steps_done,
                steps_done // self._steps_per_batch,
                rows[step],
                files_touched[step],
                kept,
            )
            for step, steps_done in enumerate(
                range(self._steps_done + 1, self._steps_done + 1 + num_steps)
            )
        ]
        if after_steps:
            self._steps_done, self._rows, self._files_touched = (
                after_steps[-1].steps_done,
                rows[-1],
                files_touched[-1],
            )
        batch = self._steps_done // self._steps_per_batch
        self._resume_points = [_not_passed(resume_points, batch) for resume_points in kept]
        return after_steps


class OwnLedger:
    """The same for a single worker, which has nobody to vote with: a step at a time."""

    def __init__(self, before: Position, *, shared: bool, steps_per_batch: int) -> None:
        """Start where the epoch is started."""
        self._steps_per_batch = steps_per_batch
        self._steps_done = before.steps_done
        self._row = 0 if shared else before.rows[0]
        self._num_touched = max(before.files_touched, default=0)
        self._resume_points: ResumePoints = ()

    def enter(self, count: int, num_touched: int, resume_point: ResumePoint | None) -> Progress:
        """Note a step."""
        self._steps_done += 1
        self._row += count
        self._num_touched = max(self._num_touched, num_touched)
        batch = self._steps_done // self._steps_per_batch
        kept = self._resume_points if resume_point is None else (*self._resume_points, resume_point)
        self._resume_points = _not_passed(kept, batch)
        return Progress(self._steps_done, batch, (self._row,), (self._num_touched,), (kept,))


def _columns(votes: Sequence[tuple[int, ...]], num_steps: int) -> NDArray[np.int64]:
    """The numbers of each step, in a row; 0 for a worker that has not so many."""
    matrix = np.zeros((len(votes), num_steps), dtype=np.int64)
    for row, numbers in zip(matrix, votes, strict=True):
        row[: len(numbers)] = numbers[:num_steps]
    return matrix.T


def _not_passed(resume_points: ResumePoints, batch: int) -> ResumePoints:
    """The last bookmark that is not after a batch, and those after it."""
    return resume_points[max(0, _num_passed(resume_points, batch) - 1) :]


def _last(resume_points: ResumePoints, batch: int, stream: StreamPosition) -> StreamPosition:
    """What is to be read of a stream from the last bookmark on that is not after a batch."""
    passed = _num_passed(resume_points, batch)
    return resume_points[passed - 1].position(stream) if passed else stream


def _num_passed(resume_points: ResumePoints, batch: int) -> int:
    return sum(resume_point.batch <= batch for resume_point in resume_points)
