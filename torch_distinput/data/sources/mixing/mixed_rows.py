"""Rows of several sources as one batch, in the order of the mixture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch

from torch_distinput.data.batch import rows
from torch_distinput.data.batch.collate import CollateFn
from torch_distinput.data.batch.leaf_kinds import is_selectable, kind_of
from torch_distinput.data.batch.spec import name_difference, name_kinds, spec_of
from torch_distinput.data.batch.tree import Batch, flatten, leaves_like, unflatten
from torch_distinput.data.sources.indexed import ColumnFetch, timed_collate
from torch_distinput.data.user_sources.source_errors import errors_of_member
from torch_distinput.errors import ConfigurationError
from torch_distinput.meter import WorkClock
from torch_distinput.plan.assignment.permutation import Indices
from torch_distinput.random_generators import seeded_generators


@final
@dataclass(frozen=True, slots=True)
class MixedFetch:
    """Batches of a mixture of sources with an index.

    Attributes:
        names: of the sources.
        fetches: each of them by its own indices.
        firsts: the index of the mixture with which each begins.
        collate: the user's, which gets examples of all sources at once; else each source makes
            columns of its own.
        clock: counts the time of collating.
    """

    names: tuple[str, ...]
    fetches: tuple[Callable[[Indices], Batch], ...]
    firsts: Indices
    collate: CollateFn | None = None
    clock: WorkClock | None = None

    def __call__(self, indices: Indices) -> Batch:
        """Return the rows at the indices."""
        if self.collate is not None:
            batch = timed_collate(self.examples(indices), self.collate, self.clock)
            rows.check_row_count(batch, len(indices))
            return batch
        sources = find_sources(indices, self.firsts)
        parts = {
            source: self._fetch(source, indices[own] - self.firsts[source])
            for source, own in split_by_source(sources)
        }
        return merge_rows(self.names, sources, parts)

    def _fetch(self, source: int, own_indices: Indices) -> Batch:
        with errors_of_member(self.names[source]):
            return self.fetches[source](own_indices)

    def examples(self, indices: Indices) -> list[Any]:
        """Return the examples at the indices, not collated."""
        found: list[Any] = [None] * len(indices)
        for source, own in split_by_source(find_sources(indices, self.firsts)):
            fetch: Any = self.fetches[source]
            with errors_of_member(self.names[source]):
                examples = fetch.examples(indices[own] - self.firsts[source])
            check_num_examples(self.names[source], examples, len(own))
            for place, example in zip(own.tolist(), examples, strict=True):
                found[place] = example
        return found

    def check(self) -> None:
        """Fetch an example of each source, and refuse sources that do not fit together.

        Random generators are as they were afterwards.

        Raises:
            ConfigurationError: a ValueError; their structures or dtypes differ.
        """
        if self.collate is not None:
            return
        first = np.zeros(1, dtype=np.int64)
        plain = all(isinstance(fetch, ColumnFetch) for fetch in self.fetches)
        if plain:
            _check_alike(self.names, [fetch(first) for fetch in self.fetches])
            return
        for fetch in self.fetches:
            if isinstance(fetch, MixedFetch):
                fetch.check()
        with seeded_generators():
            batches = [self._fetch(source, first) for source in range(len(self.fetches))]
        _check_alike(self.names, batches)


def find_sources(indices: Indices, firsts: Indices) -> Indices:
    """The source of each index of a mixture; ``firsts``: the index with which each begins."""
    return np.searchsorted(firsts, indices, side="right") - 1


def split_by_source(sources: Indices) -> list[tuple[int, Indices]]:
    """The sources that have any of some rows, and the places of those."""
    there = np.flatnonzero(np.bincount(sources)).tolist()
    return [(source, np.flatnonzero(sources == source)) for source in there]


def merge_rows(names: Sequence[str], sources: Indices, parts: dict[int, Batch]) -> Batch:
    """Put the rows of sources in one order.

    Args:
        names: of all sources.
        sources: the source of each row.
        parts: the rows of each source that has any, in order.

    Raises:
        ConfigurationError: a ValueError; the sources have not one structure.
    """
    if len(parts) == 1:
        return next(iter(parts.values()))
    batches = [rows.with_tensors(part) for part in parts.values()]
    if not _look_alike(batches):
        _check_alike([names[source] for source in parts], batches)
    structure = flatten(batches[0])[1]
    columns = zip(*(leaves_like(batch, structure) or [] for batch in batches), strict=True)
    there = [names[source] for source in parts]
    places = [np.flatnonzero(sources == source) for source in parts]
    return unflatten(structure, [_merge_column(there, column, places) for column in columns])


def _merge_column(names: Sequence[str], column: Sequence[Any], places: Sequence[Indices]) -> Any:
    """The rows of one leaf of all sources, each at its place."""
    first, count = column[0], sum(map(len, places))
    if all(map(is_selectable, column)):
        _check_shapes(names, [tuple(leaf.shape[1:]) for leaf in column])
        merged = first.new_empty((count, *first.shape[1:]))
        for leaf, own in zip(column, places, strict=True):
            merged.index_copy_(0, torch.from_numpy(own), leaf)
        return merged
    order = np.concatenate(places)
    back = np.empty_like(order)
    back[order] = np.arange(count)
    kind = kind_of(first)
    return kind.take(kind.concat(column), torch.from_numpy(back))


def _check_shapes(names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> None:
    """Refuse rows of different shapes, which no tensor can hold."""
    for name, shape in zip(names[1:], shapes[1:], strict=True):
        if shape != shapes[0]:
            msg = (
                f"Expected rows of one shape to mix, got {shapes[0]} in {names[0]!r} and {shape} "
                f"in {name!r}. Let a map or a collate_fn make them alike, by padding for example."
            )
            raise ConfigurationError(msg)


def _look_alike(batches: Sequence[Batch]) -> bool:
    """Whether all are tensors of the same dtypes in one structure, as almost always."""
    leaves, structure = flatten(batches[0])
    if not all(type(leaf) is torch.Tensor for leaf in leaves):
        return False
    dtypes = [leaf.dtype for leaf in leaves]
    for batch in batches[1:]:
        others, other = flatten(batch)
        if other is not structure or dtypes != [getattr(leaf, "dtype", None) for leaf in others]:
            return False
    return True


def _check_alike(names: Sequence[str], batches: Sequence[Batch]) -> None:
    """Refuse batches of different structure or dtypes, as are those of the first source.

    Raises:
        ConfigurationError: a ValueError; it names both sources, and what each has.
    """
    first, *others = [name_kinds(spec_of(rows.with_tensors(batch))) for batch in batches]
    for name, kinds in zip(names[1:], others, strict=True):
        if kinds == first:
            continue
        here, there = name_difference(first, kinds)
        msg = (
            f"Expected sources of one structure to mix, got {here} in {names[0]!r} and {there} in "
            f"{name!r}. Let the examples of both have the same keys and dtypes, by a map or a "
            "collate_fn."
        )
        raise ConfigurationError(msg)


def check_num_examples(name: str, examples: Sequence[Any], count: int) -> None:
    """Refuse a source that gives more examples than were asked for, or fewer."""
    if len(examples) != count:
        msg = f"Expected {count} examples of source {name!r}, got {len(examples)}."
        raise ValueError(msg)
