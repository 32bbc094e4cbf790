"""Sources that answer by index: columns, map-style datasets, lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import length_hint
from typing import Any, final

import torch

from torch_distinput import meter
from torch_distinput.data.batch import rows
from torch_distinput.data.batch.buffer_pool import LARGE, Allocate, Buffers, pageable
from torch_distinput.data.batch.collate import CollateFn, collate_examples, collate_with
from torch_distinput.data.batch.leaf_kinds import is_selectable, kind_of
from torch_distinput.data.batch.structure import Structure
from torch_distinput.data.batch.tree import Batch, flatten
from torch_distinput.data.stream.chunk import Chunk, Cursor
from torch_distinput.data.stream.protocols import RowReader, Stream
from torch_distinput.data.user_sources.epochs import AtEpoch
from torch_distinput.data.user_sources.parts import find_getitems, may_give_columns
from torch_distinput.data.user_sources.source_errors import source_error
from torch_distinput.errors import SourceError
from torch_distinput.meter import WorkClock
from torch_distinput.plan.assignment.order import ExampleOrder
from torch_distinput.plan.assignment.permutation import Indices
from torch_distinput.plan.progress.place import Place, Start
from torch_distinput.plan.progress.route import Shard

_INDEX = "index"
"""The kind of place in an order of indices."""


@final
@dataclass(frozen=True, slots=True)
class ColumnFetch:
    """Batches from columns: one gathering per leaf, no example ever made."""

    structure: Structure
    columns: tuple[_Column, ...]

    makes_batches = True  # in memory of their own

    @staticmethod
    def of(columns: Batch, allocate: Allocate = pageable) -> ColumnFetch:
        """Take a tree of tensors and arrays. None is copied: it may be a file mapped to memory."""
        rows.num_rows(columns)  # refuses different ones
        leaves, structure = flatten(rows.with_shared_tensors(columns))
        return ColumnFetch(structure, tuple(_Column.of(leaf, allocate) for leaf in leaves))

    @property
    def num_examples(self) -> int:
        """Rows of the columns."""
        leaf = self.columns[0].leaf
        return kind_of(leaf).count(leaf)

    def __call__(self, indices: Indices) -> Batch:
        """Return the rows at the indices."""
        return self.structure.build(self.leaves(indices))

    def leaves(self, indices: Indices) -> list[Any]:
        """Return the rows at the indices, leaf by leaf."""
        wanted, count = torch.from_numpy(indices), len(indices)
        return [column.take(wanted, count) for column in self.columns]

    def examples(self, indices: Indices) -> list[Any]:
        """Return rows as examples."""
        return [self.example(index) for index in indices.tolist()]

    def example(self, index: int) -> Any:
        """Return one row as an example."""
        return self.structure.build([_row(column.leaf, index) for column in self.columns])


@final
@dataclass(frozen=True, slots=True)
class _Column:
    """A leaf with all examples.

    Attributes:
        leaf: of whatever kind.
        row_bytes: bytes of a row.
        row_shape: its sizes.
        buffers: memory to gather rows into; None where they cannot be gathered into any.
    """

    leaf: Any
    row_bytes: int = 0
    row_shape: tuple[int, ...] = ()
    buffers: Buffers | None = None

    @staticmethod
    def of(leaf: Any, allocate: Allocate) -> _Column:
        # The buffers are in host memory, and out= has no gradient.
        if not is_selectable(leaf) or leaf.requires_grad or not leaf.is_cpu:
            return _Column(leaf)
        return _Column(leaf, leaf[:1].nbytes, tuple(leaf.shape[1:]), Buffers(allocate))

    def take(self, wanted: torch.Tensor, count: int) -> Any:
        leaf = self.leaf
        if self.buffers is None:
            return rows.as_tensor(kind_of(leaf).take(leaf, wanted))
        if count * self.row_bytes < LARGE:
            return leaf.index_select(0, wanted)
        out = self.buffers.empty((count, *self.row_shape), leaf.dtype)
        return torch.index_select(leaf, 0, wanted, out=out)


def _row(leaf: Any, index: int) -> Any:
    return rows.as_tensor(rows.slice_rows(leaf, index, index + 1))[0]


def timed_collate(
    examples: list[Any],
    collate: CollateFn,
    clock: WorkClock | None,
    *,
    num_asked: int | None = None,
) -> Batch:
    """Make a batch of examples; the clock, if there is one, counts what that takes."""
    if clock is None:
        return rows.with_tensors(collate_with(collate, examples, num_asked=num_asked))
    started = meter.now()
    batch = rows.with_tensors(collate_with(collate, examples, num_asked=num_asked))
    clock.collate += meter.now() - started
    return batch


@final
@dataclass(frozen=True, slots=True)
class ExampleFetch:
    """Batches from ``__getitems__``, or from ``__getitem__`` one by one, collated.

    ``clock``: counts the time of collating.
    """

    dataset: Any
    collate: CollateFn
    clock: WorkClock | None = None

    def __call__(self, indices: Indices) -> Batch:
        """Return the collated examples at the indices; refuse more rows, or fewer."""
        batch = timed_collate(
            self.examples(indices),
            self.collate,
            self.clock,
            num_asked=len(indices) if may_give_columns(self.dataset) else None,
        )
        rows.check_row_count(batch, len(indices))
        return batch

    def examples(self, wanted: Indices) -> list[Any]:
        """Return the examples at the indices, not collated."""
        indices = wanted.tolist()
        many = find_getitems(self.dataset)
        if many is None:
            return self._one_by_one(indices)
        try:
            found: list[Any] = many(indices)
        except SourceError:
            raise
        except Exception as error:
            raise source_error(error, f"examples {indices[0]} to {indices[-1]}") from error
        if self.collate is collate_examples:  # a collate_fn of the user's may take anything
            _check_examples(found, len(indices))
        return found

    def _one_by_one(self, indices: list[int]) -> list[Any]:
        dataset, left = self.dataset, iter(indices)
        try:
            return [dataset[index] for index in left]
        except SourceError:
            raise
        except Exception as error:
            failed = indices[-1 - length_hint(left)]
            raise source_error(error, f"example {failed}") from error


@final
class EpochTeller:
    """Has a dataset at the epoch that is read, in each process that fetches its examples."""

    def __init__(self, dataset: Any) -> None:
        """Take a dataset of the user's, or None."""
        self._dataset = dataset
        self._known: tuple[int, AtEpoch] | None = None

    def at(self, epoch: int) -> AtEpoch:
        """Around what is fetched of an epoch."""
        known = self._known
        if known is None or known[0] != epoch:
            self._known = known = (epoch, AtEpoch(self._dataset, epoch))
        return known[1]


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class IndexedStream(Stream):
    """Examples by index that are read in order, beside streams that cannot be asked by index.

    Attributes:
        fetch: returns the examples at indices.
        make_order: the order of an epoch, by a seed and the epoch.
        told: tells the dataset which epoch is read.
        check_length: refuses a dataset that has grown or shrunk, in an epoch.
        packed_contents: see :class:`IndexedSource`.
    """

    fetch: Callable[[Indices], Batch]
    make_order: Callable[[int, int], ExampleOrder]
    told: EpochTeller
    check_length: Callable[[int], None]
    packed_contents: Indices | None

    def open(self, shard: Shard, start: Start = None) -> RowReader:
        """Start anywhere."""
        with self.told.at(shard.epoch):
            self.check_length(shard.epoch)
        order = self.make_order(shard.seed, shard.epoch)
        return _IndexReader(order, start.check(_INDEX).number("row") if start else 0)

    def finish(self, chunk: Chunk, shard: Shard) -> Batch:
        """Fetch the examples."""
        with self.told.at(shard.epoch):
            return self.fetch(chunk.data)

    def examples(self, chunk: Chunk, shard: Shard) -> list[Any]:
        """Fetch the examples."""
        with self.told.at(shard.epoch):
            found: list[Any] = self.fetch.examples(chunk.data)  # type: ignore[attr-defined]
        return found

    @property
    def has_work(self) -> bool:
        """Fetching is all the work."""
        return True

    @property
    def recipe(self) -> Mapping[str, Any]:
        """What it is made of is known elsewhere."""
        return {}

    @property
    def has_parts(self) -> bool:
        """It is not dealt out."""
        return False


