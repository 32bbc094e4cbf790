"""Telling a source of the user's which epoch is played.

Datasets and samplers that shuffle by an epoch have ``set_epoch``, and it is easily forgotten.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

from torch_distinput.data.user_sources.parts import parts_of
from torch_distinput.errors import SourceError

_log = logging.getLogger(__name__)


def tell_epoch(source: Any, epoch: int) -> None:
    """Call ``set_epoch(epoch)`` of a source, or of what it is made of.

    Who has ``set_epoch`` passes it on itself. In a loader, dataset, sampler or node without it we
    look for those that have it: a DistributedSampler in a DataLoader, say.
    """
    told = []
    for part in parts_of(source, closed=_knows_epochs):
        if _knows_epochs(part):
            _tell(part, epoch)
            told.append(part)
        else:
            _set_counter(part, epoch)
    persistent = getattr(source, "persistent_workers", False)
    if persistent and any(part is source.dataset for part in told):
        _warn_of_persistence(type(source.dataset).__name__)


def _knows_epochs(part: Any) -> bool:
    return callable(getattr(part, "set_epoch", None))


def _tell(part: Any, epoch: int) -> None:
    try:
        part.set_epoch(epoch)
    except Exception as error:
        msg = f"{type(part).__name__}.set_epoch({epoch}) raised {type(error).__name__}: {error}"
        raise SourceError(msg) from error


def _set_counter(part: Any, epoch: int) -> None:
    """A SamplerWrapper of torchdata counts epochs itself, and tells its sampler: let it agree.

    It counts on when it is reset after it was started. A rule of the user's stays.
    """
    default = getattr(part, "_default_epoch_updater", None)
    if default is not None and getattr(part, "epoch_updater", None) == default:
        part.epoch = epoch - bool(getattr(part, "_started", False))


@lru_cache
def _warn_of_persistence(name: str) -> None:
    """Say it once."""
    _log.warning(
        "The DataLoader has persistent_workers=True: its processes keep the %s that they began "
        "with, and do not see the epoch that set_epoch() tells it here, unless it lies in shared "
        "memory (as that of a Hugging Face stream does). Leave persistent_workers out.",
        name,
    )
