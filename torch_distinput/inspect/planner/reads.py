"""What each worker reads: files, bytes, and requests to a storage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torch_distinput.data.storage.input_file import FEWEST_UNITS
from torch_distinput.data.storage.range_reader import count_requests
from torch_distinput.inspect.planner.known_files import (
    ASSUMED_PART_BYTES,
    KnownFiles,
    Pile,
    deal,
    deal_even_parts,
)
from torch_distinput.inspect.planner.readers import Readers, find_readers
from torch_distinput.inspect.planner.totals.epoch_totals import Integers, Pieces


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
    if split and files.split_parts is None:
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
    readers = find_readers(pieces, ends - units.examples, np.minimum(ends, stop), stop)
    requests = num_bytes = None
    if units.sizes is not None:
        requests = int(readers.sum_over(count_requests(units.sizes)).sum())
        num_bytes = readers.sum_over(units.sizes)
    return Reads(
        files=readers.sum_over(np.ones(units.number, dtype=np.int64)),
        num_bytes=num_bytes,
        requests=requests,
        readers=readers,
    )


def _read_even_parts(files: KnownFiles, num_workers: int) -> Reads:
    """Parts that nobody has looked for: taken to be of one size, as most readers cut."""
    sizes = files.sizes
    num_parts = np.ones(files.num_files, dtype=np.int64)
    if sizes is not None:
        fewest = np.minimum(sizes, -(-FEWEST_UNITS // files.num_files))
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
