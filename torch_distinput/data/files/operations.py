"""What a FileDataset does to its records: each operation takes a stream of chunks and yields one.

All randomness is keyed by (seed, epoch, place), never drawn from a process's generator.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, takewhile
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from torch_distinput.data.batch import rows
from torch_distinput.data.batch.tree import Examples
from torch_distinput.data.files.record_names import RecordNames
from torch_distinput.data.files.windows import Window
from torch_distinput.data.stream.chunk import Chunk, Cursor
from torch_distinput.data.stream.chunk_reader import ChunkReader
from torch_distinput.data.user_sources.source_errors import source_error
from torch_distinput.errors import SourceError
from torch_distinput.meter import WorkClock, time_decode
from torch_distinput.plan.assignment.permutation import permute


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """What random choices depend on.

    Attributes:
        seed: the caller's.
        epoch: which epoch.
        operation: which operation of the recipe draws.
        repetitions: which repetition of each repeat around it.
        records: no part of the key: names records in errors.
        clock: no part either: counts what operations take, if measured.
    """

    seed: int
    epoch: int
    operation: int = 0
    repetitions: tuple[int, ...] = ()
    records: RecordNames = field(default=RecordNames(), compare=False)
    clock: WorkClock | None = field(default=None, compare=False)

    def where(self, record_id: NDArray[np.int64]) -> tuple[str, str]:
        """The path and the record that an id names."""
        return self.records.where(*record_id.tolist())

    def place(self, record_id: NDArray[np.int64]) -> str:
        """Name a record in an error."""
        return ", ".join(self.where(record_id))

    def words(self, purpose: str, *numbers: int) -> tuple[int, ...]:
        """The key of one choice."""
        name = int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=4).digest(), "big")
        return (name, self.seed, self.epoch, self.operation, *self.repetitions, *numbers)


Upstream = Callable[[Key, Cursor], Iterator[Chunk]]
Locate = Callable[[int], Cursor]


class Operation(Protocol):
    """One step of a recipe."""

    def apply(self, upstream: Upstream, key: Key, place: Cursor) -> Iterator[Chunk]:
        """Yield the chunks after this step, from the *start* of a place on.

        ``upstream(key, place)`` starts those before it, from the row at that place on.
        """

    def count(self, num_records: int) -> int | None:
        """How many records are left of so many; None where that depends on what they are."""

    def locate(self, row: int, num_records: int, upstream: Locate) -> Cursor:
        """Where a row stands, if the step gets so many records. Asked if they can be counted."""

    @property
    def recipe(self) -> str:
        """What decides which rows come in which order: its name and its number."""


@dataclass(frozen=True, slots=True)
class _RecordFunction:
    """Calls a function of the user's for each record, with a generator if it takes one."""

    fn: Callable[..., Any]
    wants_rng: bool = field(init=False, compare=False)
    kind: ClassVar[str]

    def __post_init__(self) -> None:
        """Look at the function's parameters once, not for each chunk."""
        object.__setattr__(self, "wants_rng", wants_rng(self.fn))

    def call_each(self, chunk: Chunk, key: Key) -> Iterator[Any]:
        """What the function returns for the records of a chunk; names the one it raises at."""
        for record, place in zip(rows.iterate_rows(chunk.data), chunk.ids, strict=True):
            try:
                yield self._keyed(record, place, key) if self.wants_rng else self.fn(record)
            except SourceError:
                raise
            except Exception as error:
                raise source_error(error, key.place(place)) from error

    def _keyed(self, record: Any, place: Any, key: Key) -> Any:
        words = key.words(self.kind, *np.atleast_1d(place).tolist())
        return self.fn(record, rng=np.random.default_rng(words))


