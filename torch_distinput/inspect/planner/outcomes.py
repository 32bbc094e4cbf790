"""What comes of a policy: steps, rows and reads of every worker."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torch_distinput.errors import TooFewFilesError
from torch_distinput.inspect.planner.known_files import KnownFiles
from torch_distinput.inspect.planner.reads import Reads, read_dealt, read_shared, read_whole
from torch_distinput.inspect.planner.totals.epoch_totals import EpochTotals, Integers, Pieces
from torch_distinput.inspect.planner.totals.own_streams import total_own_streams
from torch_distinput.inspect.planner.totals.shared_stream import total_shared_stream
from torch_distinput.options import AutoShardPolicy
from torch_distinput.plan.assignment.bounds import FixedBounds
from torch_distinput.plan.assignment.order import EpochOrder, UniformBatches
from torch_distinput.plan.assignment.sharding import check_enough_shards


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PolicyOutcome:
    """An epoch under a policy.

    Attributes:
        policy: never AUTO.
        is_split: parts of files are dealt out.
        totals: None where nobody knows how many examples there are.
        reads: None where there are no files.
        is_exact: the examples were counted, and so are the parts that are dealt out.
    """

    policy: AutoShardPolicy
    is_split: bool = False
    totals: EpochTotals | None
    reads: Reads | None = None
    is_exact: bool = True


def play_files(
    files: KnownFiles, pieces: Pieces, policy: AutoShardPolicy, *, split: bool, drop_last: bool
) -> PolicyOutcome:
    """Play files under a policy.

    Raises:
        TooFewFilesError: FILE has fewer files than workers, which a run would refuse as well.
    """
    if policy is AutoShardPolicy.FILE:
        return _play_dealt(files, pieces, split=split, drop_last=drop_last)
    total = None if files.examples is None else files.count_through(int(files.examples.sum()))
    reads = read_whole(files, pieces.num_workers)
    totals = None
    if total is not None and policy is AutoShardPolicy.OFF:
        lengths = np.full(pieces.num_workers, total, dtype=np.int64)
        totals = total_own_streams(pieces, lengths, drop_last=drop_last)
    elif total is not None:
        totals = _play_shared(total, pieces, drop_last=drop_last)
        if files.jumps:
            stop = FixedBounds(size=pieces.full_size).find_last_end(total, drop_last=drop_last)
            reads = read_shared(files, pieces, stop)
    return PolicyOutcome(policy=policy, totals=totals, reads=reads, is_exact=files.is_exact)


def _play_shared(num_examples: int, pieces: Pieces, *, drop_last: bool) -> EpochTotals:
    """Play one stream of so many examples, which all workers share."""
    batches = UniformBatches(
        order=EpochOrder(num_examples=num_examples),
        global_batch_size=pieces.full_size,
        drop_last=drop_last,
    )
    return total_shared_stream(pieces, batches.runs, batches.num_dropped)


def compare_policies(
    files: KnownFiles, pieces: Pieces, *, drop_last: bool
) -> dict[str, PolicyOutcome | TooFewFilesError]:
    """What each way to read files would come to, by its name."""
    found: dict[str, PolicyOutcome | TooFewFilesError] = {}
    for name, policy, split in (
        ("FILE", AutoShardPolicy.FILE, False),
        ("FILE, split_files", AutoShardPolicy.FILE, True),
        ("DATA", AutoShardPolicy.DATA, False),
    ):
        if split and files.split_parts is None and files.sizes is None:
            continue  # nobody knows how many parts there would be
        try:
            found[name] = play_files(files, pieces, policy, split=split, drop_last=drop_last)
        except TooFewFilesError as error:
            found[name] = error
    return found


def _play_dealt(
    files: KnownFiles, pieces: Pieces, *, split: bool, drop_last: bool
) -> PolicyOutcome:
    if not split:
        cure = f"write {pieces.num_workers} files or more, or pass split_files=True"
        what = f"the plan of {files.name}"
        check_enough_shards(files.num_files, pieces.num_workers, what=what, cure=cure)
    reads = read_dealt(files, pieces.num_workers, split=split)
    lengths = None if reads.examples is None else _count_through(files, reads.examples)
    totals = None
    if lengths is not None:
        totals = total_own_streams(pieces, lengths, drop_last=drop_last)
    return PolicyOutcome(
        policy=AutoShardPolicy.FILE,
        is_split=split,
        totals=totals,
        reads=reads,
        is_exact=files.is_exact and not (split and files.split_parts is None),
    )


def _count_through(files: KnownFiles, lengths: Integers) -> Integers | None:
    """What operations leave of each worker's stream."""
    if not files.operations:
        return lengths
    counted = [files.count_through(length) for length in lengths.tolist()]
    return None if None in counted else np.array(counted, dtype=np.int64)
