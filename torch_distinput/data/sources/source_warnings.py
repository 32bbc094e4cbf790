"""What is allowed of a source, and seldom meant."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from torch_distinput.data.sources.classify import SourceKind, classify
from torch_distinput.data.sources.source import Request
from torch_distinput.data.user_sources.parts import is_node, parts_of
from torch_distinput.data.user_sources.sequences.buckets import Buckets
from torch_distinput.data.user_sources.sequences.packing import DocumentPacking
from torch_distinput.data.user_sources.stages import find_counting_stage
from torch_distinput.options import AutoShardPolicy

_log = logging.getLogger(__name__)
_MOST_LISTED_COLUMNS = 8
_RANDOM = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


def warn_of_source(
    source: Any, request: Request, policy: AutoShardPolicy, num_workers: int
) -> None:
    """Say what is allowed and seldom meant; asked for on one worker."""
    if request.shuffle:
        _warn_of_records_in_order(source)
    _warn_of_listed_columns(source)
    _warn_of_text(source)
    _warn_of_random_samplers(source)
    if policy is AutoShardPolicy.FILE and num_workers > 1:
        _warn_of_counting(source, num_workers)


def _warn_of_counting(source: Any, num_workers: int) -> None:
    """Nothing of a part is lost; but the parts of such a stream are not the stream."""
    if (call := find_counting_stage(source)) is not None:
        _log.warning(
            "The %s has a %s(), which counts in the shards of each of %d workers by itself "
            "(AutoShardPolicy.FILE): an epoch has other examples than the stream read by one "
            'worker, and perhaps not as many. For those of the stream use auto_shard_policy="data",'
            " under which each worker reads all of it.",
            type(source).__name__,
            call,
            num_workers,
        )


def _warn_of_records_in_order(source: Any) -> None:
    """To shuffle files is not what ``shuffle=True`` does elsewhere; ``shuffle_files`` says it."""
    read = source.source if isinstance(source, (Buckets, DocumentPacking)) else source
    if classify(read) is not SourceKind.FILES or read.shuffle_files or read.cycle:
        return
    if not any(operation.kind == "shuffle" for operation in read.operations):
        _log.warning(
            "shuffle=True permutes the files of FileDataset(%r, ...), or the pieces they are split "
            "into; the records of each stay in their order. To mix them, call "
            ".shuffle(buffer_size) on it. If the order of the files is all that should change, say "
            "FileDataset(..., shuffle_files=True) instead of shuffle=True.",
            read.patterns[0],
        )


def _warn_of_listed_columns(source: Any) -> None:
    """A list holds examples, however much those look like columns: they would be stacked.

    So does a tuple of lists.
    """
    if type(source) not in (list, tuple) or not 2 <= len(source) <= _MOST_LISTED_COLUMNS:
        return
    if type(source) is list:
        what, cure = "list", "pass a tuple or a dict of them"
        are_columns = all(
            isinstance(item, (torch.Tensor, np.ndarray)) and item.ndim for item in source
        )
    else:
        what, cure = "tuple of lists", "make tensors or arrays of them"
        are_columns = all(type(item) is list for item in source)
    num_rows = {len(item) for item in source} if are_columns else set()
    if len(num_rows) == 1 and max(num_rows) > len(source):
        _log.warning(
            "A %s holds examples, got one of %d with %d rows each, which count as %d examples. "
            "If they are columns, %s.",
            what,
            len(source),
            *num_rows,
            len(source),
            cure,
        )


def _warn_of_text(source: Any) -> None:
    """Lines of a table would be delivered as they are, its header too."""
    if classify(source) is not SourceKind.FILES:
        return
    from torch_distinput.data.files.dataset import find_format_read_as_text  # noqa: PLC0415 - it is imported with FileDataset

    if (reader := find_format_read_as_text(source)) is not None:
        _log.warning(
            'FileDataset(%r, ...) expects a reader for its format, got reader="text", which '
            "delivers each line as it is. Pass reader=%r.",
            source.patterns[0],
            reader,
        )


def _warn_of_random_samplers(source: Any) -> None:
    """A node over one tells how far it is in an order that nobody can draw again."""
    for part in parts_of(source):
        sampler = getattr(part, "sampler", None)
        if is_node(part) and isinstance(sampler, _RANDOM) and not hasattr(sampler, "state_dict"):
            _log.warning(
                "The %s of a %s draws another order in each process and epoch: a restart in the "
                "middle of an epoch would lose examples and repeat others. Let the sampler draw "
                "by the epoch (set_epoch), or have a state_dict; or pass the dataset to "
                "distribute_dataset(shuffle=True).",
                type(sampler).__name__,
                type(part).__name__,
            )
