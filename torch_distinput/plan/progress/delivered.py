"""What all workers have delivered, as their votes tell: enough to say where the epoch stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torch_distinput.plan.progress.end_of_data import Vote
from torch_distinput.plan.progress.position import Bookmark, Position, StreamPosition

Bookmarks = tuple[Bookmark, ...]


class Standing(NamedTuple):
    """Where the workers stand after one step.

    Attributes:
        rounds: steps of the grid that are over.
        batch: the global batch of the grid that the next step is of.
        rows: rows delivered by each worker since the grid began.
        reaches: how many files of its own lane each worker has touched.
        bookmarks: the places that each worker has told of, in order; perhaps ahead of the step.
    """

    rounds: int
    batch: int
    rows: Sequence[int] | NDArray[np.int64]
    reaches: Sequence[int] | NDArray[np.int64]
    bookmarks: Sequence[Bookmarks]

    def position(self, before: Position, *, shared: bool) -> Position:
        """Where the epoch stands, given where it was started.

        ``shared``: all workers read one stream.
        """
        rows = [int(number) for number in self.rows]
        streams = tuple(
            _last(bookmarks, self.batch, stream)
            for stream, bookmarks in zip(before.streams, self.bookmarks, strict=True)
        )
        return replace(
            before,
            rounds=self.rounds,
            rows=(sum(rows) + before.rows[0],) if shared else tuple(rows),
            reaches=() if shared else tuple(int(reach) for reach in self.reaches),
            streams=streams,
        )


class Ledger:
    """Adds up the votes of one epoch. All workers keep the same one."""

    def __init__(
        self, before: Position, num_workers: int, *, shared: bool, spread: int
    ) -> None:
        """Start where the epoch is started.

        Args:
            before: the position there.
            num_workers: how many vote.
            shared: all of them read one stream; worker 0 tells its places for all.
            spread: steps that one batch is played in.
        """
        self._spread = spread
        self._rounds = before.rounds
        zeros = np.zeros(num_workers, dtype=np.int64)
        self._rows = zeros if shared else np.array(before.rows, dtype=np.int64)
        self._reaches = np.array(before.reaches or zeros, dtype=np.int64)
        self._bookmarks: list[Bookmarks] = [()] * len(before.streams)

    def enter(
        self, votes: Sequence[Vote], news: Sequence[Bookmarks], num_steps: int
    ) -> list[Standing]:
        """Note the steps agreed on in one round, and what the workers told in it."""
        told = zip(self._bookmarks, news[: len(self._bookmarks)], strict=True)
        kept = tuple((*known, *new) for known, new in told)
        rows = self._rows + np.cumsum(_columns([vote.counts for vote in votes], num_steps), axis=0)
        reaches = _columns([vote.reaches for vote in votes], num_steps)
        reaches = np.maximum(self._reaches, np.maximum.accumulate(reaches, axis=0))
        standings = [
            Standing(rounds, rounds // self._spread, rows[step], reaches[step], kept)
            for step, rounds in enumerate(range(self._rounds + 1, self._rounds + 1 + num_steps))
        ]
        if standings:
            self._rounds, self._rows, self._reaches = standings[-1].rounds, rows[-1], reaches[-1]
        batch = self._rounds // self._spread
        self._bookmarks = [_not_passed(bookmarks, batch) for bookmarks in kept]
        return standings


class OwnLedger:
    """The same for a single worker, which has nobody to vote with: a step at a time."""

    def __init__(self, before: Position, *, shared: bool, spread: int) -> None:
        """Start where the epoch is started."""
        self._spread = spread
        self._rounds = before.rounds
        self._row = 0 if shared else before.rows[0]
        self._reach = max(before.reaches, default=0)
        self._bookmarks: Bookmarks = ()

    def enter(self, count: int, reach: int, bookmark: Bookmark | None) -> Standing:
        """Note a step."""
        self._rounds += 1
        self._row += count
        self._reach = max(self._reach, reach)
        batch = self._rounds // self._spread
        kept = self._bookmarks if bookmark is None else (*self._bookmarks, bookmark)
        self._bookmarks = _not_passed(kept, batch)
        return Standing(self._rounds, batch, (self._row,), (self._reach,), (kept,))


def _columns(votes: Sequence[tuple[int, ...]], num_steps: int) -> NDArray[np.int64]:
    """The numbers of each step, in a row; 0 for a worker that has not so many."""
    matrix = np.zeros((len(votes), num_steps), dtype=np.int64)
    for row, numbers in zip(matrix, votes, strict=True):
        row[: len(numbers)] = numbers[:num_steps]
    return matrix.T


def _not_passed(bookmarks: Bookmarks, batch: int) -> Bookmarks:
    """The last bookmark that is not after a batch, and those after it."""
    return bookmarks[max(0, _num_passed(bookmarks, batch) - 1) :]


def _last(bookmarks: Bookmarks, batch: int, stream: StreamPosition) -> StreamPosition:
    """What is to be read of a stream from the last bookmark on that is not after a batch."""
    passed = _num_passed(bookmarks, batch)
    return bookmarks[passed - 1].position(stream) if passed else stream


def _num_passed(bookmarks: Bookmarks, batch: int) -> int:
    return sum(bookmark.batch <= batch for bookmark in bookmarks)