@dataclass(frozen=True, slots=True)
class Map(_RecordFunction):
    """``fn(record)`` for each record."""

    kind = "map"

    def apply(self, upstream: Upstream, key: Key, place: Cursor) -> Iterator[Chunk]:
        """Map each chunk; rows stand where they stood."""
        mapped = time_decode(key.clock, self.mapped)
        return (mapped(chunk, key) for chunk in upstream(key, place))

    def count(self, num_records: int) -> int:
        """All are left."""
        return num_records

    def locate(self, row: int, num_records: int, upstream: Locate) -> Cursor:  # noqa: ARG002
        """Where it stood."""
        return upstream(row)

    @property
    def recipe(self) -> str:
        """Its function may be mended between two runs."""
        return "map"

    def mapped(self, chunk: Chunk, key: Key) -> Chunk:
        """Map the records of one chunk."""
        return chunk._replace(data=Examples(self.call_each(chunk, key)))


@dataclass(frozen=True, slots=True)
class Filter(_RecordFunction):
    """Keep the records for which ``fn`` is true."""

    kind = "filter"

    def apply(self, upstream: Upstream, key: Key, place: Cursor) -> Iterator[Chunk]:
        """Filter each chunk; what is left of it stands behind its first row."""
        judge = time_decode(key.clock, self._judge)
        for chunk in upstream(key, place.before(self.kind)):
            kept = judge(chunk, key)
            if any(kept):
                left = chunk if all(kept) else chunk.take(np.flatnonzero(kept))
                yield left.moved(chunk.place.within(self.kind))

    def _judge(self, chunk: Chunk, key: Key) -> list[bool]:
        return [bool(keep) for keep in self.call_each(chunk, key)]

    def count(self, num_records: int) -> int | None:
        """Unknown; of none, none."""
        return None if num_records else 0

    def locate(self, row: int, num_records: int, upstream: Locate) -> Cursor:  # noqa: ARG002
        """Of no records."""
        return upstream(row).within(self.kind)

    @property
    def recipe(self) -> str:
        """Its function cannot be compared."""
        return "filter"


@dataclass(frozen=True, slots=True)
class Shuffle:
    """Permute windows of records."""

    buffer_size: int
    kind = "shuffle"

    def apply(self, upstream: Upstream, key: Key, place: Cursor) -> Iterator[Chunk]:
        """Hand windows over, piece by piece."""
        for window in self.windows(upstream, key, place):
            yield from window.pieces()
            del window  # before the next one is filled

    def windows(self, upstream: Upstream, key: Key, place: Cursor) -> Iterator[Window]:
        """Collect windows in keyed order; their rows stand behind their number."""
        reader = ChunkReader(upstream(key, place.before(self.kind)))
        numbers = count(place.start.number("window") if place.start else 0)
        found = map(partial(self._window, reader, key), numbers)
        return takewhile(lambda window: window is not None, found)  # type: ignore[arg-type]

    def _window(self, reader: ChunkReader, key: Key, number: int) -> Window | None:
        pool = reader.take_pool(self.buffer_size)
        if pool is None:
            return None
        order = permute(pool.num_rows, key=key.words("window", number))
        return Window(pool=pool, order=order, place=pool.place.within(self.kind, window=number))

    def count(self, num_records: int) -> int:
        """All are left."""
        return num_records

    def locate(self, row: int, num_records: int, upstream: Locate) -> Cursor:  # noqa: ARG002
        """In its window."""
        window, skip = divmod(row, self.buffer_size)
        place = upstream(window * self.buffer_size).within(self.kind, window=window)
        return place._replace(skip=skip)

    @property
    def recipe(self) -> str:
        """The window."""
        return f"shuffle({self.buffer_size})"


