"""The datasets of one worker, made by the user's functions, and their iterators."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any, final

import torch_distinput as tdi
from torch_distinput.coordinator.workers.iterator import WorkerIterator
from torch_distinput.coordinator.workers.messages import (
    DatasetRecipe,
    IteratorPlace,
    IteratorReport,
    Unused,
    WorkerPlace,
)
from torch_distinput.data.user_sources.states import has_state
from torch_distinput.data.user_sources.torchdata_states import is_exact


@final
class WorkerDataset:
    """A dataset of this worker, and its iterators by number."""

    def __init__(
        self, recipe: DatasetRecipe, worker: WorkerPlace, place: IteratorPlace | None
    ) -> None:
        """Make it, at the place where an earlier process of this worker stood."""
        self._recipe = recipe
        self._worker = worker
        self._make, self._ids = pickle.loads(recipe.payload)  # noqa: S301 - from our coordinator
        self._iterators: dict[int, WorkerIterator] = {}
        self._newest = -1 if place is None else place.iterator
        self._is_opened = False
        self._dataset = self._make_dataset()
        self._resumed = place
        self._reopened: WorkerIterator | None = None  # the one that goes on there
        if place is not None and place.state is not None:
            self._dataset.load_state_dict(pickle.loads(place.state))  # noqa: S301 - our own

    @property
    def name(self) -> str:
        """Who it is in messages."""
        return f"dataset {self._recipe.number} ({self._recipe.name}) of {self._worker.name}"

    def open(self, number: int) -> WorkerIterator:
        """The iterator of this number; a new one the first time."""
        if self._recipe.keeps_state:
            self._check_newest(number)
        if number not in self._iterators:
            try:
                self._iterators[number] = self._new_iterator(number)
            except tdi.DistinputError:
                raise
            except Exception as error:
                msg = (
                    f"Expected iter() of {self.name} to return an iterator, got "
                    f"{type(error).__name__}: {error}. Fix the dataset, or the data it reads."
                )
                raise tdi.SourceError(msg) from error
        return self._iterators[number]

    def drop(self, number: int) -> None:
        """Let the iterator of this number go."""
        if (dropped := self._iterators.pop(number, None)) is not None:
            dropped.drop()

    def drop_all(self) -> None:
        """Let all iterators go."""
        for number in list(self._iterators):
            self.drop(number)

    def make_reports(self) -> Iterator[tuple[WorkerIterator, IteratorReport]]:
        """What was taken of each iterator since it was told."""
        for iterator in self._iterators.values():
            report = iterator.make_report(self._recipe.number)
            if report is not None:
                yield iterator, report

    def ended(self) -> list[str]:
        """Whose data has ended."""
        return [each.describe_end() for each in self._iterators.values() if each.has_ended]

    def _make_dataset(self) -> Any:
        if self._recipe.is_function:
            strategy = tdi.get_strategy()
            assert strategy is not None
            context = tdi.InputContext(
                num_input_pipelines=self._worker.num_workers,
                input_pipeline_id=self._worker.index,
                num_replicas_in_sync=strategy.num_replicas_in_sync,
            )
            dataset = self._make(context) if takes_context(self._make) else self._make()
        else:
            dataset = self._make
        self._check(dataset)
        return dataset

    def _check(self, dataset: Any) -> None:
        kind = type(dataset).__name__
        if not hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__"):
            msg = (
                f"Expected {self.name} to be something that can be iterated, got {kind}. Return "
                "an iterable; or distribute it on the worker, as in "
                "tdi.get_strategy().distribute_dataset(source, global_batch_size=...)."
            )
            raise TypeError(msg)
        can_resume = has_state(dataset) and hasattr(dataset, "load_state_dict")
        if self._recipe.keeps_state and not can_resume:
            msg = (
                f"resume='state' needs a dataset with state_dict() and load_state_dict(), and "
                f"{self.name} is a {kind} without them. Distribute it on the worker, as in "
                "tdi.get_strategy().distribute_dataset(...), take a StatefulDataLoader, or use "
                "resume='start'."
            )
            raise tdi.ConfigurationError(msg)

    def _check_newest(self, number: int) -> None:
        if number < self._newest:
            msg = (
                f"Expected the newest iterator of {self.name}, got one that a later iter() has "
                "replaced: with resume='state' a dataset stands in one place. Use the iterator of "
                "the last iter(); or make a second dataset."
            )
            raise tdi.UsageError(msg)

    def _new_iterator(self, number: int) -> WorkerIterator:
        place = IteratorPlace(iterator=number, num_elements=0, has_ended=False, state=None)
        resumed, self._newest = self._resumed, max(self._newest, number)
        if resumed is not None and resumed.iterator == number:
            place, iterator = resumed, iter(() if resumed.has_ended else self._dataset)
        else:
            self._resumed, iterator = None, self._begin_pass(resumed)
        self._is_opened = True
        if self._recipe.keeps_state and not is_exact(self._dataset):
            msg = (
                "resume='state' needs a state that tells where the data is, and that of "
                f"{self.name}, a {type(self._dataset).__name__}, would lose or repeat examples: it "
                "only counts batches of a stream without a state, or is of a Hugging Face stream, "
                "of torchdata's nodes, or of a stream in loader processes. Distribute the data on "
                "the worker, as in tdi.get_strategy().distribute_dataset(...), which reads it "
                "again up to its place; or use resume='start'."
            )
            raise tdi.ConfigurationError(msg)
        made = WorkerIterator(
            iterator,
            name=self.name,
            place=place,
            ids=self._ids,
            state=self._dataset.state_dict if self._recipe.keeps_state else None,
        )
        self._reopened = made if place is resumed else None
        return made

    def _begin_pass(self, resumed: IteratorPlace | None) -> Iterator[Any]:
        """Begin the data anew; behind a loaded place, where there is one that still counts."""
        is_first = resumed is None and not self._is_opened
        if not is_first and hasattr(self._dataset, "__next__"):
            self._dataset = self._make_dataset()  # an iterator: there is no second epoch in it
        elif resumed is not None and (resumed.has_ended or not self._was_reopened()):
            # A generator is where it was only when it runs, and until then the place counts.
            going_on = iter(self._dataset)
            first = list(islice(going_on, 1))
            if first and resumed.has_ended:  # a state after the end may be of the next epoch
                return chain(first, going_on)
        return iter(self._dataset)

    def _was_reopened(self) -> bool:
        """Whether the iterator at the loaded place has gone on."""
        return self._reopened is not None and self._reopened.has_begun


@final
class WorkerDatasets:
    """All datasets of this worker, by number."""

    def __init__(self, worker: WorkerPlace) -> None:
        """Begin without any."""
        self._worker = worker
        self._datasets: dict[int, WorkerDataset] = {}

    def create(self, recipe: DatasetRecipe, place: IteratorPlace | None) -> None:
        """Make a dataset, in the scope of the worker's strategy."""
        self._datasets[recipe.number] = WorkerDataset(recipe, self._worker, place)

    def open_iterator(self, dataset: int, iterator: int) -> WorkerIterator:
        """The iterator of these numbers."""
        return self._datasets[dataset].open(iterator)

    def drop(self, unused: Unused) -> None:
        """Let a dataset go, or one of its iterators, with all that they hold."""
        if unused.iterator is None:
            if (dropped := self._datasets.pop(unused.dataset, None)) is not None:
                dropped.drop_all()
        elif unused.dataset in self._datasets:
            self._datasets[unused.dataset].drop(unused.iterator)

    def take_reports(self) -> tuple[IteratorReport, ...]:
        """What was taken since the last reports; of all, or of none if a state cannot be told."""
        made = [pair for each in self._datasets.values() for pair in each.make_reports()]
        for iterator, _ in made:
            iterator.note_told()
        return tuple(report for _, report in made)

    def ended(self) -> list[str]:
        """Whose data has ended."""
        return [name for each in self._datasets.values() for name in each.ended()]


def takes_context(function: Callable[..., Any]) -> bool:
    """Whether a dataset_fn takes an InputContext: TensorFlow's also takes nothing.

    One whose only parameters have defaults takes it if the first is named for it.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # a builtin does not say
        return True
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    first = next(iter(parameters), None)
    if first is None:
        return False
    if first.kind is inspect.Parameter.VAR_POSITIONAL:
        return True
    is_required = first.default is inspect.Parameter.empty
    return first.kind in kinds and (is_required or "context" in first.name)
