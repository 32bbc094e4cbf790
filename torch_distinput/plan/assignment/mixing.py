"""Which source gives each example of a mixture: arithmetic, the same on all workers.

In any beginning of a stretch of n examples a source with the share w has had floor(n w) or
ceil(n w) of them. So each of its examples has a window of places that it may take:

    share 2/5     example 0 in places 0 1 2, example 1 in places 2 3 4, and so on

Place by place, of the examples whose window has opened the one whose window closes first is taken,
of the first source among equals. If there is any order that keeps all windows, this one does
(earliest deadline first); and there is one, because giving each source w of every place would keep
them. When a period is over, all windows close: the next period is the same again.

    weights 3, 2, 1    a b a b a c | a b a b a c | ...

A source of known length is *found ended* at the first place that it has no example for:

    "first"     there the epoch ends
    "all"       there it falls out. From that place on the others share anew what it had
    "repeat"    there it begins again. The epoch ends with the last example of the first pass of
                the source that takes longest

Where shares are of tokens, and an example tells its length only when it is read, the next example
is of the source that has had the fewest tokens for its share (:class:`TokenTurns`).
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import final

import numpy as np
from numpy.typing import NDArray

from torch_distinput.plan.assignment.shares import ByNumber, Shares, Stretch

Numbers = NDArray[np.int64]
_PARTS = 1 << 32
"""Parts of a token in which dues are counted, so that a share is off by less than one of them."""
FIRST, ALL, REPEAT = "first", "all", "repeat"
STOPS = (FIRST, ALL, REPEAT)


@final
@dataclass(frozen=True, slots=True)
class Period:
    """The order of sources in one period.

    Attributes:
        sources: the source of each place.
        ranks: how many examples of that source come before, in the period.
        places: for each source its places.
    """

    sources: Numbers
    ranks: Numbers
    places: tuple[Numbers, ...]


@lru_cache(maxsize=128)
def make_period(counts: ByNumber) -> Period:
    """Order so many examples of each source."""
    size = sum(counts)
    waiting = [(0, source) for source, count in enumerate(counts) if count]  # when windows open
    ready: list[tuple[int, int]] = []  # when they close
    ranks = [0] * len(counts)
    sources = np.empty(size, dtype=np.int64)
    for place in range(size):
        while waiting and waiting[0][0] <= place:
            source = heapq.heappop(waiting)[1]
            heapq.heappush(ready, (-(-(ranks[source] + 1) * size // counts[source]), source))
        source = heapq.heappop(ready)[1]
        sources[place] = source
        ranks[source] += 1
        if ranks[source] < counts[source]:
            heapq.heappush(waiting, (ranks[source] * size // counts[source], source))
    places = tuple(np.flatnonzero(sources == source) for source in range(len(counts)))
    own_ranks = np.empty(size, dtype=np.int64)
    for own in places:
        own_ranks[own] = np.arange(len(own))
    for array in (sources, own_ranks, *places):
        array.flags.writeable = False
    return Period(sources, own_ranks, places)


@final
@dataclass(frozen=True, slots=True)
class SourceOrder:
    """The source of each place of an order, from the first place of the first stretch on."""

    stretches: tuple[Stretch, ...]

    def count(self, place: int) -> ByNumber:
        """How many examples of each source come before a place."""
        stretch = self.find_stretch(place)
        times, rest = divmod(place - stretch.first, sum(stretch.counts))
        period = make_period(stretch.counts)
        return tuple(
            before + times * count + int(np.searchsorted(own, rest))
            for before, count, own in zip(
                stretch.before, stretch.counts, period.places, strict=True
            )
        )

    def take_range(self, start: int, stop: int) -> tuple[Numbers, Numbers]:
        """The sources of some places, and for each how many of that source came before."""
        parts: list[tuple[Numbers, Numbers]] = []
        begins = [stretch.first for stretch in self.stretches]
        while start < stop or not parts:
            number = self._number(start)
            end = min([stop, *begins[number + 1 : number + 2]])
            parts.append(_take_of_stretch(self.stretches[number], np.arange(start, end)))
            start = end
        if len(parts) == 1:
            return parts[0]
        sources, numbers = zip(*parts, strict=True)
        return np.concatenate(sources), np.concatenate(numbers)

    def take(self, places: Numbers) -> tuple[Numbers, Numbers]:
        """As :meth:`take_range`, for places in any order."""
        if len(self.stretches) == 1:
            return _take_of_stretch(self.stretches[0], places)
        begins = np.array([stretch.first for stretch in self.stretches])
        found = np.searchsorted(begins, places, side="right") - 1
        sources, numbers = np.empty_like(places), np.empty_like(places)
        for number in np.unique(found).tolist():
            own = found == number
            sources[own], numbers[own] = _take_of_stretch(self.stretches[number], places[own])
        return sources, numbers

    def find(self, source: int, number: int) -> int | None:
        """The place of an example of a source, by its number in that; None if it never comes."""
        begins = [stretch.before[source] for stretch in self.stretches]
        # Of stretches that begin with the same number the last one has an example, if any has.
        stretch = self.stretches[bisect_right(begins, number) - 1]
        count = stretch.counts[source]
        if not count:
            return None
        times, rank = divmod(number - stretch.before[source], count)
        own = make_period(stretch.counts).places[source]
        place = stretch.first + times * sum(stretch.counts) + int(own[rank])
        is_inside = stretch.length is None or place < stretch.first + stretch.length
        return place if is_inside else None

    def cut(self, stop: int) -> tuple[Stretch, ...]:
        """The stretches before a place."""
        return tuple(
            replace(s, length=stop - s.first)
            if s.length is None or s.first + s.length > stop
            else s
            for s in self.stretches
            if s.first < stop
        )

    def find_stretch(self, place: int) -> Stretch:
        """The stretch that a place lies in."""
        return self.stretches[self._number(place)]

    def _number(self, place: int) -> int:
        return bisect_right(self.stretches, place, key=lambda stretch: stretch.first) - 1


def _take_of_stretch(stretch: Stretch, places: Numbers) -> tuple[Numbers, Numbers]:
    period = make_period(stretch.counts)
    times, rest = np.divmod(places - stretch.first, len(period.sources))
    sources = period.sources[rest]
    times *= np.array(stretch.counts)[sources]
    times += period.ranks[rest]
    times += np.array(stretch.before)[sources]
    return sources, times


def make_order(shares: Shares, first: int = 0, left: Sequence[bool] | None = None) -> SourceOrder:
    """The order of sources that do not end, or of those that are left from a place on."""
    left = [True] * shares.num_sources if left is None else left
    return SourceOrder(shares.list_stretches(first, (0,) * shares.num_sources, left))


def mix_known(shares: Shares, lengths: Sequence[int], stop: str) -> tuple[SourceOrder, int]:
    """The order of sources whose lengths are known, none of them 0; and how long that is."""
    order = make_order(shares)
    if stop == ALL:
        return _mix_all(shares, lengths)
    numbers = [length - (stop == REPEAT) for length in lengths]
    found = [order.find(source, number) for source, number in enumerate(numbers)]
    places = [place for place in found if place is not None]
    end = max(places) + 1 if stop == REPEAT else min(places)
    return SourceOrder(order.cut(end)), end


def _mix_all(shares: Shares, lengths: Sequence[int]) -> tuple[SourceOrder, int]:
    """One after another, sources fall out; those that are left share the rest."""
    left = [True] * len(lengths)
    before, first = (0,) * len(lengths), 0
    done: tuple[Stretch, ...] = ()
    while any(left):
        order = SourceOrder(shares.list_stretches(first, before, left))
        ends = [
            (place, source)
            for source, length in enumerate(lengths)
            if left[source] and (place := order.find(source, length)) is not None
        ]
        place, source = min(ends)
        left[source] = False
        done += order.cut(place)
        first, before = place, order.count(place)
    return SourceOrder(done), first


@final
class TokenTurns:
    """Whose turn it is where shares are of tokens: decided by the lengths that were read.

    A source's *due* is the tokens that it has had, over its share. The one with the least comes
    next, the first of equals. Of two sources with equal shares:

        turn                 0    1    2    3    4
        dues before it     0 0  9 0  9 3  9 8  9 12
        source, tokens     a 9  b 3  b 5  b 4  a ...

    No due is ahead of the least by more than one example. So in any beginning a source has at most
    one example more than its share, and lacks at most its share of one example of each other.

    Dues are told less the least of them: they do not grow with what was read. They are of the
    shares at their place: see :func:`carry_dues`.
    """

    def __init__(self, order: SourceOrder, place: int, dues: ByNumber) -> None:
        """Begin at a place of the order, with the dues there; 0 for all at first."""
        self._order = order
        self._place = place
        self._dues = list(dues)
        self._enter()

    @property
    def source(self) -> int:
        """Whose turn it is."""
        return self._waiting[0][1]

    @property
    def dues(self) -> ByNumber:
        """Enough to go on from here."""
        least = self._waiting[0][0]
        pairs = zip(self._dues, self._stretch.counts, strict=True)
        return tuple(due - least if count else due for due, count in pairs)

    def take(self, num_tokens: int) -> None:
        """Note that the source whose turn it is has given an example of so many tokens."""
        due, source = self._waiting[0]
        self._dues[source] = due = due + num_tokens * self._parts[source]
        heapq.heapreplace(self._waiting, (due, source))
        self._place += 1
        if self._place == self._stop:
            after = self._order.find_stretch(self._place).counts
            self._dues = list(carry_dues(self.dues, self._stretch.counts, after))
            self._enter()

    def _enter(self) -> None:
        """Take the shares of the stretch that begins here, or that the place is in."""
        self._stretch = stretch = self._order.find_stretch(self._place)
        self._stop = None if stretch.length is None else stretch.first + stretch.length
        self._parts = _parts_of_token(stretch.counts)
        self._waiting = [
            (self._dues[source], source) for source, count in enumerate(stretch.counts) if count
        ]
        heapq.heapify(self._waiting)


def carry_dues(dues: ByNumber, before: ByNumber, after: ByNumber) -> ByNumber:
    """Dues where shares change: each source stays as many tokens ahead as it was.

        shares 1/1002, 1/1002, 1000/1002    a is 50 tokens ahead of b, which are 50100 of its due
        shares 1/2, 1/2, none               so they are 100: b comes until it has had 50 tokens

    Ahead of the least of those that go on. A source without a share for a while (of a schedule)
    keeps what it is ahead, and has no claim to what it could have had.

    Args:
        dues: with the shares before; of a source without a share, of the share 1.
        before: examples of each source in a period, which tell its share.
        after: the same, of the shares from here on.
    """
    going_on = [due for due, *counts in zip(dues, before, after, strict=True) if all(counts)]
    least = min(going_on, default=0)
    rows = zip(dues, before, _parts_of_token(before), _parts_of_token(after), strict=True)
    return tuple(
        max(0, due - least if count else due) * parts_after // parts_before
        for due, count, parts_before, parts_after in rows
    )


def _parts_of_token(counts: ByNumber) -> list[int]:
    """By how much a token of each source adds to its due: the inverse of its share."""
    whole = sum(counts) * _PARTS
    return [whole // count if count else _PARTS for count in counts]
