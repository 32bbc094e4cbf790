"""From records as a reader yields them to batches, and what to do with those that are bad."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch

from torch_distinput.data.batch.rows import iterate_rows, num_rows
from torch_distinput.data.batch.spec import outline_of, same_kind, spec_of
from torch_distinput.data.batch.structure import Structure
from torch_distinput.data.batch.tree import (
    Batch,
    flatten,
    leaf_names,
    leaves_like,
    map_leaves,
    unflatten,
)
from torch_distinput.data.files.operations import (
    Filter,
    Key,
    Locate,
    Map,
    Operation,
    Take,
    Upstream,
)
from torch_distinput.data.formats.reader import Reader
from torch_distinput.data.stream.bad_records import ReadLog
from torch_distinput.data.stream.chunk import Chunk, Cursor
from torch_distinput.meter import time_decode
from torch_distinput.values import TensorSpec


def has_decode(reader: Reader) -> bool:
    """Whether the records of a reader are more than what it reads."""
    return type(reader).decode is not Reader.decode


def decode_index(operations: Sequence[Operation]) -> int:
    """Before which operation records are decoded: the first one that looks at them."""
    looking = (i for i, operation in enumerate(operations) if isinstance(operation, (Map, Filter)))
    return next(looking, len(operations))


@dataclass(frozen=True, slots=True)
class Decode:
    """``reader.decode`` for each chunk: an operation of a recipe that nobody wrote down."""

    reader: Reader
    log: ReadLog
    schema: Schema
    is_done: bool = False  # before, by TakeGood
    kind = "decode"

    def apply(self, upstream: Upstream, key: Key, place: Cursor) -> Iterator[Chunk]:
        """Decode each chunk; what is left of it stands behind its first row."""
        chunks = upstream(key, place.before(self.kind))
        for chunk in chunks if self.is_done else self.good(chunks, key):
            yield chunk.moved(chunk.place.within(self.kind))

    def good(self, chunks: Iterator[Chunk], key: Key) -> Iterator[Chunk]:
        """Decode chunks, which stay where they are, and leave out bad records."""
        decoded = time_decode(key.clock, self._uniform)
        return (fitted for chunk in chunks if (fitted := decoded(chunk, key)).num_rows)

    def count(self, num_records: int) -> int:
        """All are left: lengths are not known beforehand where bad records are skipped."""
        return num_records

    def locate(self, row: int, num_records: int, upstream: Locate) -> Cursor:  # noqa: ARG002
        """Behind where it stood."""
        return upstream(row).within(self.kind)

    @property
    def recipe(self) -> str:
        """Nobody wrote it down."""
        return "decode"

    def mapped(self, chunk: Chunk, key: Key) -> Chunk:
        """Decode one chunk, if need be without its bad records."""
        try:
            return self._decoded(chunk)
        except Exception:  # noqa: BLE001 - whatever a reader raises
            good = self._without_broken(chunk, key)
        try:
            return self._decoded(good)
        except Exception as error:  # noqa: BLE001 - whatever a reader raises
            return self._decoded_alike(good, key, error)

    def _uniform(self, chunk: Chunk, key: Key) -> Chunk:
        """Decode one chunk, if need be without records that are not like those before it."""
        with suppress(Exception):  # whatever a reader raises: said of the records, below
            fitted, reason = self.schema.fit(self._decoded(chunk), key)
            if reason is None:
                return fitted
        if self.schema.is_known:  # which says what is odd; else most of the records do
            rows = self._alike_rows(chunk, list(range(chunk.num_rows)), key)
            chunk = chunk.take(np.array(rows, np.int64))
        return next(self.schema.uniform(iter([self.mapped(chunk, key)]), key), chunk.slice(0, 0))

    def _alike_rows(self, chunk: Chunk, rows: list[int], key: Key) -> list[int]:
        """Those of some rows that fit the first chunk: look in halves for those that do not."""
        some = chunk.take(np.array(rows, np.int64))
        odd: Exception | str | None
        try:
            odd = self.schema.unlike(self._decoded(some).data)
        except Exception as error:  # noqa: BLE001 - whatever a reader raises
            odd = error
        if odd is None:
            return rows
        if len(rows) > 1:
            middle = len(rows) // 2
            halves = (rows[:middle], rows[middle:])
            return [row for half in halves for row in self._alike_rows(chunk, half, key)]
        record = next(iterate_rows(some.data))
        if isinstance(odd, str) and isinstance(record, bytes):
            odd = f"{odd}. The record begins {record[:60].rstrip()!r}"
        self.log.bad(*key.where(some.ids[0]), odd)
        return []

    def _decoded(self, chunk: Chunk) -> Chunk:
        if not chunk.num_rows:
            return chunk
        data = self.reader.decode(chunk.data)
        if num_rows(data) != chunk.num_rows:
            msg = (
                f"decode() must keep the rows, got {num_rows(data)} for {chunk.num_rows} records. "
                "Return a row for each, and leave records out by a filter()."
            )
            raise ValueError(msg)
        return chunk._replace(data=data)

    def _without_broken(self, chunk: Chunk, key: Key) -> Chunk:
        """Decode each record by itself, and leave out those with which that fails."""
        good = []
        for row in range(chunk.num_rows):
            try:
                self.reader.decode(chunk.slice(row, row + 1).data)
            except Exception as error:  # noqa: BLE001 - whatever a reader raises
                self.log.bad(*key.where(chunk.ids[row]), error)
            else:
                good.append(row)
        return chunk.take(np.array(good, dtype=np.int64))

    def _decoded_alike(self, chunk: Chunk, key: Key, error: Exception) -> Chunk:
        """Leave out records that are good by themselves and do not fit the others."""
        records = (chunk.slice(row, row + 1).data for row in range(chunk.num_rows))
        looks = [_look_of(self.reader.decode(record)) for record in records]
        usual, _ = Counter(looks).most_common(1)[0]
        for row, look in enumerate(looks):
            if look != usual:
                self.log.bad(*key.where(chunk.ids[row]), error)
        alike = chunk.take(np.flatnonzero([look == usual for look in looks]))
        try:
            return self._decoded(alike)
        except Exception as still:  # noqa: BLE001 - whatever a reader raises
            self.log.bad(*key.where(chunk.ids[0]), still)
            return chunk.take(np.empty(0, dtype=np.int64))


@final
@dataclass(frozen=True, slots=True)
class TakeGood:
    """The first good records: an operation of a recipe, which decodes what it takes.

    An operation before it that decodes would give places and random choices of the recipe another
    number than they have where bad records are raised. So :class:`Decode` stays where it is.
    """

    take: Take
    decode: Decode

    def apply(self, upstream: Upstream, key: Key, place: Cursor) -> Iterator[Chunk]:
        """As of all records, but for those that are bad."""
        good = lambda inner, at: self.decode.good(upstream(inner, at), inner)  # noqa: E731
        return self.take.apply(good, key, place)

    def count(self, num_records: int) -> int:
        """As of good ones."""
        return self.take.count(num_records)

    def locate(self, row: int, num_records: int, upstream: Locate) -> Cursor:
        """As of good ones."""
        return self.take.locate(row, num_records, upstream)

    @property
    def recipe(self) -> str:
        """As of all records."""
        return self.take.recipe


def _look_of(batch: Batch) -> str:
    """What records that can be joined have in common; a list may hold None as well as text."""
    return repr(flatten(map_leaves(_without_rows, spec_of(batch))))


def _without_rows(spec: TensorSpec) -> TensorSpec:
    is_list = isinstance(spec.dtype, type) and spec.layout is torch.strided
    return replace(spec, dtype=object) if is_list else spec


class Schema:
    """Holds chunks to the columns of the first one, in the order in which they are delivered."""

    def __init__(self, log: ReadLog) -> None:
        """Take the first chunk as it comes."""
        self._log = log
        self._first: _First | None = None

    @property
    def is_known(self) -> bool:
        """Whether there was a first chunk."""
        return self._first is not None

    def uniform(self, chunks: Iterator[Chunk], key: Key) -> Iterator[Chunk]:
        """Pass chunks on, columns in one order; one that does not fit is bad."""
        for chunk in chunks:
            fitted, reason = self.fit(chunk, key)
            if reason is None:
                yield fitted
            else:
                path, where = key.where(chunk.ids[0])
                self._log.bad(path, f"from {where} on", reason)

    def fit(self, chunk: Chunk, key: Key) -> tuple[Chunk, str | None]:
        """A chunk with its columns in the order of the first one, or why it does not fit."""
        if not chunk.num_rows:
            return chunk, None
        leaves, structure = flatten(chunk.data)
        if self._first is None:
            path, _ = key.where(chunk.ids[0])
            specs, _ = flatten(spec_of(chunk.data))
            self._first = _First(path, structure, outline_of(leaves), specs)
        first = self._first
        is_like_it = structure is first.structure or structure == first.structure
        if is_like_it and outline_of(leaves) == first.outline:  # as nearly all
            return chunk, None
        fitted, reason = first.fit(chunk.data)
        return chunk._replace(data=fitted), reason

    def unlike(self, data: Batch) -> str | None:
        """What is odd in some records of a chunk that does not fit."""
        assert self._first is not None, "it fits itself"
        return self._first.unlike(data)


@final
@dataclass(frozen=True, slots=True)
class _First:
    """The first chunk.

    Attributes:
        path: the file that it is from.
        structure: its columns.
        outline: of its leaves; equal ones have the same specs.
        specs: of its leaves.
    """

    path: str
    structure: Structure
    outline: list[Any]
    specs: list[TensorSpec]

    def fit(self, data: Batch) -> tuple[Batch, str | None]:
        """A chunk in the shape of the first one, or what is between them."""
        reason = self.unlike(data)
        leaves = None if reason else leaves_like(data, self.structure)
        if leaves is None:
            return data, reason or self._other_columns(flatten(data)[1])
        return unflatten(self.structure, leaves), None

    def unlike(self, data: Batch) -> str | None:
        """What is odd in some records of a chunk, of which none may have a text."""
        specs, structure = flatten(spec_of(data))
        expected = dict(zip(leaf_names(self.structure, "record"), self.specs, strict=True))
        found = dict(zip(leaf_names(structure, "record"), specs, strict=True))
        lost = [first.dtype for name, first in expected.items() if name not in found]
        if not found.keys() <= expected.keys() or not all(isinstance(one, type) for one in lost):
            return self._other_columns(structure)
        for name, spec in found.items():
            first = expected[name]
            if not _alike(first, spec):
                said = f"expected {_said(first)} at {name} {self._where}, got {_said(spec)}"
                return f"{said}. {_cure(name, first, spec)}"
        return None

    @property
    def _where(self) -> str:
        return f"as in the first records, of {self.path}"

    def _other_columns(self, structure: Structure) -> str:
        expected, got = (leaf_names(found, "record") for found in (self.structure, structure))
        return (
            f"expected the columns {expected} {self._where}, got {got}. "
            "Give all records the same columns, or choose those that all have by the reader's "
            "columns= (a text that some lack needs its type there: str)"
        )


def _alike(one: TensorSpec, other: TensorSpec) -> bool:
    """Lists hold what they hold, but not text and bytes; tensors and arrays can be joined."""
    if {one.dtype, other.dtype} == {str, bytes}:
        return False
    sized = one.shape == other.shape or one.layout is torch.jagged
    return same_kind(one, other) and one.layout == other.layout and sized


def _said(spec: TensorSpec) -> str:
    return f"{spec.dtype} of shape {spec.shape}"


def _cure(name: str, first: TensorSpec, spec: TensorSpec) -> str:
    """What to write, for readers that take types of columns."""
    if not {first.dtype, spec.dtype} <= {torch.int64, torch.float64}:
        return "Fix the files, or leave the column out with the reader's columns="
    dtype: Any = torch.promote_types(first.dtype, spec.dtype)
    wanted = dtype if len(first.shape) == 1 == len(spec.shape) else f"({dtype}, ...)"
    entry = f"{name.removeprefix('record[').removesuffix(']')}: {wanted}"
    return f"In JSON lines and CSV, pass columns={{{entry}}}, with the other columns"
