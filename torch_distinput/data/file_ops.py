"""What a FileDataset does to its records: each operation takes a stream of chunks and yields one.

All randomness is keyed by (seed, epoch, place), never drawn from a process's generator.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from torch_distinput.data import rows
from torch_distinput.data.files import FileInfo
from torch_distinput.data.stream import Chunk, ChunkReader, source_error
from torch_distinput.data.structure import Examples
from torch_distinput.plan.order import permutation


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """What random choices depend on.

    Attributes:
        seed: the caller's.
        epoch: which epoch.
        operation: which operation of the recipe draws.
        repetitions: which repetition of each repeat around it.
        listing: no part of the key: it names a record's file in an error.
    """

    seed: int
    epoch: int
    operation: int = 0
    repetitions: tuple[int, ...] = ()
    listing: tuple[FileInfo, ...] = ()

    def where(self, record_id: NDArray[np.int64]) -> tuple[str, str]:
        """The path and the record that an id names."""
        file_number, record_number = record_id.tolist()
        return self.listing[file_number].path, f"record {record_number}"

    def place(self, record_id: NDArray[np.int64]) -> str:
        """Name a record in an error."""
        return ", ".join(self.where(record_id))

    def words(self, purpose: str, *numbers: int) -> tuple[int, ...]:
        """The key of one choice."""
        name = int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=4).digest(), "big")
        return (name, self.seed, self.epoch, self.operation, *self.repetitions, *numbers)


Upstream = Callable[[Key], Iterator[Chunk]]


class Operation(Protocol):
    """One step of a recipe."""

    def apply(self, upstream: Upstream, key: Key) -> Iterator[Chunk]:
        """Yield the chunks after this step; ``upstream(key)`` starts those before it."""

    def count(self, num_records: int) -> int | None:
        """How many records are left of so many; None where that depends on what they are."""


@dataclass(frozen=True, slots=True)
class Map:
    """``fn(record)`` for each record."""

    fn: Callable[..., Any]

    def apply(self, upstream: Upstream, key: Key) -> Iterator[Chunk]:
        """Map each chunk."""
        return (self.mapped(chunk, key) for chunk in upstream(key))

    def count(self, num_records: int) -> int:
        """All are left."""
        return num_records

    def mapped(self, chunk: Chunk, key: Key) -> Chunk:
        """Map the records of one chunk."""
        call = self._keyed(key) if _wants_rng(self.fn) else (lambda record, _: self.fn(record))
        return Chunk(data=Examples(_each(call, chunk, key)), ids=chunk.ids)

    def _keyed(self, key: Key) -> Callable[[Any, Any], Any]:
        def call(record: Any, place: Any) -> Any:
            words = key.words("map", *np.atleast_1d(place).tolist())
            return self.fn(record, rng=np.random.default_rng(words))

        return call


@dataclass(frozen=True, slots=True)
class Filter:
    """Keep the records for which ``fn`` is true."""

    fn: Callable[[Any], bool]

    def apply(self, upstream: Upstream, key: Key) -> Iterator[Chunk]:
        """Filter each chunk."""
        for chunk in upstream(key):
            verdicts = _each(lambda record, _: self.fn(record), chunk, key)
            kept = [bool(keep) for keep in verdicts]
            if any(kept):
                yield chunk if all(kept) else chunk.take(np.flatnonzero(kept))

    def count(self, num_records: int) -> int | None:
        """Unknown; of none, none."""
        return None if num_records else 0


@dataclass(frozen=True, slots=True)
class Shuffle:
    """Permute windows of records."""

    buffer_size: int

    def apply(self, upstream: Upstream, key: Key) -> Iterator[Chunk]:
        """Collect a window and hand it over in keyed order."""
        reader = ChunkReader(upstream(key))
        for window in count():
            chunk = reader.take(self.buffer_size)
            if chunk is None:
                return
            order = permutation(chunk.num_rows, key=key.words("window", window))
            yield chunk.take(order)

    def count(self, num_records: int) -> int:
        """All are left."""
        return num_records


@dataclass(frozen=True, slots=True)
class Take:
    """The first records."""

    n: int

    def apply(self, upstream: Upstream, key: Key) -> Iterator[Chunk]:
        """Pass chunks on until there are enough."""
        missing = self.n
        chunks = upstream(key) if missing else iter(())
        for chunk in chunks:
            rows = chunk.num_rows
            yield chunk if rows <= missing else chunk.slice(0, missing)
            missing -= rows
            if missing <= 0:
                return

    def count(self, num_records: int) -> int:
        """At most ``n``."""
        return min(self.n, num_records)


@dataclass(frozen=True, slots=True)
class Repeat:
    """Play again."""

    n: int | None

    def apply(self, upstream: Upstream, key: Key) -> Iterator[Chunk]:
        """Start the stream again and again; without any record there is nothing to repeat."""
        for repetition in count() if self.n is None else range(self.n):
            nothing = True
            for chunk in upstream(replace(key, repetitions=(*key.repetitions, repetition))):
                nothing = False
                yield chunk
            if nothing:
                return

    def count(self, num_records: int) -> int | None:
        """``n`` times as many; unknown where there is no end."""
        if not num_records:
            return 0
        return None if self.n is None else self.n * num_records


def run(upstream: Upstream, operations: Sequence[Operation], key: Key) -> Iterator[Chunk]:
    """Start a stream through all operations."""
    if not operations:
        return upstream(key)
    *before, last = operations
    own_key = replace(key, operation=len(before))
    return last.apply(lambda inner: run(upstream, before, inner), own_key)


def num_before_final_maps(operations: Sequence[Operation], kinds: tuple[type, ...]) -> int:
    """How many operations come before those at the end that do not change the numbering."""
    end = len(operations)
    while end and isinstance(operations[end - 1], kinds):
        end -= 1
    return end


def interleaved(
    opened: Iterator[Iterator[Chunk]], cycle: tuple[int, int] | None
) -> Iterator[Chunk]:
    """Read files one after another, or ``cycle_length`` of them in turn, a block from each.

    As in ``tf.data.Dataset.interleave``: a file that ends gives its place to the next file, whose
    turn comes when the place is visited again.
    """
    if cycle is None:
        for records in opened:
            yield from records
        return
    cycle_length, block_length = cycle
    places: list[ChunkReader | None] = [None] * cycle_length
    more = True
    while more or any(places):
        for place in range(cycle_length):
            if places[place] is None and more:
                chunks = next(opened, None)
                more = chunks is not None
                places[place] = None if chunks is None else ChunkReader(chunks)
            places[place], block = _block(places[place], block_length)
            if block is not None:
                yield block


def _block(reader: ChunkReader | None, length: int) -> tuple[ChunkReader | None, Chunk | None]:
    """Take a block; a reader that fell short has ended."""
    block = reader.take(length) if reader else None
    ended = block is None or block.num_rows < length
    return (None if ended else reader), block


def _each(call: Callable[[Any, Any], Any], chunk: Chunk, key: Key) -> Iterator[Any]:
    """Call for each record with its id; name the record at which the user's function raises."""
    for record, place in zip(rows.examples(chunk.data), chunk.ids, strict=True):
        try:
            yield call(record, place)
        except Exception as error:
            raise source_error(error, key.place(place)) from error


def _wants_rng(fn: Callable[..., Any]) -> bool:
    try:
        return "rng" in inspect.signature(fn).parameters
    except (TypeError, ValueError):  # some builtins have no signature
        return False
