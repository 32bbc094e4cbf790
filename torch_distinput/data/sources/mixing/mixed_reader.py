"""Reads the sources of a mixture in turn, and finds where they end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np

from torch_distinput.data.batch.mixed import MixedRows
from torch_distinput.data.sources.mixing.known_turns import KnownTurns, describe_turns
from torch_distinput.data.stream.bad_records import ReadReport
from torch_distinput.data.stream.chunk import Chunk, Cursor, Ids, concat_chunks
from torch_distinput.data.stream.held_rows import HeldRows
from torch_distinput.data.stream.protocols import RowReader
from torch_distinput.data.user_sources.source_errors import errors_of_member
from torch_distinput.errors import SourceError
from torch_distinput.plan.assignment.mixing import (
    ALL,
    FIRST,
    REPEAT,
    TokenTurns,
    carry_dues,
    make_order,
)
from torch_distinput.plan.assignment.permutation import Indices
from torch_distinput.plan.assignment.shares import Shares
from torch_distinput.plan.progress.place import Place, Start
from torch_distinput.plan.progress.position import ALL as ALL_FILES
from torch_distinput.plan.progress.route import Shard

MIXTURE = "mixture"
"""The kind of place in one."""
_MOST_SKIPPED = 1024
"""Rows that are passed over at a time."""
_MOST_MEASURED = 64
"""Rows of a source that are read and measured at a time, ahead of their turns."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class MixedSources:
    """What a reader has to know of a mixture.

    Attributes:
        names: of the sources.
        shares: of the order.
        stop: when an epoch ends.
        id_width: numbers in the id of a row.
        open_source: starts a source, by its number and how often it was played before, at a place.
        measure: tells the tokens of rows, where shares are of tokens: by the same two numbers, and
            the number of the first of them.
    """

    names: tuple[str, ...]
    shares: Shares
    stop: str
    id_width: int
    open_source: Callable[[int, int, Start], RowReader]
    measure: Callable[[int, int, Chunk, int], list[int]] | None


