"""Does a source that is read again begin as it did?

A source without a state of its own is resumed by passing over as many examples as were played; and
so is one that has no state before its first example, until it has told of a place. Who draws
another order then loses some and repeats others. So a place in such a source holds a mark of
what it began with, and whoever starts it again from there compares:

    ["source", ["example", 0], ["mark", [8, 1234567]]]     8 items, and a fingerprint of them

So does one that has a state, but whose generator had not begun when it told it.

Random augmentation changes what is in an example, and not which example it is. So only what names
it counts, where it has something like that: text, and whole numbers in at most one dimension, such
as a label, a path, an id or tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import PurePath
from typing import Any, final

import numpy as np
import torch

from torch_distinput.data.batch.fingerprint import fingerprint
from torch_distinput.data.batch.tree import flatten
from torch_distinput.data.sources.spot_check import drop_folders
from torch_distinput.data.user_sources.states import find_mark, make_marked_place
from torch_distinput.packed_strings import PackedStrings
from torch_distinput.plan.progress.place import Start

_log = logging.getLogger(__name__)
_MOST = 8
"""Items that are looked at: labels of few classes may be alike by chance."""


@final
class Beginning:
    """The first items of a source, which are looked at as they are read."""

    def __init__(self, source: Any, start: Start, most: int = _MOST) -> None:
        """Compare with the mark in a place, if there is one; else look at so many at most."""
        self._most = most
        self._name = type(source).__name__
        self._expected = find_mark(start)
        self._prints: list[int] = []

    def watch(self, items: Iterator[Any]) -> Iterator[Any]:
        """Pass items on; behind the first ones nothing is between the source and who reads it."""
        return chain(self._look(items), items)

    def place(self, told: Start, **numbers: int) -> Start:
        """The beginning, with a mark of what was read of it; as ``told`` if that is nothing."""
        return make_marked_place(numbers, self._mark, told) if self._prints else told

    @property
    def _mark(self) -> tuple[int, int]:
        return len(self._prints), fingerprint(self._prints)

    def _look(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in islice(items, self._expected[0] if self._expected else self._most):
            self._prints.append(fingerprint(_names_of(item)))
            yield item
        if self._expected and self._mark != self._expected:
            _log.warning(
                "%s begins with other examples than when the state was saved. It had not told a "
                "state there, or had not begun when it did, so as many examples as were played are "
                "passed over: if it draws another order each time, some are lost and others come "
                "again. Let the order follow from a fixed seed and set_epoch(), give the source "
                "state_dict() and load_state_dict(), or start a new epoch without the state. If "
                "only the size of its batches has changed, or the contents of its examples, as "
                "where they are random, nothing is lost.",
                self._name,
            )


def _names_of(item: Any) -> list[Any]:
    """The leaves that name an example or batch; all of them where none does."""
    leaves, _ = flatten(item)
    names = [leaf for leaf in leaves if _is_name(leaf)] or leaves
    return [drop_folders(leaf if isinstance(leaf, list) else [leaf]) for leaf in names]


def _is_name(leaf: Any) -> bool:
    if isinstance(leaf, torch.Tensor):
        return leaf.ndim < 2 and not leaf.is_floating_point() and not leaf.is_complex()
    if isinstance(leaf, (np.ndarray, np.generic)):
        return leaf.ndim < 2 and leaf.dtype.kind not in "fc"
    first = leaf[0] if isinstance(leaf, list) and leaf else leaf
    return isinstance(first, (str, bytes, int, PurePath, PackedStrings))
