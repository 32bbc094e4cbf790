"""The weights of sources as whole numbers: what share of the order each of them gets, and when.

Weights are turned into fractions once, exactly as they are written (0.1 is a tenth). The order of
one share has a period, in which each source comes a whole number of times:

    weights (0.7, 0.2, 0.1)    a period of 10 examples, with 7, 2 and 1 of the sources

A period has at most LARGEST_PERIOD examples. Weights that would need more of them are rounded.

Between two points of a schedule the shares follow stairs, MOST_STAIRS at most. Each is of a period
of at most STAIR examples that is played once, or as often as it takes. Where points lie near each
other there are smaller ones, FEW_STAIRS between two of them, or fewer where there are many points.
What one stair rounds off, the next one makes up for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import final

LARGEST_PERIOD = 1 << 16
FEW_STAIRS = 1 << 6
MOST_STAIRS = 1 << 10
STAIR = 1 << 10
_UNIT = 1 << 40
"""Parts of an example in which the shares of stairs are counted."""
ByNumber = tuple[int, ...]
"""A number for each source."""


@final
@dataclass(frozen=True, slots=True)
class Stretch:
    """Examples of one share: a period that is played again and again.

    Attributes:
        first: the place in the order of its first example.
        before: how many examples of each source come before it.
        counts: how many of each source are in a period.
        length: examples in it; None if it does not end.
    """

    first: int
    before: ByNumber
    counts: ByNumber
    length: int | None

    def count_all(self) -> ByNumber:
        """How many examples of each source come before its end; it is of whole periods."""
        assert self.length is not None, "it ends"
        times = self.length // sum(self.counts)
        pairs = zip(self.before, self.counts, strict=True)
        return tuple(before + times * count for before, count in pairs)


@final
@dataclass(frozen=True, slots=True)
class Shares:
    """Which share of the order each source has, from which example on; linear in between.

    Attributes:
        points: examples of the order, from 0 on, each with a share for every source. The shares
            of a point are fractions of one; those of the last one stay.
    """

    points: tuple[tuple[int, tuple[Fraction, ...]], ...]

    @property
    def num_sources(self) -> int:
        """How many sources there are."""
        return len(self.points[0][1])

    @property
    def final(self) -> tuple[Fraction, ...]:
        """The shares after the last point."""
        return self.points[-1][1]

    @property
    def is_rounded(self) -> bool:
        """Whether a period long enough for the shares of some point would be too long."""
        return any(_find_denominator(shares) > LARGEST_PERIOD for _, shares in self.points)

    def list_stretches(
        self, first: int, before: ByNumber, left: Sequence[bool]
    ) -> tuple[Stretch, ...]:
        """The shares of the sources that are left, from an example of the order on.

        Where all that are left have a share of nothing, they have equal ones.
        """
        stretches: list[Stretch] = []
        for counts, length in self._list_periods(first, left):
            stretches.append(Stretch(first, before, counts, length))
            if length is not None:
                first, before = first + length, stretches[-1].count_all()
        return tuple(stretches)

    def _list_periods(
        self, first: int, left: Sequence[bool]
    ) -> Iterator[tuple[ByNumber, int | None]]:
        """The periods, each with the number of examples that it is played for."""
        climbs = sum(shares != later for (_, shares), (_, later) in pairwise(self.points))
        fewest = max(1, min(FEW_STAIRS, MOST_STAIRS // max(1, climbs)))
        for (start, shares), (stop, later) in pairwise(self.points):
            begin = max(start, first)
            if begin >= stop:
                continue
            if shares == later:
                yield from _hold(_renormalize(shares, left), stop - begin)
            else:
                largest = max(1, min(STAIR, (stop - start) // fewest))
                yield from _climb((start, shares), (stop, later), begin, left, largest)
        yield to_whole_numbers(_renormalize(self.final, left)), None


def make_shares(weights: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Return weights, of which one at least is not 0, as fractions of one."""
    total = sum(weights, Fraction())
    return tuple(weight / total for weight in weights)


def to_whole_numbers(shares: Sequence[Fraction]) -> ByNumber:
    """Return whole numbers with these shares, and a sum of at most LARGEST_PERIOD.

    They are exact, where that is possible; else rounded, but nothing to 0.
    """
    total = _find_denominator(shares)
    if total <= LARGEST_PERIOD:
        return tuple(int(share * total) for share in shares)
    return apportion(LARGEST_PERIOD, shares, least=[int(share > 0) for share in shares])


def apportion(
    total: int, wanted: Sequence[Fraction | int], least: Sequence[int] | None = None
) -> ByNumber:
    """Return whole numbers with a sum, as near to what is wanted as it may be.

    Each is rounded down, and what is missing goes to those that have lost most, the first of
    equals. (The method of the largest remainder.)

    Args:
        total: the sum.
        wanted: what is wanted, as parts of any whole.
        least: what each number is at least; else 0.
    """
    whole = sum(wanted)
    exact = [Fraction(total * part, whole) for part in wanted]
    lowest = [0] * len(exact) if least is None else least
    counts = [max(math.floor(part), low) for part, low in zip(exact, lowest, strict=True)]
    while (missing := total - sum(counts)) != 0:
        step = 1 if missing > 0 else -1
        lost = [
            (step * (count - part), number)
            for number, (part, count) in enumerate(zip(exact, counts, strict=True))
            if count + step >= lowest[number] and part
        ]
        counts[min(lost)[1]] += step
    return tuple(counts)


def _find_denominator(shares: Sequence[Fraction]) -> int:
    return math.lcm(*(share.denominator for share in shares))


def _renormalize(
    shares: Sequence[Fraction], left: Sequence[bool]
) -> tuple[Fraction, ...]:
    """The shares of those that are left."""
    own = [share * is_left for share, is_left in zip(shares, left, strict=True)]
    return make_shares(own if any(own) else [Fraction(int(is_left)) for is_left in left])


def _hold(shares: Sequence[Fraction], length: int) -> Iterator[tuple[ByNumber, int]]:
    """Equal shares for so many examples: whole periods, and a shorter one for the rest."""
    counts = to_whole_numbers(shares)
    rest = length % sum(counts)
    if length > rest:
        yield counts, length - rest
    if rest:
        yield apportion(rest, counts), rest


def _climb(
    start: tuple[int, Sequence[Fraction]],
    stop: tuple[int, Sequence[Fraction]],
    begin: int,
    left: Sequence[bool],
    largest: int,
) -> Iterator[tuple[ByNumber, int]]:
    """Stairs from one point to another; of each stair the shares are those of its middle."""
    (first, low), (last, high) = start, stop
    owed = [0] * len(left)
    for position, size, times in _list_stairs(begin, last, largest):
        way = Fraction(2 * (position - first) + size * times, 2 * (last - first))
        middle = [one + (two - one) * way for one, two in zip(low, high, strict=True)]
        units = apportion(_UNIT, _renormalize(middle, left))
        wanted = [
            max(0, size * unit + more // times) for unit, more in zip(units, owed, strict=True)
        ]
        counts = apportion(size, wanted)
        owed = [
            more + times * (size * unit - count * _UNIT)
            for more, unit, count in zip(owed, units, counts, strict=True)
        ]
        yield counts, size * times


def _list_stairs(begin: int, last: int, largest: int) -> Iterator[tuple[int, int, int]]:
    """Where each stair begins, the size of its period, and how often that is played."""
    times = -(-(last - begin) // (STAIR * MOST_STAIRS))
    while begin < last:
        size = min(largest, last - begin)
        often = min(times, (last - begin) // size)
        yield begin, size, often
        begin += size * often
