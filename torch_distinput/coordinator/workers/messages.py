"""What travels between the coordinator and a worker: values, no behaviour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerPlace:
    """Which worker this is.

    Attributes:
        index: from 0.
        num_workers: workers of the strategy.
        devices: of its replicas, as MirroredStrategy takes them.
    """

    index: int
    num_workers: int
    devices: Sequence[str] | None

    @property
    def name(self) -> str:
        """Who it is in messages."""
        return f"worker {self.index}"


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetRecipe:
    """How each worker makes its dataset.

    Attributes:
        number: of the dataset, from 0, one for all workers.
        name: of it in messages.
        payload: the pickled pair of the dataset, or the function that makes it, and ``ids``.
        is_function: whether it is a function.
        keeps_state: whether a worker that is started again goes on where the last one stood.
        names_examples: whether ``ids`` is given: a name means the same example on all workers.
    """

    number: int
    name: str
    payload: bytes
    is_function: bool
    keeps_state: bool
    names_examples: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class IteratorPlace:
    """Where an iterator of a worker stood when its last closure returned.

    Attributes:
        iterator: its number among those of its dataset.
        num_elements: elements it has given.
        has_ended: whether its end has come.
        state: the dataset's own, pickled; None before it has told any.
    """

    iterator: int
    num_elements: int
    has_ended: bool
    state: bytes | None


@dataclass(frozen=True, kw_only=True, slots=True)
class IteratorReport:
    """What a closure took from one iterator of its worker.

    Attributes:
        dataset: its number.
        first: number of the first element.
        num_elements: elements taken.
        ids: the names of the examples in them; None where only the elements can be counted.
        place: where the iterator stands now, if the dataset keeps its state.
    """

    dataset: int
    first: int
    num_elements: int
    ids: tuple[Any, ...] | None
    place: IteratorPlace | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Unused:
    """What a worker may drop.

    Attributes:
        dataset: its number.
        iterator: the number of one of its iterators; None for all of the dataset.
    """

    dataset: int
    iterator: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ClosureRequest:
    """A closure to run.

    Attributes:
        number: of the closure, one for all workers.
        name: of its function.
        payload: the pickled function, arguments and keyword arguments.
        unused_values: numbers of closures whose values nobody wants any more.
        unused_datasets: datasets and iterators that nobody has any more.
        unused_parameters: keys of those that were closed.
    """

    number: int
    name: str
    payload: bytes
    unused_values: tuple[int, ...]
    unused_datasets: tuple[Unused, ...]
    unused_parameters: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ClosureReply:
    """How a closure ended that did not raise.

    Attributes:
        value: the serialized value; None if it is large, and stays in the worker.
        reports: what it took from its iterators.
    """

    value: bytes | None
    reports: tuple[IteratorReport, ...]
