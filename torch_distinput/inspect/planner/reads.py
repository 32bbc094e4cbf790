"""What each worker reads: files, bytes, and requests to a storage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torch_distinput.data.storage.range_reader import count_requests
from torch_distinput.inspect.planner.known_files import (
    ASSUMED_PART_BYTES,
    FEWEST_PARTS,
    KnownFiles,
    Pile,
    deal,
    deal_even_parts,
)
from torch_distinput.inspect.planner.totals import Integers, Pieces


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Readers:
    """Who reads each part, in the order of the stream: neighbours, round the end.

    Attributes:
        first: the first worker.
        last: behind the last one; ``first`` where nobody does.
        among: the number that follows after the last worker is that of the first one.
    """

    first: Integers
    last: Integers
    among: int

    def sum_over(self, values: Integers, num_workers: int) -> Integers:
        """Give each worker the values of the parts that it reads."""
        change = np.zeros(2 * self.among + 1, dtype=np.int64)
        np.add.at(change, self.first, values)
        np.add.at(change, self.last, -values)
        total = np.zeros(num_workers, dtype=np.int64)
        total[: self.among] = np.cumsum(change[:-1]).reshape(2, self.among).sum(axis=0)
        return total

    def parts_of(self, worker: int) -> Integers:
        """The numbers of the parts that a worker reads, in the order of the stream."""
        own = np.zeros(len(self.first), dtype=np.bool_)
        for number in (worker, worker + self.among) if worker < self.among else ():
            own |= (self.first <= number) & (number < self.last)
        return np.flatnonzero(own)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Reads:
    """Arrays have an element for each worker, in order.

    Attributes:
        examples: in the stream that is its own; None where they are not known, or it has none.
        files: how many files, or parts of them, it opens.
        num_bytes: of these; None where sizes are not known.
        requests: over all workers, each file or part being read from one end to the other.
        readers: of each part of a shared stream that some workers pass over; None elsewhere.
    """

    examples: Integers | None = None
    files: Integers
    num_bytes: Integers | None
    requests: int | None
    readers: Readers | None = None


def read_dealt(files: KnownFiles, num_workers: int, *, split: bool) -> Reads:
    """Files, or their parts, that are dealt out (FILE)."""
    if split and files.part_files is None:
        return _read_even_parts(files, num_workers)
    pile = files.make_pile(split=split)
    return Reads(
        examples=None if pile.examples is None else deal(pile.examples, num_workers),
        files=deal(np.ones(pile.number, dtype=np.int64), num_workers),
        num_bytes=None if pile.sizes is None else deal(pile.sizes, num_workers),
        requests=_count_requests(pile),
    )


def read_whole(files: KnownFiles, num_workers: int) -> Reads:
    """Every worker reads everything (OFF, and DATA where nothing can be passed over)."""
    total = None if files.sizes is None else int(files.sizes.sum())
    pile = Pile(examples=files.examples, sizes=files.sizes, number=files.num_files)
    requests = _count_requests(pile)
    return Reads(
        files=np.full(num_workers, files.num_files, dtype=np.int64),
        num_bytes=None if total is None else np.full(num_workers, total, dtype=np.int64),
        requests=None if requests is None else requests * num_workers,
    )


def read_shared(files: KnownFiles, pieces: Pieces, stop: int) -> Reads:
    """The parts of one stream that hold rows of a worker's pieces (DATA); others are passed over.

    Args:
        files: counted, part by part.
        pieces: how batches are cut.
        stop: the row after the last one that is delivered.
    """
    units = files.make_units()
    assert units.examples is not None, "counted"
    ends = np.cumsum(units.examples)
    readers = _find_readers(pieces, ends - units.examples, np.minimum(ends, stop), stop)
    requests = num_bytes = None
    if units.sizes is not None:
        each = readers.last - readers.first
        requests = int((count_requests(units.sizes) * each).sum())
        num_bytes = readers.sum_over(units.sizes, pieces.num_workers)
    ones = np.ones(units.number, dtype=np.int64)
    return Reads(
        files=readers.sum_over(ones, pieces.num_workers),
        num_bytes=num_bytes,
        requests=requests,
        readers=readers,
    )


def _find_readers(pieces: Pieces, begins: Integers, ends: Integers, stop: int) -> Readers:
    """Who needs rows of each part: workers from the first to before the last, round the end.

    The pieces of a batch lie in the order of the workers, so those of a part do.

        rows      0       4       8       12      16         batches of 8 rows, 4 workers
        workers   0 0 1 1 2 2 3 3 0 0 1 1 2 2 3 3
        part            |-----------|                        rows 3 to 8: workers 1, 2, 3, 0
    """
    size = pieces.full_size
    starts = np.arange(pieces.num_workers + 1) * pieces.per_worker
    full, partial = pieces.bound(size, starts), pieces.bound(stop % size, starts)
    last_batch = stop // size * size
    most_full = np.count_nonzero(np.diff(full)) if last_batch else 0
    among = max(1, int(most_full), int(np.count_nonzero(np.diff(partial))))

    def find_worker(rows: Integers) -> Integers:
        in_full = np.searchsorted(full, rows % size, side="right") - 1
        in_partial = np.searchsorted(partial, rows - last_batch, side="right") - 1
        return np.where(rows >= last_batch, in_partial, in_full)

    is_read, end_row = ends > begins, np.maximum(0, ends - 1)
    first = np.where(is_read, find_worker(begins), 0)
    last = find_worker(end_row) + 1 + (end_row // size - begins // size) * among
    last = np.where(is_read, np.minimum(last, first + among), first)
    return Readers(first=first, last=last, among=among)


def _read_even_parts(files: KnownFiles, num_workers: int) -> Reads:
    """Parts that nobody has looked for: taken to be of one size, as most readers cut."""
    sizes = files.sizes
    num_parts = np.ones(files.num_files, dtype=np.int64)
    if sizes is not None:
        fewest = np.minimum(sizes, -(-FEWEST_PARTS // files.num_files))
        num_parts = np.maximum(fewest, np.maximum(1, -(-sizes // ASSUMED_PART_BYTES)))
    order = files.order(files.num_files)
    examples = files.examples

    def dealt(values: Integers) -> Integers:
        return deal_even_parts(values[order], num_parts[order], num_workers)

    total = int(num_parts.sum())
    more = np.arange(num_workers) < total % num_workers
    return Reads(
        examples=None if examples is None else dealt(examples),
        files=total // num_workers + more.astype(np.int64),
        num_bytes=None if sizes is None else dealt(sizes),
        requests=None
        if sizes is None
        else int((num_parts * count_requests(-(-sizes // num_parts))).sum()),
    )


def _count_requests(pile: Pile) -> int | None:
    return None if pile.sizes is None else int(count_requests(pile.sizes).sum())
