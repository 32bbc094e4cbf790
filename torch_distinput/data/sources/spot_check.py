"""A spot check of sources with an index: do all ranks have the same examples at the same places?

Under DATA each rank delivers its own part of one dataset. A rank that holds a dataset of its own,
split by rank before or made from random numbers of its own, would deliver as many examples as it
should, but others than it should, and nobody would notice.

    random on purpose   The generators of torch, NumPy and Python are seeded alike on all ranks for
                        the check, and put back after it: augmentation that draws from them gives
                        the same example everywhere.
    random by other     A dataset with a generator of its own. Each example is fetched twice; a leaf
    means               that differs from itself is not compared, but the others are, such as its
                        label. Where two ranks differ, they fetch that example many times before
                        they say so: a coin may fall alike twice.
    paths               An absolute path counts by its last part: folders may differ between nodes.

How many examples are fetched depends on nothing else, so that a generator of the dataset's own
goes on alike in each run of a program.
"""

from __future__ import annotations

import logging
import operator
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, TypeGuard, final

import numpy as np
import torch
from torch.utils.data import ConcatDataset, StackDataset, Subset

from torch_distinput.data.batch.fingerprint import fingerprint
from torch_distinput.data.batch.tree import Batch, flatten
from torch_distinput.data.sources.indexed import ColumnFetch
from torch_distinput.data.user_sources.sequences.mixture import Mixture
from torch_distinput.data.user_sources.sequences.packing import DocumentPacking
from torch_distinput.packed_strings import PackedStrings
from torch_distinput.plan.assignment.permutation import Indices
from torch_distinput.plan.progress.state import NOT_TOLD, SUBSET, WHOLE
from torch_distinput.random_generators import forked_generators, seed_generators

_log = logging.getLogger(__name__)
Fingerprints = list[list[int]]
"""For each example a fingerprint of each leaf."""
UNKNOWN = 0
"""Instead of a fingerprint, which is never 0."""
_OFTEN = 16
"""How often an example is fetched that is not the same on two ranks."""
_PATIENCE_SECONDS = 1.0
_KEY = (0, 0)
_MOST_HASHED = 1024
"""Indices of a Subset that are looked at."""
_MOST_PLACES = 16
"""Subsets that a state names one by one."""


@final
@dataclass(frozen=True, slots=True)
class SpotCheck:
    """Asks for fingerprints of a few examples; may travel to a loader process as a task.

    Attributes:
        indices: of the examples.
        times: how often to fetch each of them, where code of the user's does it.
        compares_sources: also whether the sources of a mixture fit together, where they are read.
    """

    indices: tuple[int, ...]
    times: int = 2
    compares_sources: bool = False

    def run(self, fetch: Callable[[Indices], Batch]) -> Fingerprints:
        """Return a fingerprint of each leaf of each example; nothing where they cannot be had.

        Raises:
            ConfigurationError: a ValueError; the sources of a mixture do not fit together.
        """
        if self.compares_sources:
            fetch.check()  # type: ignore[attr-defined]
        if isinstance(fetch, ColumnFetch):  # no code of the user's
            return [_fingerprints_of(fetch, index) for index in self.indices]
        try:
            with forked_generators(_PATIENCE_SECONDS):
                return [self._stable_fingerprints(fetch, index) for index in self.indices]
        except TimeoutError:  # a simulated worker hangs in its dataset
            _log.info("Examples are not compared: random generators are in use elsewhere.")
        except Exception:  # noqa: BLE001, S110 - the step that needs it raises it, with its place
            pass
        return []

    def again(self, index: int) -> SpotCheck:
        """The check to be made before an example is said to differ."""
        return SpotCheck((index,), _OFTEN)

    def _stable_fingerprints(self, fetch: Callable[[Indices], Batch], index: int) -> list[int]:
        """The fingerprints of leaves that are the same each time, UNKNOWN for the others."""
        fetched = []
        for _ in range(self.times):
            seed_generators(_KEY)
            fetched.append(_fingerprints_of(fetch, index))
        if len(set(map(len, fetched))) > 1:
            return []
        columns = zip(*fetched, strict=True)
        return [found[0] if len(set(found)) == 1 else UNKNOWN for found in columns]


def _fingerprints_of(fetch: Callable[[Indices], Batch], index: int) -> list[int]:
    leaves, _ = flatten(fetch(np.array([index])))
    return [fingerprint(drop_folders(leaf)) for leaf in leaves]


