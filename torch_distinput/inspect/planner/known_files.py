"""Files as a plan sees them: how many bytes and examples each has, and what can be dealt out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from torch_distinput.data.storage.file_listing import FileInfo
from torch_distinput.inspect.planner.totals.epoch_totals import Integers
from torch_distinput.plan.assignment.permutation import permute_files

ASSUMED_PART_BYTES = 4 << 20
"""What files are taken to be cut into where nobody has looked, as text is."""


class _Operation(Protocol):
    def count(self, num_records: int) -> int | None: ...


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pile:
    """What is dealt out, in order: files, or parts of them.

    Attributes:
        examples: of each; None where they are not known.
        sizes: bytes of each; None where they are not known.
        number: how many there are.
    """

    examples: Integers | None
    sizes: Integers | None
    number: int

    def take(self, order: Integers) -> Pile:
        """The same in another order."""
        examples = None if self.examples is None else self.examples[order]
        sizes = None if self.sizes is None else self.sizes[order]
        return Pile(examples=examples, sizes=sizes, number=len(order))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class KnownParts:
    """What files can be cut into, in the order of the files.

    Attributes:
        files: the file of each part.
        examples: of each; None where they are not known.
    """

    files: Integers
    examples: Integers | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class KnownFiles:
    """Files, and what is known of them before they are read.

    Attributes:
        name: how a plan calls them.
        num_files: how many there are.
        sizes: bytes of each; None where they are not known.
        examples: of each; None where they are not known.
        is_exact: examples were counted, and not estimated from bytes.
        parts: what files are read in, where they were looked into.
        split_parts: what would be dealt out if files are split; None where nobody has looked.
        is_split: parts are dealt out instead of files.
        order_key: seed and epoch, where files are dealt out in the order of an epoch.
        operations: what is done to the records of a stream.
        jumps: a worker that shares a stream passes over the parts that it needs nothing of.
        listing: the files themselves, if there are any.
    """

    name: str
    num_files: int
    sizes: Integers | None = None
    examples: Integers | None = None
    is_exact: bool = False
    parts: KnownParts | None = None
    split_parts: KnownParts | None = None
    is_split: bool = False
    order_key: tuple[int, int] | None = None
    operations: tuple[_Operation, ...] = ()
    jumps: bool = False
    listing: Sequence[FileInfo] = field(default=())

    def count_through(self, num_records: int) -> int | None:
        """How many records of a stream are left after the operations; None if nobody knows."""
        counted: int | None = num_records
        for operation in self.operations:
            counted = None if counted is None else operation.count(counted)
        return counted

    def order(self, number: int) -> Integers:
        """The order in which so many files or parts are dealt out."""
        if self.order_key is None:
            return np.arange(number)
        seed, epoch = self.order_key
        return permute_files(number, seed=seed, epoch=epoch)

    def make_pile(self, *, split: bool) -> Pile:
        """What is dealt out, in the order of the epoch."""
        pile = Pile(examples=self.examples, sizes=self.sizes, number=self.num_files)
        if split:
            assert self.split_parts is not None, "asked where files were looked into"
            pile = self._cut(self.split_parts)
        return pile if self.order_key is None else pile.take(self.order(pile.number))

    def make_units(self) -> Pile:
        """What a shared stream is read in, in order: parts, of the files in their order."""
        assert self.parts is not None, "asked where files were looked into"
        units = self._cut(self.parts)
        return units if self.order_key is None else units.take(self._order_units(self.parts))

    def make_unit_files(self) -> Integers:
        """The file of each of these."""
        assert self.parts is not None, "asked where files were looked into"
        files = self.parts.files
        return files if self.order_key is None else files[self._order_units(self.parts)]

    def _order_units(self, parts: KnownParts) -> Integers:
        if self.is_split:
            return self.order(len(parts.files))
        place = np.empty(self.num_files, dtype=np.int64)
        place[self.order(self.num_files)] = np.arange(self.num_files)
        return np.argsort(place[parts.files], kind="stable")

    def _cut(self, parts: KnownParts) -> Pile:
        """The parts; where nobody has counted, a file's number is shared out."""
        examples = parts.examples
        if examples is None and self.examples is not None:
            examples = self._share_out(self.examples, parts)
        sizes = None if self.sizes is None else self._share_out(self.sizes, parts)
        return Pile(examples=examples, sizes=sizes, number=len(parts.files))

    def _share_out(self, values: Integers, parts: KnownParts) -> Integers:
        """Give each part its share of its file's number, in proportion to its records."""
        files = parts.files
        weights = np.ones(len(files)) if parts.examples is None else parts.examples
        before = np.concatenate([np.zeros(1), np.cumsum(weights, dtype=np.float64)])
        borders = np.searchsorted(files, np.arange(self.num_files + 1))
        begin, total = before[borders[:-1]][files], np.diff(before[borders])[files]
        share = values[files] / np.maximum(total, 1e-300)
        ends = np.rint((before[1:] - begin) * share).astype(np.int64)
        begins = np.rint((before[:-1] - begin) * share).astype(np.int64)
        shares: Integers = ends - begins
        return shares


def deal(values: Integers, num_workers: int) -> Integers:
    """Sum up what each worker gets of what is dealt out in turn."""
    dealt = np.zeros(-(-len(values) // num_workers) * num_workers, dtype=np.int64)
    dealt[: len(values)] = values
    total: Integers = dealt.reshape(-1, num_workers).sum(axis=0)
    return total


def deal_even_parts(values: Integers, num_parts: Integers, num_workers: int) -> Integers:
    """As :func:`deal`, of files that are cut into so many parts of one size.

    No part is made, of which there may be a hundred million: a file gives the same to all, and
    one more part to those from the worker that is next on. Rounded to whole numbers.
    """
    each = values / np.maximum(num_parts, 1)
    next_worker = np.concatenate([np.zeros(1, np.int64), np.cumsum(num_parts)[:-1]]) % num_workers
    stop = next_worker + num_parts % num_workers
    change = np.zeros(2 * num_workers + 1)
    np.add.at(change, next_worker, each)
    np.add.at(change, stop, -each)
    more = np.cumsum(change[:-1]).reshape(2, num_workers).sum(axis=0)
    dealt: Integers = np.rint((each * (num_parts // num_workers)).sum() + more).astype(np.int64)
    return dealt
