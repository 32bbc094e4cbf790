"""The order that a sampler of the user gives: the same on every rank, whatever it draws from."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np

from torch_distinput.data.user_sources.epochs import AtEpoch, tell_epoch
from torch_distinput.data.user_sources.source_errors import make_exhausted_error
from torch_distinput.errors import ConfigurationError
from torch_distinput.plan.assignment.order import (
    GivenBatches,
    GivenOrder,
    GlobalBatches,
    UniformBatches,
)
from torch_distinput.plan.assignment.permutation import Indices
from torch_distinput.random_generators import seeded_generators

T = TypeVar("T")

_log = logging.getLogger(__name__)
_MOST = 1 << 26
"""Indices that a sampler without a length may yield in an epoch."""


def sample_batches(
    sampler: Iterable[Any], batch_size: int | None, *, drop_last: bool, key: tuple[int, int]
) -> GlobalBatches:
    """Iterate a sampler, or a batch sampler where ``batch_size`` is None, under a forked RNG.

    ``key``: seed and epoch. The generators of torch, NumPy and random are put back afterwards.
    """
    # First, as everywhere, the turn at the epoch; it is told inside, as ``set_epoch`` may draw.
    with AtEpoch(sampler, key[1], tells=False), seeded_generators(key):
        tell_epoch(sampler, key[1])
        drawn = iter(sampler)
        items = _take_all(drawn)
        if batch_size is None:
            sampled = _bound(map(_indices, items), length_of(sampler), len)
            batches = tuple(batch for batch in sampled if len(batch))  # no step is empty
            _check_number(sampler, drawn, len(batches))
            return GivenBatches(batches)
        indices = list(_bound(items, length_of(sampler), _one))
        _check_number(sampler, drawn, len(indices))
        order = GivenOrder(_indices(indices))
    return UniformBatches(order=order, global_batch_size=batch_size, drop_last=drop_last)


def _take_all(drawn: Iterator[T]) -> Iterator[T]:
    """Yield what an iterator yields, as a DataLoader takes it: by ``next()`` alone.

    A ``for`` would ask it for an iterator again. A sampler that is its own iterator begins the next
    epoch then.
    """
    while True:
        try:
            item = next(drawn)
        except StopIteration:
            return
        yield item


def _bound(items: Iterable[T], said: int | None, count: Callable[[T], int]) -> Iterator[T]:
    """An epoch is planned before it is played, so it must end: refuse what goes on and on."""
    num_indices = 0
    for number, item in enumerate(items):
        num_indices += count(item)
        if number == said or (said is None and max(number, num_indices) > _MOST):
            expected = (
                "whose epoch ends, got one without a len()"
                if said is None
                else f"that yields at most {said} items, as its len() says, got one"
            )
            msg = (
                f"Expected a sampler {expected} that goes on after {number} items. Let len() say "
                "how many it yields; an endless one can be cut by itertools.islice."
            )
            raise ConfigurationError(msg)
        yield item


def _check_number(sampler: Any, drawn: Iterator[Any], num_items: int) -> None:
    if not num_items and iter(sampler) is drawn:  # the iterator of the epoch before, again
        raise make_exhausted_error(sampler)
    said = length_of(sampler)
    if said is not None and num_items < said:
        _warn_of_length(type(sampler).__name__, said, num_items)


@functools.cache
def _warn_of_length(name: str, said: int, num_items: int) -> None:
    _log.warning(
        "The len() of %s is %d, and it has yielded %d items, without empty ones: len() of the "
        "distributed dataset was too large before the epoch began. All of them are delivered. "
        "(Logged once.)",
        name,
        said,
        num_items,
    )


def _one(index: Any) -> int:  # noqa: ARG001
    return 1


def length_of(sampler: Any) -> int | None:
    """What ``len()`` says; None where it says nothing."""
    try:
        return len(sampler)
    except (TypeError, NotImplementedError):
        return None


def _indices(keys: Any) -> Indices:
    array = np.asarray(keys)
    if array.size and (array.ndim != 1 or not np.issubdtype(array.dtype, np.integer)):
        got = keys[0] if array.ndim else keys
        msg = (
            f"Expected a sampler that yields indices, got {got!r}. Index by whole numbers; a "
            "batch sampler yields a list of them for each batch."
        )
        raise ConfigurationError(msg)
    if array.dtype == np.uint64 and array.size and int(array.max()) > np.iinfo(np.int64).max:
        msg = (
            f"Expected a sampler that yields indices below 2**63, got {int(array.max())}: it would "
            "wrap round to a negative index, which counts from the end. Yield indices of the "
            "dataset."
        )
        raise ConfigurationError(msg)
    return array.astype(np.int64)