@final
class _IndexReader:
    """Rows that are indices: they are fetched when it is known whose they are."""

    def __init__(self, order: ExampleOrder, row: int) -> None:
        self._order = order
        self._row = row

    def take(self, num_rows: int) -> Chunk | None:
        """Return the next indices."""
        indices = self._order.take_range(self._row, self._row + num_rows)
        if not len(indices):
            return None
        place = Cursor(start=Place(_INDEX, (("row", self._row),)))
        self._row += len(indices)
        return Chunk(data=indices, ids=indices, place=place)

    def skip(self, num_rows: int) -> int:
        """Pass over the next ones."""
        passed = min(num_rows, max(0, self._order.num_examples - self._row))
        self._row += passed
        return passed

    def notes(self) -> None:
        """There is nothing to say."""


def _check_examples(found: Any, count: int) -> None:
    """Refuse a ready batch, whose leaves would pass for examples."""
    if isinstance(found, (list, tuple)) and len(found) == count:
        return
    got = f"{type(found).__name__}{f' of {len(found)}' if hasattr(found, '__len__') else ''}"
    msg = (
        f"Expected __getitems__ to return a list with an example for each of {count} indices, got "
        f"a {got}. If it is a batch already, pass collate_fn=lambda batch: batch."
    )
    raise ValueError(msg)
