"""Pipelines of WebDataset that take a node's part by themselves: refused where it is not meant."""

from __future__ import annotations

import logging
from typing import Any

from torch_distinput.data.user_sources.web_pipelines import (
    SINGLE_NODE,
    find_splitter,
    find_unseeded_shuffle,
    is_pipeline,
)
from torch_distinput.errors import ConfigurationError
from torch_distinput.options import AutoShardPolicy

_log = logging.getLogger(__name__)


def check_source(source: Any, policy: AutoShardPolicy, num_workers: int) -> None:
    """Refuse a pipeline that each rank would read a part of, or that has no order of its own.

    Raises:
        ConfigurationError: a ValueError.
    """
    if find_unseeded_shuffle(source):
        msg = (
            "Expected a stream in the same order on every rank and after a restart, got a "
            "WebDataset pipeline with shuffle() without a seed: examples would be lost and others "
            "come twice. Use .compose(wds.detshuffle(size, seed=...)), which is told the epoch; or "
            "a FileDataset of the tar files with its shuffle()."
        )
        raise ConfigurationError(msg)
    splitter = find_splitter(source) if num_workers > 1 else None
    if splitter is None or (policy is AutoShardPolicy.OFF and splitter != SINGLE_NODE):
        return
    msg = (
        f"Expected the whole dataset on each of {num_workers} workers, got a WebDataset pipeline "
        f"with nodesplitter={splitter} and AutoShardPolicy.{policy.name}: what a worker reads is "
        "decided here. Use nodesplitter=None (every worker reads everything, and delivers its "
        "part); or a FileDataset of the tar files, which deals them out; or batches with "
        "split_by_node in distribute_datasets_from_function."
    )
    raise ConfigurationError(msg)


def check_replica_batches(dataset: Any, num_workers: int) -> None:
    """Refuse a pipeline for one node among several workers; warn of one that takes no part.

    Raises:
        ConfigurationError: a ValueError.
    """
    if find_unseeded_shuffle(dataset):
        _log.warning(
            "dataset_fn returned a WebDataset pipeline with shuffle() without a seed: after a "
            "restart from a state some examples would be lost and others come twice. Use "
            ".compose(wds.detshuffle(size, seed=...)), if you save states."
        )
    if num_workers < 2 or not is_pipeline(dataset):
        return
    splitter = find_splitter(dataset)
    if splitter == SINGLE_NODE:
        msg = (
            f"Expected a pipeline that takes its part of {num_workers} workers, got a WebDataset "
            f"pipeline with nodesplitter={SINGLE_NODE} (its default), which raises at the first "
            "example. Use wds.WebDataset(..., nodesplitter=wds.split_by_node), with as many shards "
            "as workers or more."
        )
        raise ConfigurationError(msg)
    if splitter is None:
        _log.warning(
            "dataset_fn returned a WebDataset pipeline without wds.split_by_node on %d workers: "
            "unless its shards were chosen by the InputContext, every worker delivers all "
            "examples.",
            num_workers,
        )
