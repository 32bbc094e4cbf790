"""What the coordinator knows of a per-worker dataset: how to make it, where each worker stands.

    thread          writes                         reads
    one per worker  its entry of places, visits    its entry of places
    the user's      -                              visits (a copy)

An entry of ``places`` is one worker's, and is assigned whole. Visits have a lock of their own.
"""

from __future__ import annotations

import weakref
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from torch_distinput.coordinator.workers.messages import (
    DatasetRecipe,
    IteratorPlace,
    IteratorReport,
    Unused,
)
from torch_distinput.threads import new_lock


@dataclass(frozen=True, kw_only=True, slots=True)
class Visits:
    """How often each example of a per-worker dataset came to a closure, over all workers.

    Attributes:
        counts: how often, by the name of the example: what ``ids(batch)`` says. Without ``ids``
            nobody knows whether two workers have the same data, so a name is a pair of worker and
            number: in distributed datasets that of ``last_step.ids`` (an index, or file and
            record), in others that of the element.
        num_closures: closures that took something and returned or raised.
        num_lost: closures that were lost with their worker. Nobody knows what they took; where
            iterators keep their state, those that came after them took it again.
    """

    counts: Mapping[Hashable, int]
    num_closures: int
    num_lost: int


@final
class DatasetRecord:
    """One per-worker dataset. Its iterators and closures keep it; then the workers drop theirs."""

    def __init__(self, recipe: DatasetRecipe, unused: Sequence[deque[Unused]]) -> None:
        """Begin with no visit; put the number to ``unused`` of each worker in the end."""
        self.recipe = recipe
        self.unused = unused
        self.places: dict[int, IteratorPlace] = {}
        self._lock = new_lock()
        self._visits: Counter[Hashable] = Counter()
        self._num_closures = 0
        self._num_lost = 0
        _note_end(self, Unused(dataset=recipe.number), unused)

    def __str__(self) -> str:
        """Who it is in messages."""
        return f"dataset {self.recipe.number} ({self.recipe.name})"

    @property
    def number(self) -> int:
        """One for each dataset of a coordinator."""
        return self.recipe.number

    def add(self, worker: int, reports: Iterable[IteratorReport]) -> None:
        """Note what a closure took from this dataset on a worker, or that it met the end."""
        reports = tuple(reports)
        with self._lock:
            for report in reports:
                names: Iterable[Hashable] | None = report.ids
                if names is None:
                    names = range(report.first, report.first + report.num_elements)
                if not self.recipe.names_examples:
                    names = ((worker, name) for name in names)
                self._visits.update(names)
                if report.place is not None:
                    self.places[worker] = report.place
            self._num_closures += any(report.num_elements for report in reports)

    def lose(self) -> None:
        """A closure that took something, or was about to, was lost with its worker."""
        with self._lock:
            self._num_lost += 1

    def visits(self) -> Visits:
        """What was noted until now."""
        with self._lock:
            counts = dict(self._visits)
            return Visits(counts=counts, num_closures=self._num_closures, num_lost=self._num_lost)


@final
class IteratorRecord:
    """One iterator on each worker. Its handle and closures keep it; then the workers drop theirs.

    Attributes:
        dataset: of which it is.
        number: among those of its dataset.
    """

    def __init__(self, dataset: DatasetRecord, number: int) -> None:
        self.dataset = dataset
        self.number = number
        _note_end(self, Unused(dataset=dataset.number, iterator=number), dataset.unused)


def _note_end(owner: object, what: Unused, unused: Sequence[deque[Unused]]) -> None:
    """When the owner is garbage, let the workers know."""
    weakref.finalize(owner, _note_unused, what, unused).atexit = False


def _note_unused(what: Unused, unused: Sequence[deque[Unused]]) -> None:
    """Whoever collects garbage may hold any lock: this travels with the next calls."""
    for of_worker in unused:
        of_worker.append(what)
