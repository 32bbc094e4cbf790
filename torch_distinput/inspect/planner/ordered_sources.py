"""Sources with an index, and what is made of them: global batches as a run would cut them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch_distinput.errors import ConfigurationError
from torch_distinput.plan.assignment.bounds import Size
from torch_distinput.plan.assignment.order import Run


@dataclass(frozen=True, kw_only=True, slots=True)
class OrderedBatches:
    """The global batches of an epoch.

    Attributes:
        name: of the source.
        runs: the batches, in order.
        num_dropped: examples that are left out at the end.
        drops_last: the last partial batch is left out; a DataLoader says so itself.
        size: of a full batch; None where each has a size of its own.
    """

    name: str
    runs: tuple[Run, ...]
    num_dropped: int
    drops_last: bool
    size: Size | None


def cut_source(
    source: Any, global_batch_size: Any, *, shuffle: bool, drop_last: bool, key: tuple[int, int]
) -> OrderedBatches:
    """Cut the order of an epoch, by seed and epoch.

    Raises:
        TypeError: if it is no source.
        ConfigurationError: a ValueError; nobody knows how long it is before it is read.
    """
    from torch_distinput.data.sources.resolve import open_source  # noqa: PLC0415 - they import torch
    from torch_distinput.data.sources.source import IndexedSource, Request  # noqa: PLC0415
    from torch_distinput.engine.epoch_batches import EpochBatches  # noqa: PLC0415

    request = Request(global_batch_size=global_batch_size, shuffle=shuffle, drop_last=drop_last)
    opened = open_source(source, request)
    if not isinstance(opened, IndexedSource):
        msg = (
            "plan_epoch expects a source whose examples are counted before they are read (files, "
            "or what has an index and a length; a mixture or a token budget of such), got "
            f"{opened.name}, which is read in order. Pass its number of examples, or a list with "
            "the examples of each of its shards."
        )
        raise ConfigurationError(msg)
    seed, epoch = key
    batches = EpochBatches(opened, seed=seed).of(epoch)
    return OrderedBatches(
        name=opened.name,
        runs=batches.runs,
        num_dropped=batches.num_dropped,
        drops_last=opened.request.drop_last,
        size=opened.request.size,
    )
