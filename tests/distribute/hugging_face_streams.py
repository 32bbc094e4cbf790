"""Hugging Face streams of every kind, small, with shards of other sizes and empty ones."""

from __future__ import annotations

import itertools
import json
from functools import partial

import datasets
from datasets import IterableDataset, concatenate_datasets, interleave_datasets

import torch_distinput as tdi
from torch_distinput.testing import simulate

SIZES = (5, 6, 0, 8, 9, 1, 7)
COUNT = sum(SIZES)


def generated(shards):
    """Rows of shards whose sizes differ; one is empty."""
    for shard in shards:
        for row in range(SIZES[shard]):
            yield {"row": sum(SIZES[:shard]) + row}


def of_generator():
    """As of files that are read by a function."""
    return IterableDataset.from_generator(generated, gen_kwargs={"shards": [*range(len(SIZES))]})


def of_tables(count=COUNT, first=0, num_shards=7):
    """As of Arrow and Parquet files."""
    rows = datasets.Dataset.from_dict({"row": list(range(first, first + count))})
    return rows.to_iterable_dataset(num_shards=num_shards)


def doubled(example):
    """Of one row."""
    return {"twice": example["row"] * 2}


def all_doubled(batch):
    """Of some rows."""
    return {"twice": [row * 2 for row in batch["row"]]}


def is_kept(example):
    """Two thirds of the rows."""
    return example["row"] % 3 != 1


def repeated(batch):
    """No row, one, or two for each."""
    return {"row": [row for row in batch["row"] for _ in range(row % 3)]}


def with_twice(table):
    """The same of a table."""
    return table.append_column("twice", table["row"])


def batched(stream, function=all_doubled):
    """Mapped some rows at a time."""
    return stream.map(function, batched=True, batch_size=4)


BY_SHARD = {
    "tables": of_tables,
    "generator": of_generator,
    "one shard": partial(of_tables, num_shards=1),
    "torch": lambda: of_tables().with_format("torch"),
    "numpy": lambda: of_generator().with_format("numpy"),
    "map": lambda: of_tables().map(doubled),
    "map of torch": lambda: of_tables().with_format("torch").map(doubled),
    "batched map": lambda: batched(of_tables()),
    "batched map of a generator": lambda: batched(of_generator()),
    "batched map to other counts": lambda: batched(of_tables(), repeated),
    "batched map of tables": lambda: batched(
        of_tables().with_format("arrow"), with_twice
    ).with_format("torch"),
    "filter": lambda: of_tables().filter(is_kept),
    "filter of a generator": lambda: of_generator().filter(is_kept),
    "everything": lambda: batched(of_tables().map(doubled).filter(is_kept)).filter(is_kept),
    "selected": lambda: of_tables().map(doubled).select_columns(["row"]),
    "joined": lambda: concatenate_datasets([of_tables(), of_tables(20, 100, 3)]),
}
"""Streams whose shards can be dealt out one by one."""
IN_PARTS = {
    "interleaved": lambda: interleave_datasets([of_tables(), of_tables(20, 100, 3)]),
    "interleaved to all ends": lambda: interleave_datasets(
        [of_tables(), of_tables(20, 100, 3)], stopping_strategy="all_exhausted"
    ),
    "drawn": lambda: interleave_datasets(
        [of_generator(), of_generator().filter(is_kept)], probabilities=[0.7, 0.3], seed=3
    ),
    "skip": lambda: of_tables().skip(11),
    "take": lambda: of_generator().take(23),
    "take of a skip": lambda: of_tables().skip(5).take(20).with_format("torch"),
    "repeat": lambda: of_tables(14).repeat(2),
    "numbered": lambda: of_tables().map(lambda _, index: {"index": index}, with_indices=True),
    "last batch dropped": lambda: of_tables().map(
        all_doubled, batched=True, batch_size=4, drop_last_batch=True
    ),
    "buffer": lambda: of_tables().shuffle(seed=5, buffer_size=8),
}
"""Streams in which something counts beyond the end of a shard: a worker's part is one stream."""
EVERY_KIND = {**BY_SHARD, **IN_PARTS}


def distribute(strategy, make, *, policy="file", num_workers=0, batch_size=6, **settings):
    """A stream of its own on each worker, as in processes."""
    return strategy.distribute_dataset(
        make(), global_batch_size=batch_size, num_workers=num_workers,
        options=tdi.InputOptions(auto_shard_policy=policy), **settings,
    )  # fmt: skip


def play(make, num_ranks, state=None, *, steps=None, epoch=0, **settings):
    """The rows of some steps on each worker, and the state after them."""

    def work(strategy):
        dataset = distribute(strategy, make, **settings)
        dataset.set_epoch(epoch)
        if state is not None:
            dataset.load_state_dict(json.loads(state))
        played = itertools.islice(iter(dataset), steps)
        rows = [row for step in played for row in step["row"].tolist()]
        return rows, json.dumps(dataset.state_dict())

    results = simulate(work, num_workers=num_ranks)
    assert 1 == len({state for _, state in results})
    return [rows for rows, _ in results], results[0][1]


def rows_of(parts):
    """Those of all workers, sorted."""
    return sorted(row for part in parts for row in part)
