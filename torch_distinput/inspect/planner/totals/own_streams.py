"""An epoch in which each worker plays a stream of its own (FILE, OFF): W steps a batch.

A *round* is a batch of every worker, which are played side by side. A worker plays its pieces in
the order of rotation, so those with rows lie in at most two ranges of what it plays:

    3 workers, one replica each, batches of 3, 3 and 1 rows        step   0   1   2
                                                     worker 0           0   1   2
                                                     worker 1           1   2   0
                                                     worker 2           -   0   -     rotated by 2

Rounds are alike as long as no worker ends, and while a full batch has rows in every step all steps
are delivered. So only the last rounds are looked at one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torch_distinput.inspect.planner.totals.epoch_totals import (
    NEVER,
    EpochTotals,
    Integers,
    Mask,
    Pieces,
)
from torch_distinput.options import Rebatch

Ranges = tuple[tuple[Integers, Integers], ...]
"""Beginnings and ends, of each worker; in pieces or steps of what it plays in a round."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Rounds:
    """Consecutive rounds that are alike.

    Attributes:
        first: the first of them.
        count: how many there are.
        delivered: which steps of each are delivered.
    """

    first: int
    count: int
    delivered: Mask

    @property
    def steps(self) -> int:
        """Steps of one round."""
        return int(self.delivered.sum())


def total_own_streams(pieces: Pieces, lengths: Integers, *, drop_last: bool) -> EpochTotals:
    """Count what each worker gets.

    Args:
        pieces: how batches are cut.
        lengths: rows of each worker's stream.
        drop_last: leave out each stream's last partial batch.
    """
    size = pieces.full_size
    played = lengths // size * size if drop_last else lengths
    rounds = _list_rounds(pieces, played)
    steps = sum(alike.count * alike.steps for alike in rounds)
    filled = played // size * pieces.count_filled(size) + _count_filled(pieces, played % size)
    return EpochTotals(
        steps=steps,
        num_dropped=int((lengths - played).sum()),
        examples=played,
        zero_row_batches=steps * pieces.per_worker - filled,
        first_zero_row_step=_find_first_zero(pieces, played, rounds),
        zero_row_steps=_count_zero_row_steps(pieces, played, rounds),
    )


def _sizes(pieces: Pieces, played: Integers, number: int) -> Integers:
    """The size of a batch of each worker."""
    size = pieces.full_size
    return np.clip(played - number * size, 0, size)


def _list_rounds(pieces: Pieces, played: Integers) -> list[_Rounds]:
    """All rounds, in order: found from the end, until full batches alone fill every step."""
    size = pieces.full_size
    full, ends = played // size, -(-played // size)
    borders = np.unique(np.concatenate([full, ends, np.zeros(1, dtype=np.int64)]))
    found: list[_Rounds] = []
    for first, stop in zip(borders[-2::-1].tolist(), borders[:0:-1].tolist(), strict=True):
        sizes = _sizes(pieces, played, first)
        is_full = sizes == size
        if _cover(pieces, _filled_steps(pieces, np.where(is_full, sizes, 0))).all():
            # In the rounds before this one they were full too.
            found.append(_Rounds(first=0, count=stop, delivered=np.ones(len(played), dtype=bool)))
            break
        delivered = _cover(pieces, _filled_steps(pieces, sizes))
        found.append(_Rounds(first=first, count=stop - first, delivered=delivered))
    return found[::-1]


def _filled_pieces(pieces: Pieces, sizes: Integers) -> Ranges:
    """Where in what it plays each worker has pieces with rows."""
    in_sync, first, full = pieces.in_sync, pieces.first, pieces.full_size
    if pieces.rebatch is Rebatch.CYCLE and full >= in_sync:
        count = _count_filled(pieces, sizes)
        return ((np.zeros_like(count), count),)
    # The filled ones are the first ones of the batch; of cycle's, those that rows are left for.
    filled = sizes if pieces.rebatch is Rebatch.CYCLE else pieces.count_filled(sizes)
    last = full if pieces.rebatch is Rebatch.CYCLE else filled
    head = np.clip(np.minimum(filled, last - first), 0, None)
    return (np.zeros_like(head), head), (in_sync - first, in_sync - first + filled - head)


