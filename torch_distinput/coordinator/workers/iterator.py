"""What the handle of a per-worker iterator becomes on a worker: its own iterator, which counts.

Whose iterators they are is known per thread, as simulated workers are threads of one process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, Protocol, final

import numpy as np
import torch

import torch_distinput as tdi
from torch_distinput.coordinator.engines.pickling import dump_by_value
from torch_distinput.coordinator.workers.messages import IteratorPlace, IteratorReport
from torch_distinput.values import StepIterator


@final
class WorkerIterator(StepIterator):
    """Gives what the worker's own dataset has, and counts it for the coordinator.

    Other attributes, such as ``last_step``, are those of the dataset's iterator.

    Attributes:
        has_begun: whether it was ever asked for an element.
        has_ended: whether its end has come.
    """

    def __init__(
        self,
        iterator: Iterator[Any],
        *,
        name: str,
        place: IteratorPlace,
        ids: Callable[[Any], Iterable[Any]] | None,
        state: Callable[[], Any] | None,
    ) -> None:
        """Go on at a place; ``state()`` is that of the dataset, where it is kept."""
        self._iterator = iterator
        self._name = name
        self._number = place.iterator
        self._given = self._reported = place.num_elements
        self._find_ids = self._ids_of_ours(iterator) if ids is None else self._checked(ids)
        self._ids: list[Any] = []
        self._state = state
        self._has_failed = False  # to tell its state
        self.has_begun, self.has_ended = False, place.has_ended
        self._has_reported_end = place.has_ended
        self._is_dropped = False

    def __next__(self) -> Any:
        """Return the next element of this worker."""
        if self._is_dropped:
            msg = (
                f"Expected an iterator of {self._name} that the coordinator has, too, got one that "
                "nobody has there any more: what it gives would not be counted. Keep what "
                "iter(dataset) returned as long as workers use it."
            )
            raise tdi.UsageError(msg)
        self.has_begun = True
        try:
            element = next(self._iterator)
        except StopIteration:
            self.has_ended = True
            raise
        self._given += 1
        if self._find_ids is not None:
            self._ids += self._find_ids(element)
        return element

    def __getattr__(self, name: str) -> Any:
        """What the iterator behind this has besides."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._iterator, name)

    def __reduce__(self) -> NoReturn:
        """Refuse to travel: a copy would give elements again, and nobody would count them."""
        raise TypeError(f"an iterator stays on its worker, here that of {self._name}")

    def drop(self) -> None:
        """Nobody has a handle of it any more; a closure may have kept it here all the same."""
        self._is_dropped = True

    def describe_end(self) -> str:
        """Whose data has ended, and after how much."""
        return f"{self._name}, which has {self._given} elements"

    def make_report(self, dataset: int) -> IteratorReport | None:
        """What was taken since what was told; None if nothing was, and the end did not come."""
        num_elements = self._given - self._reported
        if not num_elements and self.has_ended is self._has_reported_end:
            return None
        # If state() raises, the closure fails of it; then it is asked what it took, and no state.
        place = None
        if self._state is not None and not self._has_failed:
            self._has_failed = True
            place = self._place(self._state())
            self._has_failed = False
        return IteratorReport(
            dataset=dataset,
            first=self._reported,
            num_elements=num_elements,
            ids=None if self._find_ids is None else tuple(self._ids),
            place=place,
        )

    def note_told(self) -> None:
        """The last report is on its way."""
        self._reported, self._ids, self._has_failed = self._given, [], False
        self._has_reported_end = self.has_ended

    def _place(self, state: Any) -> IteratorPlace:
        return IteratorPlace(
            iterator=self._number,
            num_elements=self._given,
            has_ended=self.has_ended,
            state=self._pickle(state),
        )

    def _pickle(self, state: Any) -> bytes:
        """Now, while the closure can still fail of it."""
        try:
            return dump_by_value(state)
        except Exception as error:
            msg = (
                f"Expected state_dict() of {self._name} to return what can be pickled, as "
                f"resume='state' sends it to the coordinator, got {state!r:.200} ({error}). Leave "
                "out what cannot, or use resume='start'."
            )
            raise TypeError(msg) from error

    def _checked(self, ids: Callable[[Any], Iterable[Any]]) -> Callable[[Any], Iterable[Any]]:
        """What the user's function returns, as names that can be counted: tensors never compare."""

        def checked(element: Any) -> Iterable[Any]:
            try:
                found = ids(element)
            except StopIteration as error:  # out of next() it would pass for the end of the data
                msg = f"Expected names from ids of {self._name}, got a StopIteration: catch it."
                raise RuntimeError(msg) from error
            if not isinstance(found, (str, bytes)):
                with suppress(TypeError):  # not iterable, or something in it cannot be counted
                    names = tuple(map(_plain, found))
                    hash(names)
                    return names
            msg = (
                f"Expected ids of {self._name} to return an iterable of the examples' names, which "
                f"are numbers, strings or tuples of them, got {type(found).__name__} "
                f"{found!r:.80}. Return one name for each, as in ids=lambda batch: batch['id']."
            )
            raise TypeError(msg)

        return checked

    @staticmethod
    def _ids_of_ours(iterator: Iterator[Any]) -> Callable[[Any], Iterable[Any]] | None:
        """Ask an iterator of ours for the ids of its last step."""
        if not isinstance(iterator, tdi.DistributedIterator):
            return None

        def ids(element: Any) -> Iterable[Any]:
            del element
            found = iterator.last_step.ids
            for own in found if isinstance(found, tdi.PerReplica) else (found,):
                yield from own.tolist() if own.ndim == 1 else map(tuple, own.tolist())

        return ids


def _plain(value: Any) -> Any:
    """What tensors, arrays and lists hold, as tuples: those that are equal have one hash."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        value = value.tolist()
    return tuple(map(_plain, value)) if isinstance(value, (list, tuple)) else value


class Opener(Protocol):
    """Who has the datasets of a worker."""

    def open_iterator(self, dataset: int, iterator: int) -> WorkerIterator:
        """The worker's own iterator of these numbers."""


class _Serving(threading.local):
    opener: Opener | None = None


_serving = _Serving()


@contextmanager
def serving(opener: Opener) -> Iterator[None]:
    """Let handles that are unpickled inside become iterators of this worker."""
    before, _serving.opener = _serving.opener, opener
    try:
        yield
    finally:
        _serving.opener = before


def open_iterator(dataset: int, iterator: int) -> WorkerIterator:
    """What a handle becomes where it is unpickled."""
    if _serving.opener is None:
        msg = (
            "Expected the handle of a per-worker iterator to be opened on a worker, as an argument "
            "of ClusterCoordinator.schedule, got it unpickled elsewhere. Pass it to schedule."
        )
        raise tdi.UsageError(msg)
    return _serving.opener.open_iterator(dataset, iterator)
