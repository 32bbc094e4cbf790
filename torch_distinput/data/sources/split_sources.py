"""Sources that take a node's part by themselves: refused where parts would be lost or come twice.

They are streams after ``split_dataset_by_node``, loaders with a ``DistributedSampler``, and
pipelines of WebDataset with a nodesplitter. Some ask for the number of ranks by themselves, and
data may be parallel over fewer.
"""

from __future__ import annotations

import logging
from typing import Any

from torch_distinput.data.user_sources.parts import find_distributed_sampler, split_of
from torch_distinput.data.user_sources.web_pipelines import (
    SINGLE_NODE,
    find_splitter,
    find_unseeded_shuffle,
    is_pipeline,
)
from torch_distinput.errors import ConfigurationError
from torch_distinput.options import AutoShardPolicy

_log = logging.getLogger(__name__)


def check_source(
    source: Any, policy: AutoShardPolicy, num_workers: int, *, num_ranks: int, is_alone: bool
) -> None:
    """Refuse what each rank would read a part of, and a pipeline that has no order of its own.

    Under OFF each worker plays a part as it is, if there are as many parts as workers; or any part,
    where the strategy is for one worker.

    Args:
        source: of the user.
        policy: who reads what.
        num_workers: among which data is parallel.
        num_ranks: that were started, with those that share data.
        is_alone: whether the strategy is for one worker.

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
    part, splitter = split_of(source), find_splitter(source)
    if policy is AutoShardPolicy.OFF and splitter != SINGLE_NODE:
        if not is_alone:
            _check_number_of_parts(source, num_workers, num_ranks)
        return
    if part is not None:
        nodes = part._distributed  # noqa: SLF001 - there is no other way to ask
        msg = (
            f"Expected the whole dataset on every rank, got part {nodes.rank} of "
            f"{nodes.world_size} of a {type(part).__name__} (split_dataset_by_node), which "
            f"AutoShardPolicy.{policy.name} would cut again. Pass the dataset without the split, "
            'or auto_shard_policy="off" to play each rank\'s part as it is.'
        )
        raise ConfigurationError(msg)
    if splitter is None or max(num_workers, num_ranks) < 2:
        return
    msg = (
        f"Expected the whole dataset on each of {num_workers} workers, got a WebDataset pipeline "
        f"with nodesplitter={splitter} and AutoShardPolicy.{policy.name}: what a worker reads is "
        "decided here. Use nodesplitter=None (every worker reads everything, and delivers its "
        "part); or a FileDataset of the tar files, which deals them out; or batches with "
        "split_by_node in distribute_datasets_from_function."
    )
    raise ConfigurationError(msg)


def check_replica_batches(
    dataset: Any, num_pipelines: int, *, num_workers: int, num_ranks: int, is_alone: bool
) -> None:
    """Refuse what takes another part than one of ``num_pipelines``; warn of what takes none.

    A single pipeline of a strategy for one worker (``is_alone``) may have any part.

    Raises:
        ConfigurationError: a ValueError.
    """
    if find_unseeded_shuffle(dataset):
        _log.warning(
            "dataset_fn returned a WebDataset pipeline with shuffle() without a seed: after a "
            "restart from a state some examples would be lost and others come twice. Use "
            ".compose(wds.detshuffle(size, seed=...)), if you save states."
        )
    splitter = find_splitter(dataset)
    if splitter == SINGLE_NODE and max(num_workers, num_ranks) > 1:
        msg = (
            f"Expected a pipeline that takes its part of {num_pipelines}, got a WebDataset "
            f"pipeline with nodesplitter={SINGLE_NODE} (its default), which raises at the first "
            "example. Use wds.WebDataset(..., nodesplitter=wds.split_by_node), with as many shards "
            "as workers or more."
        )
        raise ConfigurationError(msg)
    if not is_alone or num_pipelines > 1:
        _check_number_of_parts(dataset, num_pipelines, num_ranks)
    takes_all = splitter in (None, SINGLE_NODE)
    if takes_all and num_pipelines > 1 and is_pipeline(dataset):
        _log.warning(
            "dataset_fn returned a WebDataset pipeline without wds.split_by_node for %d pipelines: "
            "unless its shards were chosen by the InputContext, every worker delivers all "
            "examples.",
            num_pipelines,
        )


def _check_number_of_parts(source: Any, num_pipelines: int, num_ranks: int) -> None:
    """Others than one for each pipeline: some would be played by nobody, or by several."""
    part, sampler = split_of(source), find_distributed_sampler(source)
    if part is not None:
        split, num_parts = "split_dataset_by_node", part._distributed.world_size  # noqa: SLF001 - see above
    elif sampler is not None:
        split, num_parts = "DistributedSampler", sampler.num_replicas
    elif find_splitter(source) not in (None, SINGLE_NODE):
        split, num_parts = "nodesplitter=split_by_node, which makes one for each rank", num_ranks
    else:
        return
    if num_parts != num_pipelines:
        msg = (
            f"Expected a source split into {num_pipelines} parts, one for each worker that reads "
            f"its own data, got one split into {num_parts} ({split}): examples would be lost or "
            "come twice. Split by strategy.worker_index and strategy.num_workers, in a function by "
            "context.input_pipeline_id and context.num_input_pipelines: for WebDataset "
            "wds.WebDataset(urls[context.input_pipeline_id :: context.num_input_pipelines], "
            "nodesplitter=None)."
        )
        raise ConfigurationError(msg)