def _count_filled(pieces: Pieces, sizes: Integers) -> Integers:
    """How many pieces of a batch of each worker have rows."""
    if pieces.rebatch is not Rebatch.CYCLE:
        filled: Integers = pieces.count_filled(sizes)
        return filled
    size, longer = divmod(pieces.full_size, pieces.in_sync)
    if not size:
        return sizes
    # The sizes of a full batch, from the worker's first piece on and over the end, until none is
    # left of its rows.
    first = pieces.first
    before = pieces.bound(pieces.full_size, first)
    wraps = sizes > pieces.full_size - before
    row = before + sizes - wraps * pieces.full_size
    in_longer = row <= longer * (size + 1)
    piece = np.where(in_longer, -(-row // (size + 1)), longer - (longer * (size + 1) - row) // size)
    return np.where(sizes > 0, piece + wraps * pieces.in_sync - first, 0)


def _filled_steps(pieces: Pieces, sizes: Integers) -> Ranges:
    """The steps in which each worker has a row."""
    return _to_steps(pieces, _filled_pieces(pieces, sizes))


def _zero_row_steps(pieces: Pieces, sizes: Integers) -> Ranges:
    """The steps in which a replica of each worker has none."""
    ranges, gaps = _filled_pieces(pieces, sizes), []
    begin = np.zeros_like(sizes)
    for start, stop in ranges:
        gaps.append((begin, start))
        begin = stop
    gaps.append((begin, np.full_like(sizes, pieces.in_sync)))
    return _to_steps(pieces, tuple(gaps))


def _to_steps(pieces: Pieces, ranges: Ranges) -> Ranges:
    """Of pieces the steps that they lie in; no step of an empty range."""
    return tuple(
        (start // pieces.per_worker, np.where(stop > start, -(-stop // pieces.per_worker), 0))
        for start, stop in ranges
    )


def _cover(pieces: Pieces, ranges: Ranges) -> Mask:
    """The steps of a round that lie in a range of any worker."""
    change = np.zeros(pieces.num_workers + 1, dtype=np.int64)
    for start, stop in ranges:
        some = stop > start
        change += np.bincount(start[some], minlength=len(change))
        change -= np.bincount(stop[some], minlength=len(change))
    return np.cumsum(change[:-1]) > 0


def _find_first_zero(pieces: Pieces, played: Integers, rounds: list[_Rounds]) -> Integers:
    """The step in which a replica of each worker has no row for the first time, or -1."""
    first_zero = np.full(len(played), NEVER, dtype=np.int64)
    before = 0
    for alike in rounds:
        if alike.delivered.all():
            _look_among_full(pieces, played, alike, before, first_zero)
        else:
            sizes = _sizes(pieces, played, alike.first)
            step = _first_within(_zero_row_steps(pieces, sizes), alike.delivered)
            is_new = (first_zero == NEVER) & (step != NEVER)
            first_zero[is_new] = before + step[is_new]
        before += alike.count * alike.steps
    return first_zero


def _look_among_full(
    pieces: Pieces, played: Integers, alike: _Rounds, before: int, first_zero: Integers
) -> None:
    """Look at rounds of which every step is delivered; workers may end in any of them."""
    size, num_workers = pieces.full_size, pieces.num_workers
    full = played // size
    stop, first = alike.first + alike.count, np.full_like(full, alike.first)
    everything = np.ones(num_workers, dtype=bool)
    for number, sizes in (
        (first, np.clip(played - first * size, 0, size)),
        (np.maximum(full, first), np.where(full >= first, played % size, 0)),
        (np.maximum(full + 1, first), np.zeros_like(full)),
    ):
        step = _first_within(_zero_row_steps(pieces, sizes), everything)
        is_new = (first_zero == NEVER) & (step != NEVER) & (number < stop)
        first_zero[is_new] = (before + (number - alike.first) * num_workers + step)[is_new]


def _first_within(ranges: Ranges, delivered: Mask) -> Integers:
    """The first delivered step of each worker's ranges, counted among those delivered, or -1."""
    num_steps = len(delivered)
    numbers = np.where(delivered, np.arange(num_steps), num_steps)
    following = np.append(np.minimum.accumulate(numbers[::-1])[::-1], num_steps)
    found = np.full(num_steps, num_steps, dtype=np.int64)
    for start, stop in ranges:
        step = following[np.minimum(start, num_steps)]
        found = np.minimum(found, np.where(step < stop, step, num_steps))
    place = np.append(np.cumsum(delivered) - 1, NEVER)
    return place[found]


def _count_zero_row_steps(pieces: Pieces, played: Integers, rounds: list[_Rounds]) -> int:
    """The steps in which any replica has no row: all of them from the end of one worker on."""
    size = pieces.full_size
    all_full, one_ended = int((played // size).min()), int((-(-played // size)).min())
    count = 0
    if pieces.count_filled(size) < pieces.in_sync:
        count += all_full * pieces.num_workers
    for alike in rounds:
        after = max(0, alike.first + alike.count - max(alike.first, one_ended))
        count += after * alike.steps
        if alike.first <= all_full < min(one_ended, alike.first + alike.count):
            zero = _cover(pieces, _zero_row_steps(pieces, _sizes(pieces, played, all_full)))
            count += int((zero & alike.delivered).sum())
    return count
