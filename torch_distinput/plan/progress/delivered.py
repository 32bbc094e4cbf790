"""What all workers have delivered, as their votes tell: enough to say where the epoch stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torch_distinput.plan.progress.end_of_data import Vote
from torch_distinput.plan.progress.position import Position, ResumePoint, StreamPosition

ResumePoints = tuple[ResumePoint, ...]
Counts = Sequence[int] | NDArray[np.int64]
"""One for each worker."""


class Progress(NamedTuple):
    """Where the workers stand after one step.

    Attributes:
        steps_done: steps of the layout that are over.
        batch: the global batch of the layout that the next step is of.
        rows: rows delivered by each worker since the layout began.
        files_touched: how many files of its own each worker has touched.
        resume_points: the places that each worker has told of, in order; perhaps ahead of the step.
    """

    steps_done: int
    batch: int
    rows: Counts
    files_touched: Counts
    resume_points: Sequence[ResumePoints]

    def to_position(self, before: Position, *, shared: bool) -> Position:
        """Return where the epoch stands, given where it was started.

        ``shared``: all workers read one stream.
        """
        rows = [int(number) for number in self.rows]
        streams = tuple(
            _resume_last(resume_points, self.batch, stream)
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


class DeliveryCounter:
    """Adds up what is delivered in an epoch. All workers keep the same one."""

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
        nothing = (0,) * num_workers
        self._rows: Counts = nothing if shared else before.rows
        self._files_touched: Counts = before.files_touched or nothing
        self._resume_points: list[ResumePoints] = [()] * len(before.streams)

    def add_round(self, votes: Sequence[Vote], num_steps: int) -> list[Progress]:
        """Note the steps agreed on in one round, and what the workers told in it."""
        told = zip(self._resume_points, votes[: len(self._resume_points)], strict=True)
        kept = tuple((*known, *vote.resume_points) for known, vote in told)
        counts = _make_columns([vote.counts for vote in votes], num_steps)
        files_touched = _make_columns([vote.files_touched for vote in votes], num_steps)
        rows = self._rows + np.cumsum(counts, axis=0)
        files_touched = np.maximum(
            self._files_touched, np.maximum.accumulate(files_touched, axis=0)
        )
        ends = range(self._steps_done + 1, self._steps_done + 1 + num_steps)
        batches = [steps_done // self._steps_per_batch for steps_done in ends]
        columns = zip(ends, batches, rows, files_touched, repeat(kept))
        after_steps = list(map(Progress._make, columns))
        if after_steps:
            self._rows, self._files_touched = rows[-1], files_touched[-1]
            self._steps_done += num_steps
        batch = self._steps_done // self._steps_per_batch
        self._resume_points = [_drop_passed(resume_points, batch) for resume_points in kept]
        return after_steps

    def add_step(self, count: int, num_touched: int, resume_point: ResumePoint | None) -> Progress:
        """Note a step of a single worker, which has nobody to vote with."""
        self._steps_done = steps_done = self._steps_done + 1
        self._rows = rows = (self._rows[0] + count,)
        self._files_touched = touched = (max(self._files_touched[0], num_touched),)
        kept, batch = self._resume_points[0], steps_done // self._steps_per_batch
        if resume_point is not None:
            kept = (*kept, resume_point)
            self._resume_points = [_drop_passed(kept, batch)]
        return Progress(steps_done, batch, rows, touched, (kept,))


def _make_columns(votes: Sequence[tuple[int, ...]], num_steps: int) -> NDArray[np.int64]:
    """The numbers of each step, in a row; 0 for a worker that has not so many."""
    matrix = np.zeros((len(votes), num_steps), dtype=np.int64)
    for row, numbers in zip(matrix, votes, strict=True):
        row[: len(numbers)] = numbers[:num_steps]
    return matrix.T


def _drop_passed(resume_points: ResumePoints, batch: int) -> ResumePoints:
    """The last one that is not after a batch, and those after it."""
    return resume_points[max(0, _count_passed(resume_points, batch) - 1) :]


def _resume_last(resume_points: ResumePoints, batch: int, stream: StreamPosition) -> StreamPosition:
    """What is to be read of a stream, from the last point on that is not after a batch."""
    passed = _count_passed(resume_points, batch)
    return resume_points[passed - 1].resume(stream) if passed else stream


def _count_passed(resume_points: ResumePoints, batch: int) -> int:
    """They come in order."""
    for number, resume_point in enumerate(resume_points):
        if resume_point.batch > batch:
            return number
    return len(resume_points)
