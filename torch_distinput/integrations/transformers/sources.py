"""From a dataset that Trainer is given to a distributed one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Sampler

import torch_distinput as tdi
from torch_distinput.integrations.claims import hide_zero_rows


@dataclass(frozen=True, kw_only=True)
class LoaderArguments:
    """How Trainer's arguments say that a dataset is read.

    Attributes:
        global_batch_size: examples of a step on all processes.
        sampler: the order of a dataset with an index; None: its own.
        seed: of the order.
        drop_last: whether a last, partial batch is left out.
        collate_fn: from examples to a batch.
        num_workers: loader processes.
        loading: further arguments of a DataLoader.
        options: of the distributed dataset.
    """

    global_batch_size: int
    sampler: Sampler[Any] | None
    seed: int
    drop_last: bool
    collate_fn: Callable[[list[Any]], Any]
    num_workers: int
    loading: Mapping[str, Any]
    options: tdi.InputOptions


def has_index(dataset: Any) -> bool:
    """Whether a dataset is asked for examples by number."""
    return count_examples(dataset) is not None and hasattr(type(dataset), "__getitem__")


def has_columns(dataset: Any) -> bool:
    """Whether it is one of datasets; of a wrapper that hands on its methods, columns are kept.

    Else they would be removed from what it wraps, which would be trained on in its place.
    """
    return all(hasattr(type(dataset), name) for name in ("column_names", "set_format"))


def count_examples(dataset: Any) -> int | None:
    """The length of a dataset; None where it has none."""
    if isinstance(dataset, (IterableDataset, tdi.DistributedDataset)):
        return None
    try:
        return len(dataset)
    except (TypeError, AttributeError):
        return None


def distribute(
    dataset: Any,
    arguments: LoaderArguments,
    strategy: tdi.Strategy,
    policy: Any = None,
) -> tdi.DistributedDataset:
    """Distribute a dataset of examples over the processes of a Trainer.

    A stream's shards are dealt out by ``policy``; None: by the one for this number of processes.

    Raises:
        TypeError: for a DataLoader: Trainer's arguments say what it would.
    """
    if isinstance(dataset, DataLoader):
        msg = (
            "Expected a dataset, got a DataLoader, whose batches TrainingArguments describe. Pass "
            "its dataset, or what strategy.distribute_dataset(loader) returns."
        )
        raise TypeError(msg)
    if has_index(dataset):
        distributed = _distribute_indexed(dataset, arguments, strategy)
    else:
        distributed = _distribute_stream(dataset, arguments, strategy, policy)
    hide_zero_rows(distributed)
    return distributed


def _distribute_indexed(
    dataset: Any, arguments: LoaderArguments, strategy: tdi.Strategy
) -> tdi.DistributedDataset:
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=arguments.global_batch_size,
        sampler=arguments.sampler,
        drop_last=arguments.drop_last,
        collate_fn=arguments.collate_fn,
        num_workers=arguments.num_workers,
        **arguments.loading,
    )
    return strategy.distribute_dataset(loader, seed=arguments.seed, options=arguments.options)


def _distribute_stream(
    dataset: Any, arguments: LoaderArguments, strategy: tdi.Strategy, policy: Any
) -> tdi.DistributedDataset:
    options = arguments.options
    if policy is None and getattr(dataset, "num_shards", math.inf) < max(2, strategy.num_workers):
        policy = "data"  # too few to deal out; one is never enough for a restart on more processes
    if policy is not None:
        options = replace(options, auto_shard_policy=policy)
    return strategy.distribute_dataset(
        dataset,
        global_batch_size=arguments.global_batch_size,
        shuffle=isinstance(arguments.sampler, RandomSampler),
        seed=arguments.seed,
        drop_last=arguments.drop_last,
        collate_fn=arguments.collate_fn,
        num_workers=arguments.num_workers,
        options=options,
    )
