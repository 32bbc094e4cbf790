"""Which policy holds for a source, and which files or shards are a worker's."""

from __future__ import annotations

from torch_distinput.errors import ConfigurationError, TooFewFilesError
from torch_distinput.options import AutoShardPolicy

SHARES_STREAM = {
    AutoShardPolicy.DATA: True,
    AutoShardPolicy.FILE: False,
    AutoShardPolicy.OFF: False,
}
"""Whether all workers read one stream, by policy: a new one must say so, or it is a KeyError."""


def resolve_policy(policy: AutoShardPolicy, *, has_shards: bool, source: str) -> AutoShardPolicy:
    """Turn AUTO into FILE or DATA; refuse FILE where there is nothing to assign."""
    if policy is AutoShardPolicy.AUTO:
        return AutoShardPolicy.FILE if has_shards else AutoShardPolicy.DATA
    if policy is AutoShardPolicy.FILE and not has_shards:
        msg = (
            "AutoShardPolicy.FILE needs a source with files or shards to deal out (a FileDataset, "
            f"or an object with num_shards and shard()), got {source}. "
            "Use AutoShardPolicy.DATA, or AutoShardPolicy.AUTO, which chooses DATA here."
        )
        raise ConfigurationError(msg)
    return policy


def check_enough_shards(num_shards: int, num_workers: int, *, what: str, cure: str) -> None:
    """Refuse to assign fewer files or shards than workers; the same on every rank.

    ``cure``: how to have more of them.
    """
    if num_shards < max(1, num_workers):
        msg = (
            f"AutoShardPolicy.FILE needs at least one file or shard per worker: {what} has "
            f"{num_shards} for {num_workers} workers (AUTO means FILE where there are files or "
            'shards). Pass options=tdi.InputOptions(auto_shard_policy="data"), under which all '
            f"workers read all of it; or {cure}."
        )
        raise TooFewFilesError(msg)


def assign_items(num_items: int, num_shards: int, index: int) -> range:
    """The items of shard ``index``: i, i + num_shards, ... (``tf.data.Dataset.shard``)."""
    return range(index, num_items, num_shards)
