"""How long it takes to read the examples of a batch and to collate them, in whichever process.

Memory that is shared with loader processes carries the figures, a row for each of them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from hashlib import blake2b
from typing import Any, cast, final
from unittest import mock

import numpy as np
import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils import fetch

_GENERATORS = ("random", "NumPy", "torch")
_LOOKS = 8
"""Batches of a process after which it is no longer looked whether its generators are used."""


@final
class Stages:
    """The figures of one iterator: of all its loader processes, or of this process."""

    def __init__(self, num_processes: int) -> None:
        """Make room for them; ``num_processes`` may be 0."""
        rows = max(1, num_processes)
        # Batches, seconds in fetch with all within, in collate, and of looking at generators.
        self._times = _shared(torch.zeros(rows, 4, dtype=torch.float64))
        # For each generator: its first state, and whether it was another one later.
        self._states = _shared(torch.zeros(rows, 2, len(_GENERATORS), dtype=torch.int64))

    def add_fetch(self, seconds: float) -> None:
        """Add the time of a batch, in the process that fetched it."""
        self._times[_process_index()] += torch.tensor([1, seconds, 0, 0], dtype=torch.float64)

    def add_collate(self, seconds: float) -> None:
        """Add the time of its ``collate_fn``, before :meth:`add_fetch`."""
        row = _process_index()
        self._times[row, 2] += seconds
        if get_worker_info() is not None and self._times[row, 0] < _LOOKS:
            began = time.perf_counter()
            self._note_states(row)
            self._times[row, 3] += time.perf_counter() - began

    def _note_states(self, row: int) -> None:
        now = torch.tensor(_generator_states())
        if not self._states[row, 0].any():
            self._states[row, 0] = now
        else:
            self._states[row, 1] |= (now != self._states[row, 0]).long()

    def averages(self) -> tuple[float, float] | None:
        """Seconds of a batch in fetch without collate, and in collate; None: nothing was seen."""
        batches, fetched, collated, looked = self._times.sum(0).tolist()
        read = fetched - collated - looked
        return (read / batches, collated / batches) if batches else None

    def drawn_states(self) -> dict[str, list[int]]:
        """By generator the states with which processes began that have drawn from it."""
        columns = enumerate(_GENERATORS)
        states = self._states
        return {name: states[states[:, 1, at] == 1, 0, at].tolist() for at, name in columns}

    def alike(self) -> tuple[str, ...]:
        """Generators of which several processes have begun with one state, and drawn from it."""
        drawn = self.drawn_states().items()
        return tuple(name for name, states in drawn if len(set(states)) < len(states))


@final
class TimedCollate:
    """A ``collate_fn`` that is timed; it is pickled for loader processes that are spawned."""

    def __init__(self, collate_fn: Callable[[Any], Any], stages: Stages) -> None:
        """Keep what it calls, and where it adds the time."""
        self.collate_fn, self.stages = collate_fn, stages

    def __call__(self, examples: Any) -> Any:
        """Collate."""
        began = time.perf_counter()
        try:
            return self.collate_fn(examples)
        finally:
            self.stages.add_collate(time.perf_counter() - began)


@contextmanager
def fetches_timed() -> Iterator[None]:
    """Time each fetch whose ``collate_fn`` is timed, here and in processes forked meanwhile."""
    with ExitStack() as stack:
        for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):  # noqa: SLF001
            stack.enter_context(mock.patch.object(kind, "fetch", _timed(kind.fetch)))
        yield


def _timed(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def timed_fetch(fetcher: Any, index: Any) -> Any:
        collate = fetcher.collate_fn
        if not isinstance(collate, TimedCollate):
            return original(fetcher, index)
        began = time.perf_counter()
        batch = original(fetcher, index)
        collate.stages.add_fetch(time.perf_counter() - began)
        return batch

    return timed_fetch


def _shared(tensor: Any) -> torch.Tensor:
    return cast(torch.Tensor, tensor.share_memory_())


def _process_index() -> int:
    info = get_worker_info()
    return 0 if info is None else info.id


def _generator_states() -> list[int]:
    """A number below 2**56 for the state of each global generator."""
    numpy_state: Any = np.random.get_state()  # noqa: NPY002 - the global one is meant
    states = (random.getstate(), (numpy_state[1].tolist(), numpy_state[2:]), torch.get_rng_state())
    tellable = (repr(states[0]), repr(states[1]), states[2].numpy().tobytes())
    return [_short(state if isinstance(state, bytes) else state.encode()) for state in tellable]


def _short(state: bytes) -> int:
    return int.from_bytes(blake2b(state, digest_size=7).digest(), "big") or 1
