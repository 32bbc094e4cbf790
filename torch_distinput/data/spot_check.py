"""A spot check of sources with an index: do all ranks have the same examples at the same places?

Under DATA each rank delivers its own part of one dataset. A rank that holds a dataset of its own,
split by rank before or made from random numbers of its own, would deliver as many examples as it
should, but others than it should, and nobody would notice.

    random on purpose   The generators of torch, NumPy and Python are seeded alike on all ranks for
                        the check, and put back after it: augmentation that draws from them gives
                        the same example everywhere.
    random by other     An example is fetched twice; one that differs from itself is not compared.
    means
    slow                The check stops when its time is up; ranks compare what all of them have.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch.utils.data import Subset

from torch_distinput.data.fingerprint import fingerprint
from torch_distinput.data.indexed import ColumnFetch
from torch_distinput.data.sampling import forked_generators, seed_generators
from torch_distinput.data.structure import Batch
from torch_distinput.plan.permutation import Indices

_log = logging.getLogger(__name__)
UNKNOWN = 0
"""Instead of a fingerprint, which is never 0."""
_SECONDS = 0.003
_PATIENCE_SECONDS = 1.0
_KEY = (0, 0)
_MOST_HASHED = 1024
"""Indices of a Subset that are looked at."""


@dataclass(frozen=True, slots=True)
class SpotCheck:
    """Asks for fingerprints of a few examples; may travel to a loader process as a task."""

    indices: tuple[int, ...]

    def run(self, fetch: Callable[[Indices], Batch]) -> list[int]:
        """Return the fingerprints of the first examples, as many as there is time for."""
        if isinstance(fetch, ColumnFetch):  # no code of the user's
            return [fingerprint(fetch(np.array([index]))) for index in self.indices]
        started, found = time.monotonic(), list[int]()
        try:
            with forked_generators(_PATIENCE_SECONDS):
                for number, index in enumerate(self.indices, 1):
                    found.append(_fingerprint(fetch, index))
                    spent = time.monotonic() - started
                    if spent + spent / number > _SECONDS:
                        break
        except TimeoutError:  # a simulated worker hangs in its dataset
            _log.info("Examples are not compared: random generators are in use elsewhere.")
        return found


def describe_dataset(dataset: object) -> str:
    """Name a dataset's class, and which part of another one it is."""
    name = type(dataset).__qualname__
    if type(dataset) is not Subset:
        return name
    indices = dataset.indices
    some = [int(index) for index in indices[:: -(-len(indices) // _MOST_HASHED) or 1]]
    inner = describe_dataset(dataset.dataset)
    return f"{name} of {inner}, indices {some[:3]}... (digest {fingerprint(some):x})"


def _fingerprint(fetch: Callable[[Indices], Batch], index: int) -> int:
    found = set()
    try:
        for _ in range(2):
            seed_generators(_KEY)
            found.add(fingerprint(fetch(np.array([index]))))
    except Exception:  # noqa: BLE001 - the step that needs the example raises it, with its place
        return UNKNOWN
    return found.pop() if len(found) == 1 else UNKNOWN