@dataclass(frozen=True, slots=True)
class Take:
    """The first records."""

    n: int
    kind = "take"

    def apply(self, upstream: Upstream, key: Key, place: Cursor) -> Iterator[Chunk]:
        """Pass chunks on until there are enough; they stand behind the number before them."""
        taken = place.start.number("taken") if place.start else 0
        chunks = upstream(key, place.before(self.kind)) if taken < self.n else iter(())
        for chunk in chunks:
            head = chunk if chunk.num_rows <= self.n - taken else chunk.slice(0, self.n - taken)
            yield head.moved(chunk.place.within(self.kind, taken=taken))
            taken += chunk.num_rows
            if taken >= self.n:
                return

    def count(self, num_records: int) -> int:
        """At most ``n``."""
        return min(self.n, num_records)

    def locate(self, row: int, num_records: int, upstream: Locate) -> Cursor:  # noqa: ARG002
        """After the rows before it."""
        return upstream(row).within(self.kind, taken=row)

    @property
    def recipe(self) -> str:
        """The number."""
        return f"take({self.n})"


@dataclass(frozen=True, slots=True)
class Repeat:
    """Play again; ``passes_differ`` tells that one pass may keep no record, and another does."""

    n: int | None
    passes_differ: bool = field(default=False, compare=False)
    kind = "repeat"

    def apply(self, upstream: Upstream, key: Key, place: Cursor) -> Iterator[Chunk]:
        """Start the stream again and again; without any record there is nothing to repeat."""
        goes_on = self.passes_differ and self.n is not None
        first = place.start.number("repetition") if place.start else 0
        place = place.before(self.kind)
        nothing = not place.start and not place.skip  # else something came before it
        for repetition in count(first) if self.n is None else range(first, self.n):
            own_key = replace(key, repetitions=(*key.repetitions, repetition))
            for chunk in upstream(own_key, place):
                nothing = False
                yield chunk.moved(chunk.place.within(self.kind, repetition=repetition))
            if nothing and not goes_on:
                return
            place, nothing = Cursor(), True

    def count(self, num_records: int) -> int | None:
        """``n`` times as many; unknown where there is no end."""
        if not num_records:
            return 0
        return None if self.n is None else self.n * num_records

    def locate(self, row: int, num_records: int, upstream: Locate) -> Cursor:
        """In its repetition."""
        repetition, inner = divmod(row, num_records) if num_records else (0, 0)
        return upstream(inner).within(self.kind, repetition=repetition)

    @property
    def recipe(self) -> str:
        """The number."""
        return f"repeat({self.n})"


def run(
    upstream: Upstream, operations: Sequence[Operation], key: Key, place: Cursor
) -> Iterator[Chunk]:
    """Start a stream through all operations, from the row at a place on."""
    if not operations:
        return upstream(key, place)
    *before, last = operations
    own_key = replace(key, operation=len(before))
    chunks = last.apply(lambda inner, at: run(upstream, before, inner, at), own_key, place)
    if isinstance(last, Map):  # rows stand where they stood, so they were passed over before it
        return chunks
    return drop_first(chunks, place.skip)


def read_windows(
    upstream: Upstream, operations: Sequence[Operation], key: Key, place: Cursor
) -> Iterator[Window] | None:
    """The windows of a shuffle that is the last operation; None where it is not.

    An operation behind it gets chunks, and says where the rows of each stand.
    """
    *before, last = operations
    if not isinstance(last, Shuffle):
        return None
    own_key = replace(key, operation=len(before))
    return last.windows(lambda inner, at: run(upstream, before, inner, at), own_key, place)


def drop_first(chunks: Iterator[Chunk], num_rows: int) -> Iterator[Chunk]:
    """Leave out the first rows."""
    for chunk in chunks:
        if num_rows < chunk.num_rows:
            yield chunk.slice(num_rows, chunk.num_rows)
        num_rows = max(0, num_rows - chunk.num_rows)


def num_before_final_maps(operations: Sequence[Operation], kinds: tuple[type, ...]) -> int:
    """How many operations come before those at the end that do not change the numbering."""
    end = len(operations)
    while end and isinstance(operations[end - 1], kinds):
        end -= 1
    return end


def wants_rng(fn: Callable[..., Any]) -> bool:
    """Whether a function has a parameter ``rng``."""
    try:
        return "rng" in inspect.signature(fn).parameters
    except (TypeError, ValueError):  # some builtins have no signature
        return False
