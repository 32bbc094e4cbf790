"""A stream that is read in windows, each of which is planned as a whole: packed, or bucketed.

    inner stream    d0 d1 d2 d3 | d4 d5 d6 d7 | d8 d9        windows of 4 examples
    rows            r0 r1 r2    | r3 r4       | r5           what the plan makes of each

Where row r4 stands: at the beginning of window 1 in the inner stream, after one row of what comes
of it. No row is stored: a resume opens the inner stream there, reads the window again, and passes
over what was delivered::

    ["pack", ["window", 1], ["plan", "5d..."], ["skip", 4], ["from", null]]    and 1 row to skip

Rows are passed over by their number, so the window must be planned as it was. The digest of its
plan tells where it is not: a function of the length drew random numbers, or a map did.

A file counts as touched when a window holds a row of it. So under FILE what nobody has touched is
assigned again, and a worker that goes on with begun files reads the same windows of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

from torch_distinput.data.batch.tree import Batch, Examples
from torch_distinput.data.sources.sequences.lengths import digest_lengths
from torch_distinput.data.sources.sequences.window_plan import (
    MadeRows,
    OrderPlan,
    RowPlan,
    WindowKey,
)
from torch_distinput.data.sources.source import Prepared, StreamSource
from torch_distinput.data.stream.bad_records import ReadReport
from torch_distinput.data.stream.chunk import Chunk, Cursor, Ids, concat_chunks
from torch_distinput.data.stream.protocols import CountedStream, RowReader, Stream
from torch_distinput.data.user_sources.states import holds_state
from torch_distinput.errors import ConfigurationError, SourceError
from torch_distinput.plan.assignment.permutation import Indices
from torch_distinput.plan.progress.place import Start
from torch_distinput.plan.progress.route import Shard


def in_windows(
    source: StreamSource, plan: OrderPlan | RowPlan, window: int, *, name: str, words: str
) -> StreamSource:
    """A source that is read in windows, each of which is planned.

    Args:
        source: gives the examples.
        plan: about a window.
        window: examples of one.
        name: of the source, for messages.
        words: what is made of windows: part of the kind of source, in states.

    Raises:
        ConfigurationError: a ValueError; the source has a state of its own.
    """
    _refuse_own_state(source.made_of)

    def prepare(prepare_inner: Callable[[], Prepared]) -> Prepared:
        prepared = prepare_inner()
        stream = WindowedStream(inner=prepared.stream, plan=plan, window=window)
        return replace(prepared, stream=stream)

    return replace(
        source,
        name=name,
        prepare=partial(prepare, source.prepare),
        by_shard=None if source.by_shard is None else partial(prepare, source.by_shard),
        windows=words,
    )


def _refuse_own_state(source: Any) -> None:
    """Its state would be that of the end of a window, whose rows are still to come."""
    if not holds_state(source):
        return
    msg = (
        f"Expected a source whose position we keep, to read it in windows, got a "
        f"{type(source).__name__} with a state_dict() of its own, which stands behind the window "
        "that is played. Pass what it reads (files, a dataset with an index, a generator "
        "function), or distribute it as it is."
    )
    raise ConfigurationError(msg)


@final
@dataclass(frozen=True, kw_only=True)
class WindowedStream(CountedStream):
    """A stream whose windows are planned.

    Attributes:
        inner: gives the examples.
        plan: makes rows of them, or puts them in order.
        window: examples that are planned together.
    """

    inner: Stream
    plan: OrderPlan | RowPlan
    window: int

    def open(self, shard: Shard, start: Start = None) -> RowReader:
        """Start at the beginning of a window, the first or that of a place."""
        own = _inner_shard(shard)
        # What workers have read is compared, but not from the middle of a window on.
        watched = shard.watched and start is None
        return WindowedReader(self, replace(own, watched=watched), start)

    def finish(self, chunk: Chunk, shard: Shard) -> Batch:
        """Collate made rows; finish others as if they had never been in a window."""
        if isinstance(self.plan, RowPlan):
            return self.plan.collate(chunk.data)
        return self.inner.finish(chunk, _inner_shard(shard))

    def examples(self, chunk: Chunk, shard: Shard) -> list[Any]:
        """Made rows are examples."""
        if isinstance(self.plan, RowPlan):
            return list(chunk.data)
        return self.inner.examples(chunk, _inner_shard(shard))

    @property
    def has_work(self) -> bool:
        """Collating always is worth another process."""
        return isinstance(self.plan, RowPlan) or self.inner.has_work

    @property
    def recipe(self) -> Mapping[str, Any]:
        """What is read, and what is made of each window."""
        own = {"window": self.window, **self.plan.recipe}
        facts = {f"{self.plan.kind}: {name}": value for name, value in own.items()}
        return {**self.inner.recipe, **facts}

    @property
    def has_parts(self) -> bool:
        """As what is read: a window holds nothing of another shard."""
        return self.inner.has_parts

    def share(self, worker: int, num_workers: int) -> tuple[Any, ReadReport | None] | None:
        """What this worker finds out about what is read."""
        counted = self._counted
        return None if counted is None else counted.share(worker, num_workers)

    def with_shares(self, shares: Sequence[Any]) -> WindowedStream:
        """The same with what all workers found out."""
        assert self._counted is not None, "it has shared what it found"
        return replace(self, inner=self._counted.with_shares(shares))

    @property
    def num_parts(self) -> int | None:
        """As what is read."""
        return None if self._counted is None else self._counted.num_parts

    def lengths(self, shards: Sequence[Shard]) -> tuple[int, ...] | None:
        """Those of what is read, where rows are kept."""
        if self._counted is None or isinstance(self.plan, RowPlan):
            return None
        return self._counted.lengths(list(map(_inner_shard, shards)))

    def locate(self, shard: Shard, row: int) -> Cursor:
        """The beginning of its window, and the rows before it there."""
        assert self._counted is not None, "lengths are known"
        number, within = divmod(row, self.window)
        begin = self._counted.locate(_inner_shard(shard), row - within)
        return begin.within(self.plan.kind, window=number, plan=None).after(within)

    def all_ids(self, worker: int, num_workers: int) -> Iterable[Ids] | None:
        """Those of what is read, where rows are kept."""
        if self._counted is None or isinstance(self.plan, RowPlan):
            return None
        return self._counted.all_ids(worker, num_workers)

    def first_record(self) -> int | None:
        """That of what is read."""
        return None if self._counted is None else self._counted.first_record()

    def num_touched(self, shard: Shard, num_rows: int) -> int:
        """How many files the windows of the first rows are from."""
        assert self._counted is not None, "lengths are known"
        own = _inner_shard(shard)
        (length,) = self._counted.lengths([own]) or (num_rows,)
        whole = -(-num_rows // self.window) * self.window
        return self._counted.num_touched(own, min(whole, length))

    @property
    def _counted(self) -> CountedStream | None:
        """What is read, if its rows may be counted before."""
        return self.inner if isinstance(self.inner, CountedStream) else None


def makes_rows(stream: Stream) -> bool:
    """Whether it hands out rows that are made of what is read, and not what is read."""
    if not isinstance(stream, WindowedStream):
        return False
    return isinstance(stream.plan, RowPlan) or makes_rows(stream.inner)


def _inner_shard(shard: Shard) -> Shard:
    """Each worker needs all rows of a window, whosever they are."""
    return replace(shard, sparse=False, watched=False)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class _Window:
    """A window that is planned.

    Attributes:
        ids: of its rows, as they are handed out.
        place: where it begins.
        rows: what was made of it, or what was read.
        order: of what was read.
    """

    ids: Ids
    place: Cursor
    rows: MadeRows | Chunk
    order: Indices | None = None

    def check_plan(self, before: str) -> None:
        """Refuse to pass over rows that are not those that were delivered.

        Raises:
            SourceError: another plan was made of the window.
        """
        assert self.place.start is not None, "it stands at a window"
        if (now := self.place.start.value("plan")) != before:
            msg = (
                "Expected the window in which a state stands to be made of examples of the same "
                f"lengths again (digest {before}), got others ({now}): rows that were delivered "
                "would come again, and others never. Let length= and the maps before it give the "
                "same for an example each time, and the files be unchanged."
            )
            raise SourceError(msg)

    def take(self, start: int, stop: int) -> Chunk:
        """The rows from ``start`` to ``stop``."""
        if isinstance(self.rows, Chunk):
            assert self.order is not None, "of what was read"
            data = self.rows.take(self.order[start:stop]).data
        else:
            data = Examples(self.rows.take(start, stop))
        return Chunk(data=data, ids=self.ids[start:stop], place=self.place.after(start))


@final
class WindowedReader:
    """Rows that come of windows, taken and passed over in any number."""

    def __init__(self, stream: WindowedStream, shard: Shard, start: Start) -> None:
        """Open what is read at the beginning of a window, the first or that of a place."""
        self._inner, self._plan, self._size = stream.inner, stream.plan, stream.window
        self._shard = shard
        self._number = 0  # of the next window
        self._before: str | None = None  # how the next window was planned before
        cursor = Cursor()
        if start is not None:
            place = start.check(self._plan.kind, 1)
            self._number, self._before = place.number("window"), place.value("plan")
            cursor = Cursor(start=place.inner[0], skip=place.skip)
        self._reader = self._inner.open(shard, cursor.start)
        self._reader.skip(cursor.skip)
        self._window: _Window | None = None
        self._position = 0  # rows of the window that have been handed out

    def take(self, num_rows: int) -> Chunk | None:
        """Return the next rows, not finished."""
        parts: list[Chunk] = []
        while num_rows and (window := self._fill()) is not None:
            start = self._position
            stop = min(start + num_rows, len(window.ids))
            parts.append(window.take(start, stop))
            self._move_to(stop)
            num_rows -= stop - start
        return concat_chunks(parts) if parts else None

    def skip(self, num_rows: int) -> int:
        """Pass over the next rows; return how many there were."""
        left = num_rows
        while left:
            passed = self._pass_window(left) or self._pass_rows(left)
            left -= passed
            if not passed:
                break
        return num_rows - left

    def notes(self) -> ReadReport | None:
        """What has been skipped and retried since the last call."""
        return self._reader.notes()

    def _pass_window(self, num_rows: int) -> int:
        """Pass over a whole window that need not be planned: it has as many rows as are read."""
        if self._window is not None or num_rows < self._size or isinstance(self._plan, RowPlan):
            return 0
        self._number, self._before = self._number + 1, None
        return self._reader.skip(self._size)

    def _pass_rows(self, num_rows: int) -> int:
        """Pass over rows of the window, or of the next one."""
        before, self._before = self._before, None
        window = self._fill()
        if window is None:
            return 0
        if before is not None:
            window.check_plan(before)
        start = self._position
        stop = min(start + num_rows, len(window.ids))
        self._move_to(stop)
        return stop - start

    def _fill(self) -> _Window | None:
        """Plan the next window, unless there is one; one without rows is left behind."""
        while self._window is None:
            chunk = self._reader.take(self._size)
            if chunk is None:
                return None
            window = self._plan_window(chunk)
            self._number, self._before = self._number + 1, None
            if len(window.ids):
                self._window = window
        return self._window

    def _plan_window(self, chunk: Chunk) -> _Window:
        examples = self._inner.examples(chunk, self._shard)
        key = WindowKey(seed=self._shard.seed, epoch=self._shard.epoch, number=self._number)
        plan, number = self._plan, self._number
        if isinstance(plan, RowPlan):
            made = plan.make_rows(examples, chunk.ids, key)
            place = chunk.place.within(plan.kind, window=number, plan=made.digest)
            return _Window(ids=made.ids, place=place, rows=made)
        order = plan.order(examples, key)
        place = chunk.place.within(plan.kind, window=number, plan=digest_lengths(order))
        return _Window(ids=chunk.ids[order], place=place, rows=chunk, order=order)

    def _move_to(self, position: int) -> None:
        """Leave rows behind; a window that is used up is let go before the next one is read."""
        assert self._window is not None, "filled by the caller"
        self._position = position
        if position == len(self._window.ids):
            self._window, self._position = None, 0
