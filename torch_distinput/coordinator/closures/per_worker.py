"""A dataset that each worker has for itself, and the handle of its iterators."""

from __future__ import annotations

import itertools
from typing import Any, NoReturn, final

from torch_distinput.coordinator.closures.closure_pickling import note_iterator, refuse
from torch_distinput.coordinator.closures.dataset_record import (
    DatasetRecord,
    IteratorRecord,
    Visits,
)
from torch_distinput.coordinator.workers.iterator import open_iterator
from torch_distinput.errors import UsageError


@final
class PerWorkerDataset:
    """What ``create_per_worker_dataset`` returns: a dataset on each worker, none of it here."""

    def __init__(self, owner: object, record: DatasetRecord) -> None:
        """Made by the coordinator."""
        self._owner = owner
        self._record = record
        self._numbers = itertools.count()

    def __repr__(self) -> str:
        """Show which it is."""
        return f"PerWorkerDataset({self._record})"

    def __iter__(self) -> PerWorkerIterator:
        """A handle: each worker begins its own iterator when a closure with the handle comes."""
        return PerWorkerIterator(self._owner, IteratorRecord(self._record, next(self._numbers)))

    def visits(self) -> Visits:
        """How often each example came to a closure that has ended, over all workers."""
        return self._record.visits()

    def __reduce__(self) -> NoReturn:
        """Refuse to be an argument: what a closure takes is an iterator."""
        refuse(
            UsageError(
                f"Expected the iterator of a per-worker dataset as an argument, got {self!r}. Call "
                "iter(per_worker_dataset) once, and pass what it returns to each closure."
            )
        )


@final
class PerWorkerIterator:
    """A handle, to be passed to closures: there it is the worker's own iterator.

    It stands for one iterator on each worker (``PerWorkerValues`` in TensorFlow). The elements are
    never here: workers advance their iterators in the closures they run.
    """

    def __init__(self, owner: object, record: IteratorRecord) -> None:
        """Made by ``iter()`` of a per-worker dataset."""
        self._owner = owner
        self._record = record

    def __repr__(self) -> str:
        """Show which it is."""
        return f"PerWorkerIterator({self._record.number} of {self._record.dataset})"

    def __iter__(self) -> PerWorkerIterator:
        """Return itself."""
        return self

    def __next__(self) -> NoReturn:
        """Refuse: its elements are on the workers.

        Raises:
            UsageError: always.
        """
        msg = (
            f"Expected next() of {self!r} on a worker, in a function that was scheduled; got it on "
            "the coordinator, which has no element. Write "
            "coordinator.schedule(fn, args=(iterator,)), and call next(iterator) in fn."
        )
        raise UsageError(msg)

    def __reduce__(self) -> Any:
        """Travel with a closure, as what opens the worker's own iterator."""
        note_iterator(self._owner, self._record)
        return open_iterator, (self._record.dataset.number, self._record.number)
