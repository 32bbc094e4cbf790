"""Telling a source of the user's which epoch is played.

Datasets and samplers that shuffle by an epoch have ``set_epoch``, and it is easily forgotten.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from types import MethodType
from typing import Any, final

from torch_distinput.data.user_sources.parts import parts_of
from torch_distinput.errors import SourceError, UsageError

_log = logging.getLogger(__name__)
_MOST_PARTS = 256


def tell_epoch(source: Any, epoch: int) -> None:
    """Call ``set_epoch(epoch)`` of a source, or of what it is made of.

    Who has ``set_epoch`` passes it on itself. In a loader, dataset, sampler, node or pipeline
    without it we look for those that have it: a DistributedSampler in a DataLoader, say. So we do
    in the attributes of an iterable of the user's, and in what they hold.
    """
    told = []
    for part in _parts_to_tell(source):
        if _knows_epochs(part):
            _tell(part, epoch)
            told.append(part)
        else:
            _set_counter(part, epoch)
    persistent = getattr(source, "persistent_workers", False)
    if persistent and any(part is source.dataset for part in told):
        _warn_of_persistence(type(source.dataset).__name__)


@final
class ToldEpoch:
    """Which epoch a dataset with an index was told, so that another can be looked at meanwhile."""

    def __init__(self, dataset: Any) -> None:
        """Take a dataset of the user's, or None."""
        self._dataset = dataset
        self._epoch: int | None = None
        self._reading: weakref.ref[Any] | None = None

    def begin(self, epoch: int, read_ahead: Any) -> None:
        """Note the epoch that is played; ``read_ahead``: what other threads fetch, if they do."""
        self._epoch = epoch
        self._reading = None if read_ahead is None else weakref.ref(read_ahead)

    @contextmanager
    def look_at(self, epoch: int) -> Iterator[None]:
        """Let the dataset be at an epoch inside, and afterwards at the one that is played.

        Raises:
            UsageError: if threads read examples of the epoch that is played.
        """
        is_read = self._reading is not None and self._reading() is not None
        is_there = is_read and epoch == self._epoch
        if is_there or not any(map(_knows_epochs, _parts_to_tell(self._dataset))):
            yield
            return
        if is_read:
            msg = (
                f"Expected to read epoch {epoch} while no thread reads another one, got an open "
                f"iterator of epoch {self._epoch} with num_threads=: set_epoch({epoch}) would "
                "change its examples. close() the iterator before, or replay in another process."
            )
            raise UsageError(msg)
        tell_epoch(self._dataset, epoch)
        try:
            yield
        finally:
            if self._epoch is not None:
                tell_epoch(self._dataset, self._epoch)


def _parts_to_tell(source: Any) -> Iterator[Any]:
    """A source, what it is made of, and what iterables of the user's hold; each once."""
    waiting, seen = [source], {id(source)}
    while waiting and len(seen) < _MOST_PARTS:
        for part in parts_of(waiting.pop(), closed=_knows_epochs):
            yield part
            if _knows_epochs(part):
                continue
            new = [held for held in _held(part) if id(held) not in seen]
            seen.update(map(id, new))
            waiting += new


def _held(part: Any) -> Iterator[Any]:
    """Iterables and datasets in the attributes of an iterable that is a user's own."""
    if hasattr(part, "__self__"):  # a method, of a dataset perhaps
        yield part.__self__
    values = getattr(part, "__dict__", {})
    if not hasattr(part, "__iter__") or not isinstance(values, dict):
        return
    for value in list(values.values()):
        for held in _items_of(value):
            is_data = hasattr(held, "__iter__") or hasattr(held, "__getitem__")
            if _knows_epochs(held) or (is_data and hasattr(held, "__dict__")):
                yield held
            elif isinstance(held, MethodType):
                yield held.__self__


def _items_of(value: Any) -> Iterable[Any]:
    """The few values of a list, tuple or dict; or the value itself."""
    if isinstance(value, Mapping):
        value = list(value.values())
    return value if isinstance(value, (list, tuple)) and len(value) < _MOST_PARTS else [value]


def _knows_epochs(part: Any) -> bool:
    return callable(getattr(part, "set_epoch", None))


def _tell(part: Any, epoch: int) -> None:
    try:
        part.set_epoch(epoch)
    except Exception as error:
        msg = f"{type(part).__name__}.set_epoch({epoch}) raised {type(error).__name__}: {error}"
        raise SourceError(msg) from error


def _set_counter(part: Any, epoch: int) -> None:
    """Let those agree that count epochs themselves.

    A SamplerWrapper of torchdata counts on when it is reset after it was started, and tells its
    sampler; a rule of the user's stays. Stages of WebDataset count when they are started.
    """
    if type(part).__name__ in ("detshuffle", "ResampledShards") and hasattr(part, "epoch"):
        part.epoch = epoch - 1
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
