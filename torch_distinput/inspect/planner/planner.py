"""From what a user will pass to ``distribute_dataset`` to the plan of an epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from torch_distinput.errors import TooFewFilesError
from torch_distinput.inspect.planner import file_sources
from torch_distinput.inspect.planner.arguments import (
    check_bytes,
    check_size,
    make_size_error,
    refuse_beside,
)
from torch_distinput.inspect.planner.epoch_numbers import PolicyCost
from torch_distinput.inspect.planner.epoch_plan import EpochPlan
from torch_distinput.inspect.planner.known_files import KnownFiles
from torch_distinput.inspect.planner.notes import list_notes, note_idle_replicas
from torch_distinput.inspect.planner.ordered_sources import OrderedBatches, cut_source
from torch_distinput.inspect.planner.outcomes import PolicyOutcome, compare_policies, play_files
from torch_distinput.inspect.planner.totals.epoch_totals import Pieces
from torch_distinput.inspect.planner.totals.own_streams import total_own_streams
from torch_distinput.inspect.planner.totals.shared_stream import total_shared_stream
from torch_distinput.options import (
    AutoShardPolicy,
    InputOptions,
    Rebatch,
    check_count,
    check_flag,
    check_options,
)
from torch_distinput.plan.assignment.order import EpochOrder, UniformBatches
from torch_distinput.plan.assignment.sharding import resolve_policy
from torch_distinput.rendering.units import show_count

_PAGE = 1000
"""Files of which an object store tells at a time."""


def plan_epoch(
    source: Any,
    *,
    num_workers: int,
    global_batch_size: Any = None,
    replicas_per_worker: int = 1,
    shuffle: bool = False,
    seed: int = 0,
    epoch: int = 0,
    drop_last: bool = False,
    split_files: bool = False,
    count: bool = False,
    bytes_per_example: float | None = None,
    storage_options: Mapping[str, Any] | None = None,
    options: InputOptions | None = None,
) -> EpochPlan:
    """Say what an epoch will be on a number of workers: by counts alone, without ranks.

    >>> import torch_distinput as tdi
    >>> plan = tdi.plan_epoch([700, 300, 500], num_workers=3, global_batch_size=60)
    >>> plan.steps, plan.zero_row_steps, plan.first_zero_row_step
    (36, 21, 15)

    What it says is what a run does, as far as the examples were counted (``is_exact``). For a
    length, counts and paths it imports no torch.

    Args:
        source: a number of examples; a list or array with the examples of each file; paths or
            globs; a :class:`FileDataset`; or what ``distribute_dataset`` takes and has a length.
        num_workers: workers, which are ranks that train on different data.
        global_batch_size: as for ``distribute_dataset``; None where a DataLoader has it.
        replicas_per_worker: local replicas of each worker.
        shuffle: as for ``distribute_dataset``: of files it permutes the list.
        seed: as for ``distribute_dataset``.
        epoch: of which the order is asked.
        drop_last: leave out the last partial batch.
        split_files: deal out parts of files. For paths: a FileDataset says so itself.
        count: look into the files and count their records, as a run does where their format tells
            (parquet, arrow, npy, npz). Needs torch. For paths: the names tell the format.
        bytes_per_example: what an example takes in a file on average, where nobody has counted.
        storage_options: passed to the fsspec file system. For paths.
        options: of which ``auto_shard_policy`` and ``rebatch`` decide.

    Raises:
        TypeError: if an argument is of another type, or the source is none.
        ValueError: for sizes below 1, for sources that nobody can count before they are read, and
            (:class:`TooFewFilesError`) for fewer files than workers under FILE.
    """
    chosen = check_options(options)
    key = (check_count("seed", seed, minimum=0), check_count("epoch", epoch, minimum=0))
    pieces = Pieces(
        num_workers=check_count("num_workers", num_workers, minimum=1),
        per_worker=check_count("replicas_per_worker", replicas_per_worker, minimum=1),
        rebatch=Rebatch(chosen.rebatch),
        full_size=check_size(global_batch_size),
    )
    shuffle, drop_last = check_flag("shuffle", shuffle), check_flag("drop_last", drop_last)
    policy = AutoShardPolicy(chosen.auto_shard_policy)
    plan = EpochPlan(
        source="",
        num_workers=pieces.num_workers,
        replicas_per_worker=pieces.per_worker,
        global_batch_size=global_batch_size,
        policy=policy,
    )
    known = _know_files(source, count=count, split=split_files, storage_options=storage_options)
    if known is None:
        refuse_beside(source, count=count, split_files=split_files, storage_options=storage_options)
        batches = _cut(source, global_batch_size, shuffle=shuffle, drop_last=drop_last, key=key)
        return _plan_batches(plan, batches, pieces, bytes_per_example)
    if not pieces.full_size:
        raise make_size_error(known.name, global_batch_size)
    if shuffle or known.order_key is not None:
        known = replace(known, order_key=key)
    if bytes_per_example is not None:
        known = file_sources.with_estimate(known, check_bytes(bytes_per_example))
    return _plan_files(plan, known, pieces, drop_last=drop_last)


def _know_files(
    source: Any, *, count: bool, split: bool, storage_options: Mapping[str, Any] | None
) -> KnownFiles | None:
    """What is known of files; None of what is no files."""
    paths = [source] if file_sources.is_path(source) else source
    if isinstance(paths, (list, tuple)) and paths and all(map(file_sources.is_path, paths)):
        written = [str(path) for path in paths]
        if not count:
            found = file_sources.know_paths(written, storage_options or {})
            return replace(found, is_split=split)
        return file_sources.count_paths(written, storage_options or {}, split=split)
    is_counts = isinstance(source, np.ndarray) and source.ndim == 1 and source.dtype.kind in "iu"
    if is_counts or _holds_numbers(source):
        refuse_beside(source, count=count, split_files=split, storage_options=storage_options)
        return file_sources.know_counts(source)
    if type(source).__name__ == "FileDataset":
        refuse_beside(source, split_files=split, storage_options=storage_options)
        found = file_sources.know_dataset(source, count=count)
        return replace(found, order_key=(0, 0)) if source.shuffle_files else found
    return None


def _holds_numbers(source: Any) -> bool:
    """Whether it is a list of whole numbers."""
    is_list = isinstance(source, (list, tuple)) and bool(source)
    return is_list and all(isinstance(n, (int, np.integer)) for n in source)


def _cut(
    source: Any, size: Any, *, shuffle: bool, drop_last: bool, key: tuple[int, int]
) -> OrderedBatches:
    """The global batches of what has an index, or of so many examples."""
    if not (hasattr(type(source), "__index__") and not hasattr(type(source), "__len__")):
        return cut_source(source, size, shuffle=shuffle, drop_last=drop_last, key=key)
    number = check_count("the number of examples", source, minimum=0)
    if not check_size(size):
        raise make_size_error(show_count(number, "example"), size)
    batches = UniformBatches(
        order=EpochOrder(num_examples=number), global_batch_size=int(size), drop_last=drop_last
    )
    return OrderedBatches(
        name=show_count(number, "example"),
        runs=batches.runs,
        num_dropped=batches.num_dropped,
        drops_last=drop_last,
        size=int(size),
    )


def _plan_batches(
    plan: EpochPlan,
    batches: OrderedBatches,
    pieces: Pieces,
    bytes_per_example: float | None,
) -> EpochPlan:
    """Plan batches that all workers share, or that each plays all of."""
    policy = resolve_policy(plan.policy, has_shards=False, source=batches.name)
    count = sum(run.count * run.size for run in batches.runs) + batches.num_dropped
    size = batches.size if isinstance(batches.size, int) else 0
    if pieces.rebatch is Rebatch.CYCLE and not size:
        raise make_size_error(batches.name, plan.global_batch_size)
    pieces = replace(pieces, full_size=size)
    if policy is AutoShardPolicy.DATA:
        totals = total_shared_stream(pieces, batches.runs, batches.num_dropped)
    elif size:
        lengths = np.full(pieces.num_workers, count, dtype=np.int64)
        totals = total_own_streams(pieces, lengths, drop_last=batches.drops_last)
    else:
        raise make_size_error(batches.name, plan.global_batch_size)
    outcome = PolicyOutcome(policy=policy, totals=totals)
    planned = _fill_in(plan, batches.name, outcome, pieces)
    if bytes_per_example is None or planned.examples_by_worker is None:
        return replace(planned, num_examples=count)
    each = check_bytes(bytes_per_example)
    read = np.rint(planned.examples_by_worker * each).astype(np.int64)
    note = f"Bytes are estimated, at {each:,g} for each example."
    return replace(
        planned,
        num_examples=count,
        num_bytes=round(count * each),
        bytes_by_worker=read,
        notes=(*planned.notes, note),
    )


def _plan_files(
    plan: EpochPlan, known: KnownFiles, pieces: Pieces, *, drop_last: bool
) -> EpochPlan:
    """Plan files that are dealt out, or read by all workers."""
    policy = resolve_policy(plan.policy, has_shards=True, source=known.name)
    split = known.is_split and policy is AutoShardPolicy.FILE
    outcome = play_files(known, pieces, policy, split=split, drop_last=drop_last)
    found = compare_policies(known, pieces, drop_last=drop_last)
    costs = tuple(_sum_up(name, one) for name, one in found.items())
    pages = -(-known.num_files // _PAGE) * pieces.num_workers
    planned = _fill_in(plan, known.name, outcome, pieces)
    examples = None if known.examples is None else int(known.examples.sum())
    return replace(
        planned,
        num_files=known.num_files,
        num_examples=examples,
        num_bytes=None if known.sizes is None else int(known.sizes.sum()),
        listing_requests=pages if known.listing else None,
        costs=costs,
        notes=(*planned.notes, *list_notes(known, outcome)),
        known=known,
    )


def _fill_in(plan: EpochPlan, name: str, outcome: PolicyOutcome, pieces: Pieces) -> EpochPlan:
    totals, reads = outcome.totals, outcome.reads
    filled = replace(
        plan,
        source=name,
        policy=outcome.policy,
        split_files=outcome.is_split,
        is_exact=outcome.is_exact and totals is not None,
        notes=note_idle_replicas(pieces),
    )
    if totals is not None:
        filled = replace(
            filled,
            steps=totals.steps,
            num_dropped=totals.num_dropped,
            zero_row_steps=totals.zero_row_steps,
            examples_by_worker=totals.examples,
            zero_row_batches_by_worker=totals.zero_row_batches,
            first_zero_row_step_by_worker=totals.first_zero_row_step,
        )
    if reads is None:
        return filled
    return replace(
        filled,
        requests=reads.requests,
        bytes_by_worker=reads.num_bytes,
        files_by_worker=reads.files,
        readers=reads.readers,
    )


def _sum_up(name: str, outcome: PolicyOutcome | TooFewFilesError) -> PolicyCost:
    if isinstance(outcome, TooFewFilesError):
        return PolicyCost(name=name, refused="fewer files than workers")
    totals, reads = outcome.totals, outcome.reads
    assert reads is not None, "of files"
    imbalance = None
    if totals is not None and totals.examples.any():
        imbalance = float(totals.examples.max() / totals.examples.mean())
    return PolicyCost(
        name=name,
        steps=None if totals is None else totals.steps,
        zero_row_steps=None if totals is None else totals.zero_row_steps,
        imbalance=imbalance,
        num_bytes=None if reads.num_bytes is None else int(reads.num_bytes.sum()),
        most_bytes=None if reads.num_bytes is None else int(reads.num_bytes.max()),
        requests=reads.requests,
        is_exact=outcome.is_exact and totals is not None,
    )
