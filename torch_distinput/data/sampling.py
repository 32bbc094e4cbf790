"""The order that a sampler of the user gives: the same on every rank, whatever it draws from."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from torch_distinput.errors import ConfigurationError
from torch_distinput.plan.order import GivenBatches, GivenOrder, GlobalBatches, UniformBatches

_GENERATORS = threading.Lock()
"""They belong to the process: simulated workers, which are threads, sample one after another."""


def sampled_batches(
    sampler: Iterable[Any], batch_size: int | None, *, drop_last: bool, key: tuple[int, int]
) -> GlobalBatches:
    """Iterate a sampler, or a batch sampler where ``batch_size`` is None, under a forked RNG.

    ``key``: seed and epoch. The generators of torch, NumPy and random are put back afterwards.
    """
    with _seeded(key):
        drawn = list(sampler)
    if batch_size is None:
        arrays = (np.asarray(batch, dtype=np.int64) for batch in drawn)
        return GivenBatches(tuple(array for array in arrays if len(array)))
    keys = np.asarray(drawn)
    if drawn and (keys.ndim != 1 or not np.issubdtype(keys.dtype, np.integer)):
        msg = f"Expected a sampler that yields indices, got {drawn[0]!r}. Index by whole numbers."
        raise ConfigurationError(msg)
    order = GivenOrder(keys.astype(np.int64))
    return UniformBatches(order=order, global_batch_size=batch_size, drop_last=drop_last)


@contextmanager
def _seeded(key: tuple[int, int]) -> Iterator[None]:
    words = np.random.SeedSequence(key).generate_state(3, dtype=np.uint32).tolist()
    with _GENERATORS, torch.random.fork_rng(devices=[]):
        python_state = random.getstate()
        numpy_state = np.random.get_state()  # noqa: NPY002 - samplers draw from it
        torch.manual_seed(words[0])
        np.random.seed(words[1])  # noqa: NPY002
        random.seed(words[2])
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002
