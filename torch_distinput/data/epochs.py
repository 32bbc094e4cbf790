"""Telling a source of the user's which epoch is played.

Datasets and samplers that shuffle by an epoch have ``set_epoch``, and it is easily forgotten.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from torch.utils.data import Dataset, Sampler

from torch_distinput.errors import SourceError

_log = logging.getLogger(__name__)

_INNER = (
    *("dataset", "datasets", "sampler", "batch_sampler"),  # of torch
    *("source", "source_nodes", "iterable", "root"),  # of torchdata's nodes
)


def tell_epoch(source: Any, epoch: int) -> None:
    """Call ``set_epoch(epoch)`` of a source, or of what it is made of.

    Who has ``set_epoch`` is told, and passes it on itself. Into others that torch or torchdata
    know (loaders, datasets, samplers, nodes) we look: a DistributedSampler in a DataLoader, say.
    """
    told = set()
    parts, seen = [source], {id(source)}
    while parts:
        part = parts.pop()
        if callable(getattr(part, "set_epoch", None)):
            _tell(part, epoch)
            told.add(id(part))
        elif isinstance(part, (Dataset, Sampler)) or _is_of_torch(part):
            _set_counter(part, epoch)
            new = [inner for inner in _inside(part) if id(inner) not in seen]
            seen.update(map(id, new))
            parts += new
    if getattr(source, "persistent_workers", False) and id(source.dataset) in told:
        _warn_of_persistence(type(source.dataset).__name__)


def _tell(part: Any, epoch: int) -> None:
    try:
        part.set_epoch(epoch)
    except Exception as error:
        msg = f"{type(part).__name__}.set_epoch({epoch}) raised {type(error).__name__}: {error}"
        raise SourceError(msg) from error


def _inside(part: Any) -> Iterator[Any]:
    for name in _INNER:
        inner = getattr(part, name, None)
        if isinstance(inner, Mapping):
            yield from inner.values()
        elif isinstance(inner, (list, tuple)):
            yield from inner
        elif inner is not None:
            yield inner


def _set_counter(part: Any, epoch: int) -> None:
    """A SamplerWrapper of torchdata counts epochs itself, and tells its sampler: let it agree.

    It counts on when it is reset after it was started. A rule of the user's stays.
    """
    default = getattr(part, "_default_epoch_updater", None)
    if default is not None and getattr(part, "epoch_updater", None) == default:
        part.epoch = epoch - getattr(part, "_started", False)


def _is_of_torch(part: Any) -> bool:
    """By module name, so that torchdata need not be imported."""
    return any(
        kind.__module__.partition(".")[0] in ("torch", "torchdata") for kind in type(part).__mro__
    )


@lru_cache
def _warn_of_persistence(name: str) -> None:
    """Say it once."""
    _log.warning(
        "The DataLoader has persistent_workers=True: its processes keep the %s that they began "
        "with, and do not see the epoch that set_epoch() tells it here, unless it lies in shared "
        "memory (as that of a Hugging Face stream does). Leave persistent_workers out.",
        name,
    )