@final
class MixedReader:
    """Rows of a mixture; ids are the number of the source, its pass, and the source's own ids."""

    def __init__(self, mixed: MixedSources, shard: Shard, start: Start) -> None:
        """Start all sources, from their beginnings or from a place in the mixture."""
        self._mixed = mixed
        self._shard = shard
        self._notes: deque[ReadReport] = deque()
        self._is_over = self._is_passing = False
        count = len(mixed.names)
        self._phase = self._turn = self._touched = 0
        self._ended = [0] * count
        self._passes = [0] * count
        self._delivered = [0] * count
        self._dues = self._next_dues = (0,) * count  # where turns are taken by tokens
        self._known: KnownTurns | None = None
        self._pass_tokens = [int(start is not None)] * count  # unknown where a pass goes on
        cursors = [Cursor()] * count
        if start is not None:
            cursors = self._go_on(start.check(MIXTURE, count), count)
        self._held = [self._open(number, cursor) for number, cursor in enumerate(cursors)]
        self._order = make_order(mixed.shares, self._phase, self._left)

    def take(self, num_rows: int) -> Chunk | None:
        """Return the next rows, not finished."""
        parts = []
        while num_rows and (chunk := self._next(num_rows)) is not None:
            num_rows -= chunk.num_rows
            parts.append(chunk)
        return concat_chunks(parts) if parts else None

    def skip(self, num_rows: int) -> int:
        """Pass over the next rows without finishing them; return how many there were."""
        left = num_rows
        self._is_passing = True
        while left and (chunk := self._next(min(left, _MOST_SKIPPED))) is not None:
            left -= chunk.num_rows
        self._is_passing = False
        return num_rows - left

    def notes(self) -> ReadReport | None:
        """What any source has skipped and retried since the last call."""
        for held in self._held:
            self._notes.extend(held.drain())
        return self._notes.popleft() if self._notes else None

    def _go_on(self, start: Place, count: int) -> list[Cursor]:
        """Take over what a place says; return where each source stands."""
        self._phase, self._turn = start.number("phase"), start.number("turn")
        self._ended = list(start.several("ended", count))
        self._passes = list(start.several("passes", count))
        self._delivered = list(start.several("delivered", count))
        skips = start.several("skips", count)
        if self._mixed.measure is not None:
            self._dues = start.several("dues", count)
            self._known = KnownTurns(start)
        return [
            Cursor(start=inner, skip=skip) for inner, skip in zip(start.inner, skips, strict=True)
        ]

    @property
    def _left(self) -> list[bool]:
        """Which sources take part; under "repeat" all of them always do."""
        if self._mixed.stop != ALL:
            return [True] * len(self._ended)
        return [not ended for ended in self._ended]

    def _open(self, number: int, cursor: Cursor) -> HeldRows:
        if self._mixed.stop == ALL and self._ended[number]:
            return HeldRows(None, cursor)
        times = self._passes[number]
        with errors_of_member(self._mixed.names[number]):
            reader = self._mixed.open_source(number, times, cursor.start)
            reader.skip(cursor.skip)
        measure = self._mixed.measure
        if measure is None:
            return HeldRows(reader, cursor)
        first = 0 if times else self._delivered[number]
        return HeldRows(reader, cursor, partial(measure, number, times), first=first)

    def _next(self, num_rows: int) -> Chunk | None:
        """The next rows, perhaps fewer than were asked for; None at the end."""
        while not self._is_over:
            sources, short = self._list_turns(num_rows)
            if self._mixed.stop == REPEAT and (end := self._find_end(sources)) is not None:
                sources, short, self._is_over = sources[:end], None, True
            if len(sources):
                return self._hand_out(sources)
            if short is not None:
                self._end(short)
        return None

    def _list_turns(self, num_rows: int) -> tuple[Indices, int | None]:
        """Whose turns come next; fewer before a source that has no row for its turn, and that."""
        place = self._phase + self._turn
        if self._mixed.measure is None:
            sources, _ = self._order.take_range(place, place + num_rows)
            return self._cut_where_short(sources)
        turns = TokenTurns(self._order, place, self._dues)
        sources, short = self._take_turns(turns, num_rows)
        self._next_dues = turns.dues
        self._cut_where_short(sources)  # who repeats looks ahead
        return sources, short

    def _take_turns(self, turns: TokenTurns, num_rows: int) -> tuple[Indices, int | None]:
        """Turns that follow from the lengths of what was read; rows are read some at a time."""
        counts = [0] * len(self._held)
        chosen: list[int] = []
        while (left := num_rows - len(chosen)) > 0:
            number = turns.source
            held, count = self._held[number], counts[number]
            more = min(left, _MOST_MEASURED)
            if held.count == count and self._fill(number, count + more) == count:
                return np.array(chosen, dtype=np.int64), number
            turns.take(held.lengths[count])
            counts[number] += 1
            chosen.append(number)
        return np.array(chosen, dtype=np.int64), None

    def _cut_where_short(self, sources: Indices) -> tuple[Indices, int | None]:
        """The turns before the first one that a source has no row for; and that source."""
        wanted = self._count(sources)
        end, short = len(sources), None
        for number in range(len(self._held)):
            # Who repeats looks one row ahead, to tell the last one when it comes.
            more = self._mixed.stop == REPEAT and not self._ended[number]
            count = self._fill(number, wanted[number] + more)
            if count < wanted[number]:
                turn = int(np.flatnonzero(sources == number)[count])
                end, short = min((end, short), (turn, number), key=lambda found: found[0])
        return sources[:end], short

    def _fill(self, number: int, num_rows: int) -> int:
        """Hold so many rows of a source, or all it has left; returns how many."""
        with errors_of_member(self._mixed.names[number]):
            return self._held[number].fill(num_rows)

    def _find_end(self, sources: Indices) -> int | None:
        """After how many turns all sources have been seen once; None if not in these."""
        wanted, end = self._count(sources), 0
        for number, held in enumerate(self._held):
            if self._ended[number]:
                continue
            if not held.is_closed or held.count > wanted[number]:
                return None
            self._check_not_empty(number)
            if wanted[number]:
                end = max(end, int(np.flatnonzero(sources == number)[-1]) + 1)
        return end

    def _hand_out(self, sources: Indices) -> Chunk:
        place = self._place(self._note_turns(sources))
        ids: Ids = np.zeros((len(sources), self._mixed.id_width), dtype=np.int64)
        parts: list[Any] = [None] * len(self._held)
        for number, count in enumerate(self._count(sources)):
            if not count:
                continue
            chunk = self._held[number].take(count)
            own = np.flatnonzero(sources == number)
            inner = chunk.ids.reshape(count, -1)
            ids[own, 0], ids[own, 1] = number, self._passes[number]
            ids[own, 2 : 2 + inner.shape[1]] = inner
            parts[number] = chunk.data
            self._touched = max(self._touched, chunk.place.num_touched)
            self._delivered[number] += count
        self._turn += len(sources)
        return Chunk(
            data=MixedRows(sources, tuple(parts)),
            ids=ids,
            place=Cursor(start=place, num_touched=self._touched),
        )

    def _note_turns(self, sources: Indices) -> tuple[tuple[str, Any], ...]:
        """What a place before some turns says of tokens; they are over then."""
        if self._mixed.measure is None:
            return ()
        lengths = np.empty(len(sources), dtype=np.int64)
        for number, count in enumerate(self._count(sources)):
            lengths[sources == number] = own = self._held[number].lengths[:count]
            self._pass_tokens[number] += sum(own)
        if self._known is not None:
            may_differ = not self._is_passing and self._shard.num_files != ALL_FILES
            self._known.add(sources, lengths, may_differ=may_differ)
        dues, self._dues = self._dues, self._next_dues
        return ("dues", dues), *describe_turns(sources, lengths)

    def _end(self, number: int) -> None:
        """A source has no row for its turn."""
        self._check_not_empty(number)
        if self._mixed.measure is not None:
            self._end_tokens(number)
        self._ended[number] = 1
        self._notes.extend(self._held[number].drain())
        if self._mixed.stop == FIRST:
            self._is_over = True
        elif self._mixed.stop == ALL:
            self._phase, self._turn = self._phase + self._turn, 0
            self._is_over = all(self._ended)
            if not self._is_over:
                before = self._order.find_stretch(self._phase).counts
                self._order = make_order(self._mixed.shares, self._phase, self._left)
                after = self._order.find_stretch(self._phase).counts
                self._dues = carry_dues(self._dues, before, after)
        else:
            self._passes[number] += 1
            self._held[number] = self._open(number, Cursor())
            self._check_not_empty(number)

    def _end_tokens(self, number: int) -> None:
        """Refuse a source without a token: it would be played again and again for its share."""
        if self._known is not None:
            self._known.end_source(is_whole=self._shard.num_files == ALL_FILES)
        if not self._pass_tokens[number] and not self._may_be_empty:
            msg = (
                "Expected tokens in each source whose weight is a share of tokens, got none in "
                f"{self._mixed.names[number]!r}. Look at length=, or leave the source out."
            )
            raise SourceError(msg)
        self._pass_tokens[number] = 0

    @property
    def _may_be_empty(self) -> bool:
        """Whether others may have what a source has not."""
        shard = self._shard
        has_others = shard.num_shards > 1 or shard.reassignments or shard.num_files != ALL_FILES
        return self._mixed.stop == ALL and bool(has_others)

    def _check_not_empty(self, number: int) -> None:
        """Refuse a source without any row, unless others have its rows."""
        shard = self._shard
        if not self._held[number].is_empty or self._may_be_empty:
            return
        name = self._mixed.names[number]
        if self._passes[number]:
            msg = (
                f"Expected source {name!r} of a mixture to give its examples again, got none when "
                "it was read for another time. Pass what can be iterated again and again; or look "
                "for a filter that has kept nothing of it this time."
            )
            raise SourceError(msg)
        where = cure = ""
        if shard.num_shards > 1:
            where = f" in shard {shard.index} of {shard.num_shards}"
            cure = '; with auto_shard_policy="data" all workers read all files'
        msg = (
            f"Expected examples in each source of a mixture, got none in {name!r}{where}. Leave "
            f"it out, or look for what has emptied it{cure}."
        )
        raise SourceError(msg)

    def _place(self, more: tuple[tuple[str, Any], ...]) -> Place:
        """Where the mixture stands: the index, and where each source does."""
        cursors = [held.place for held in self._held]
        values = (
            ("phase", self._phase),
            ("turn", self._turn),
            ("ended", tuple(self._ended)),
            ("passes", tuple(self._passes)),
            ("delivered", tuple(self._delivered)),
            ("skips", tuple(cursor.skip for cursor in cursors)),
            *more,
        )
        return Place(MIXTURE, values, 0, tuple(cursor.start for cursor in cursors))

    def _count(self, sources: Indices) -> list[int]:
        """How many turns each source has."""
        counts: list[int] = np.bincount(sources, minlength=len(self._held)).tolist()
        return counts
