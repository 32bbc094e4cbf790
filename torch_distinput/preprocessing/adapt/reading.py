"""The batches of one pass over data: what a worker gets of it, or all of it in one process."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import default_collate

from torch_distinput.communicator import communicator_of
from torch_distinput.data.batch import rows
from torch_distinput.data.batch.fingerprint import fingerprint
from torch_distinput.data.batch.tree import map_leaves
from torch_distinput.data.sources.classify import BATCHED, classify, gives_examples
from torch_distinput.data.sources.resolve import open_source
from torch_distinput.data.sources.source import IndexedSource, ReadySource, Request, StreamSource
from torch_distinput.data.stream.bad_records import ReadCounter
from torch_distinput.data.user_sources.run import iterate
from torch_distinput.errors import TooFewFilesError, UsageError
from torch_distinput.options import AutoShardPolicy, InputOptions
from torch_distinput.plan.progress.route import Shard
from torch_distinput.preprocessing.columns.collate import (
    box_rows,
    collate_column,
    collate_columns,
    is_single,
)
from torch_distinput.values import Distributed, PerReplica, StepInfo

ROWS = 8192
"""Rows of a batch, for each replica, where the data has no batches."""


class Workers(Protocol):
    """A strategy, as far as this package knows it."""

    @property
    def num_replicas_in_sync(self) -> int:
        """Replicas over all workers."""

    def distribute_dataset(
        self,
        source: Any,
        *,
        global_batch_size: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        options: InputOptions | None = None,
    ) -> Any:
        """Distribute a source."""


def find_workers(data: Any, strategy: Workers | None) -> Workers | None:
    """Who shares the data: those that it is distributed over already, or those of a strategy.

    Raises:
        UsageError: if these are not the same.
    """
    own: Workers | None = data.strategy if is_distributed(data) else strategy
    num_workers = communicator_of(own).size
    is_played_by_all = is_distributed(data) and data.auto_shard_policy == AutoShardPolicy.OFF
    if num_workers > 1 and is_played_by_all:
        msg = (
            "Expected data of which each worker reads a part, got AutoShardPolicy.OFF, under "
            f"which all {num_workers} workers read everything: each example would be counted "
            "that often. Pass the source itself, with strategy=, or distribute it by another "
            "policy."
        )
        raise UsageError(msg)
    if strategy is not None and strategy is not own:
        msg = (
            f"Expected strategy= to be that of the dataset, {own!r}, got {strategy!r}. Leave "
            "strategy= out."
        )
        raise UsageError(msg)
    return own


def is_distributed(data: Any) -> bool:
    """Whether it is a distributed dataset, which this package does not know by its class."""
    return isinstance(data, Distributed)


def fingerprint_data(data: Any) -> int:
    """A number that is the same on all workers that pass the same data; 0 where it cannot tell.

    Of sources with an index some examples are looked at: a worker that passes rows of its own would
    go unseen where all have as many.
    """
    source = box_lists(data)
    if is_distributed(data) or classify(source) in BATCHED:
        return 0
    request = Request(global_batch_size=1, collate_fn=_choose_collate(source, 1))
    opened = open_source(source, request)
    if not isinstance(opened, IndexedSource) or not opened.num_examples:
        return 0
    last = opened.num_examples - 1
    some = opened.make_order(0, 0).take(np.array([0, last // 2, last]))
    return fingerprint(opened.fetch(some))


def read_batches(
    data: Any,
    strategy: Workers | None,
    batch_size: int | None,
    names: tuple[str, ...] | None = None,
) -> Generator[Any, None, None]:
    """Yield this worker's batches of one epoch, in host memory, none of them without rows.

    Args:
        data: a distributed dataset, which is played as it is; a source that a strategy can
            distribute; or, without a strategy, any iterable of batches. Lists in a dict are
            columns.
        strategy: of the workers that share the data; None: this process reads all of it.
        batch_size: examples of a batch over all workers, where the data has no batches.
        names: the columns to make of examples; None: all that the first ones have.
    """
    if is_distributed(data):
        yield from _play(data)
        return
    if isinstance(data, (str, bytes, os.PathLike)):
        msg = f"Expected data to adapt to, got {data!r:.80}. Wrap paths in a FileDataset."
        raise TypeError(msg)
    source = box_lists(data)
    size = batch_size
    if size is None and classify(source) not in BATCHED:
        size = ROWS * (strategy.num_replicas_in_sync if strategy else 1)
    if strategy is None:
        yield from read_alone(source, size, names)
        return
    options = InputOptions(fetch_to_device=False)
    distribute = partial(
        strategy.distribute_dataset,
        source,
        global_batch_size=size,
        collate_fn=_choose_collate(source, size, names),
    )
    try:
        yield from _play(distribute(options=options))
    except TooFewFilesError:  # on all workers, and before the first batch
        yield from _play(distribute(options=replace(options, auto_shard_policy="data")))


def box_lists(data: Any) -> Any:
    """Turn into arrays what sources do not take as columns.

    Those are lists in a dict, a list of lists, and the columns of pandas, polars and Arrow, in a
    dict or a data frame.
    """
    if type(data).__name__ == "DataFrame" and hasattr(data, "columns"):
        data = {name: data[name] for name in data.columns}
    if isinstance(data, Mapping):
        return {name: _box_column(values) for name, values in data.items()}
    if isinstance(data, list) and data and all(isinstance(row, list) for row in data):
        return box_rows(data)
    return data


def _box_column(values: Any) -> Any:
    if isinstance(values, list) or (type(values) is tuple and all(map(is_single, values))):
        return collate_column(list(values))
    if isinstance(values, (np.ndarray, torch.Tensor)) or not hasattr(values, "__array__"):
        return values
    return np.asarray(values)


def read_alone(
    source: Any, batch_size: int | None, names: tuple[str, ...] | None = None
) -> Iterator[Any]:
    """Yield the batches of a source that one process reads alone."""
    if batch_size is None:  # also an iterator that is used up
        batches = iterate(source)
        if getattr(source, "collate_fn", None) is default_collate:
            batches = map(_parts_to_tuples, batches)
        yield from map(rows.with_shared_tensors, batches)
        return
    collate = _choose_collate(source, batch_size, names)
    opened = open_source(source, Request(global_batch_size=batch_size, collate_fn=collate))
    if isinstance(opened, IndexedSource):
        order = opened.make_order(0, 0)
        for start in range(0, order.num_examples, batch_size):
            yield opened.fetch(order.take_range(start, start + batch_size))
    elif isinstance(opened, StreamSource):
        stream, shard, read_counter = opened.prepare().stream, Shard(), ReadCounter(0)
        reader = stream.open(shard)
        while (chunk := reader.take(batch_size)) is not None:
            yield stream.finish(chunk, shard)
            read_counter.add(reader.notes())
        read_counter.add(reader.notes())
    else:
        assert isinstance(opened, ReadySource), "the three kinds of source"
        yield from (chunk.data for chunk in opened.stream.chunks(Shard()))


def _parts_to_tuples(batch: Any) -> Any:
    """Columns of the parts of examples that are lists, as a tuple, which is how we collate them.

    ``default_collate`` makes a list of them, and a list of columns could be one of rows.
    """
    if isinstance(batch, Mapping):
        return {name: _parts_to_tuples(part) for name, part in batch.items()}
    if type(batch) not in (list, tuple):
        return batch
    if all(isinstance(value, (str, bytes)) for value in batch):  # it leaves strings as they are
        return list(batch)
    return tuple(map(_parts_to_tuples, batch))


def _choose_collate(
    source: Any, batch_size: int | None, names: tuple[str, ...] | None = None
) -> Callable[[list[Any]], Any] | None:
    """How examples become columns, where there are examples: of columns none are made."""
    if batch_size is None or not gives_examples(source):
        return None
    return partial(collate_columns, names=names)


def _play(dataset: Any) -> Generator[Any, None, None]:
    """Yield the batches of this worker's replicas, of a whole epoch.

    The dataset's next epoch stays the same, and so does the place in it where it is to go on.
    """
    with dataset.set_aside(), iter(dataset) as steps:
        for step in steps:
            yield from _split_replicas(step, steps.last_step)


def _split_replicas(step: Any, info: StepInfo) -> Iterator[Any]:
    batch = step if info.padded_rows is None else step[0]
    for replica, count in enumerate(info.local_counts):
        if count:
            own = map_leaves(lambda leaf: _fetch(leaf, replica), batch)  # noqa: B023 - used at once
            yield own if info.padded_rows is None else rows.slice_rows(own, 0, count)


def _fetch(leaf: Any, replica: int) -> Any:
    value = leaf[replica] if isinstance(leaf, PerReplica) else leaf
    return value.cpu() if isinstance(value, torch.Tensor) else value