def drop_folders(leaf: Any) -> Any:
    """A list of strings or paths, or packed ones, with the last part of those that are absolute."""
    if isinstance(leaf, PackedStrings) and leaf.dtype is str:
        leaf = leaf.to_list()
    if not isinstance(leaf, list):
        return leaf
    return [
        os.path.basename(row) if isinstance(row, (str, PurePath)) and os.path.isabs(row) else row
        for row in leaf
    ]


def describe_dataset(dataset: object) -> str:
    """Name a dataset's class, and which part of another one it is."""
    if isinstance(dataset, Mixture):
        parts = (f"{name}: {describe_dataset(own)}" for name, own in dataset.sources.items())
        return f"mix({', '.join(parts)})"
    if isinstance(dataset, DocumentPacking):
        return f"pack({describe_dataset(dataset.source)})"
    name = type(dataset).__qualname__
    if not _is_subset(dataset):
        return name
    some = _choose_indices(dataset)
    inner = describe_dataset(dataset.dataset)
    return f"{name} of {inner}, indices {some[:3]}... (digest {fingerprint(some):x})"


def name_subsets(dataset: object) -> dict[str, str | dict[str, str]]:
    """Name the indices of the subsets that a dataset consists of, for states.

    By their places, where there is more than one; of very many together.
    """
    found = dict(_find_subsets(dataset, ""))
    if not found.keys() - {""}:
        return {SUBSET: found.get("", WHOLE)}
    if len(found) <= _MOST_PLACES:
        return {SUBSET: found}
    return {SUBSET: NOT_TOLD if NOT_TOLD in found.values() else f"{fingerprint(str(found)):x}"}


def _find_subsets(dataset: object, place: str) -> Iterator[tuple[str, str]]:
    """Yield the places of subsets in a dataset, with digests of their indices."""
    if isinstance(dataset, Mixture):
        for name, own in dataset.sources.items():
            yield from _find_subsets(own, f"{place}/{name}")
    elif isinstance(dataset, (ConcatDataset, StackDataset)) and _has_parts(dataset):
        parts = dataset.datasets
        named = parts if isinstance(parts, dict) else dict(enumerate(parts))
        for key, part in named.items():
            yield from _find_subsets(part, f"{place}/{key}")
        # Where each of them begins; the last one may grow.
        starts = getattr(dataset, "cumulative_sizes", None)
        if starts is not None and any(isinstance(part, Subset) for part in named.values()):
            yield f"{place}/starts", f"{fingerprint(starts[:-1]):x}"
    elif isinstance(dataset, DocumentPacking):
        yield from _find_subsets(dataset.source, place)
    elif type(dataset).__module__ == "datasets.arrow_dataset":  # a user may have a datasets.py, too
        # What was split or shuffled keeps its indices as a table, until it is mapped or saved.
        table: Any = getattr(dataset, "_indices", None)
        if table is None:
            yield place, NOT_TOLD
        else:
            some = table.column(0)[:: _find_stride(len(table))]
            yield place, f"{fingerprint(some.to_pylist()):x}"
    elif _is_subset(dataset):
        if not _is_beginning(dataset):
            yield place, f"{fingerprint(_choose_indices(dataset)):x}"
            place += "/of"
        yield from _find_subsets(dataset.dataset, place)


def _has_parts(dataset: Any) -> bool:
    """Whether it has what it is made of: a derived class may open it late, say."""
    return isinstance(getattr(dataset, "datasets", None), (list, tuple, dict))


def _is_subset(dataset: object) -> TypeGuard[Subset[Any]]:
    """Whether it has a sequence of indices: a derived class may do without, or keep others."""
    if not isinstance(dataset, Subset):
        return False
    try:
        indices: Any = dataset.indices
    except Exception:  # noqa: BLE001 - a property of the user's, which nothing else may ask
        return False
    has_order = hasattr(indices, "__getitem__") and not isinstance(indices, Mapping)
    return has_order and hasattr(indices, "__len__")


def _is_beginning(subset: Subset[Any]) -> bool:
    """Whether a subset is a dataset's beginning: with their number, that names its examples.

    The dataset itself, that is, or what it was before it grew.
    """
    count = len(subset.indices)
    return _choose_indices(subset) == [*range(0, count, _find_stride(count))]


def _find_stride(count: int) -> int:
    """How far apart those are that are looked at, of so many indices."""
    return -(-count // _MOST_HASHED) or 1


def _choose_indices(subset: Subset[Any]) -> list[Any]:
    """Some of them as integers, or as they are: a dataset may be asked by names."""
    count = len(subset.indices)
    chosen = [subset.indices[place] for place in range(0, count, _find_stride(count))]
    with suppress(TypeError):
        return list(map(operator.index, chosen))
    return [str(key) if isinstance(key, (np.ndarray, torch.Tensor)) else key for key in chosen]
