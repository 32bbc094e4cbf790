"""Rows of several sources that are not finished yet, as one leaf: in order, each source by itself.

    sources    0  1  0  0  1
    parts      a0    a1 a2        rows of source 0, a batch
                  b0       b1     rows of source 1, a batch, perhaps of another structure

They are cut and passed over as they are; only what is delivered is mapped and collated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NoReturn, final

import numpy as np
import torch
from numpy.typing import NDArray

from torch_distinput.data.batch.leaf_kind import LeafKind, Order, join, windows
from torch_distinput.data.batch.tree import Batch, flatten, leaves_like, map_leaves, unflatten
from torch_distinput.values import TensorSpec


@final
class MixedRows:
    """Rows of several sources.

    No dataclass: that would be a container of leaves with different numbers of rows.

    Attributes:
        sources: the number of the source of each row, int64.
        parts: for each source its rows, in order; None without any.
    """

    __slots__ = ("parts", "sources")

    def __init__(self, sources: NDArray[np.int64], parts: tuple[Batch, ...]) -> None:
        """Take rows that belong together."""
        self.sources = sources
        self.parts = parts

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as what it consists of; fingerprints are taken of that, too."""
        return MixedRows, (self.sources, self.parts)


@final
class Mixed(LeafKind):
    """What is done with such rows: the same with the rows of each source."""

    leaf_type = MixedRows

    def __init__(self, kind_of: Callable[[Any], LeafKind]) -> None:
        """Take what tells the kinds of the leaves inside."""
        self._kind_of = kind_of

    def has(self, leaf: Any) -> bool:  # noqa: ARG002
        """Whatever is of the class."""
        return True

    def has_spec(self, spec: TensorSpec) -> bool:  # noqa: ARG002
        """None: it is never delivered."""
        return False

    def count(self, leaf: Any) -> int:
        """Rows of all sources."""
        return len(leaf.sources)

    def slice(self, leaf: Any, start: int, stop: int) -> Any:
        """Views of the rows of each source that lie in between."""
        sources = leaf.sources[start:stop]
        begins = np.bincount(leaf.sources[:start], minlength=len(leaf.parts)).tolist()
        counts = np.bincount(sources, minlength=len(leaf.parts)).tolist()
        parts = (
            map_leaves(
                lambda own: self._kind_of(own).slice(own, begin, begin + count),  # noqa: B023 - used at once
                part,
            )
            if count
            else None
            for part, begin, count in zip(leaf.parts, begins, counts, strict=True)
        )
        return MixedRows(sources, tuple(parts))

    def split(self, leaf: Any, sizes: Sequence[int]) -> Sequence[Any]:
        """Slices."""
        return [self.slice(leaf, window.start, window.stop) for window in windows(tuple(sizes))]

    def take(self, leaf: Any, rows: torch.Tensor) -> Any:
        """Rows of each source, as copies."""
        wanted = rows.numpy()
        sources, parts = leaf.sources[wanted], []
        for source, part in enumerate(leaf.parts):
            ranks = np.cumsum(leaf.sources == source) - 1
            own = torch.from_numpy(ranks[wanted[sources == source]])
            parts.append(self._take_part(part, own) if len(own) else None)
        return MixedRows(sources, tuple(parts))

    def pool(self, leaves: Sequence[Any]) -> Callable[[torch.Tensor], Any]:
        """Take rows of all leaves joined."""
        return partial(self.take, join(self, leaves))

    def concat(self, leaves: Sequence[Any]) -> Any:
        """The rows of each source one after another."""
        columns = zip(*(leaf.parts for leaf in leaves), strict=True)
        return MixedRows(
            np.concatenate([leaf.sources for leaf in leaves]), tuple(map(self._join, columns))
        )

    def iterate(self, leaf: Any) -> Iterable[Any]:
        """Never asked for: rows are finished first."""
        raise _make_unfinished_error(leaf)

    def empty_like(self, leaf: Any) -> Any:
        """No rows of any source."""
        return MixedRows(leaf.sources[:0].copy(), (None,) * len(leaf.parts))

    def copy(self, leaf: Any) -> Any:
        """The rows of each source in memory of their own."""
        parts = (
            map_leaves(lambda own: self._kind_of(own).copy(own), part) for part in leaf.parts
        )
        return MixedRows(leaf.sources.copy(), tuple(parts))

    def is_part(self, leaf: Any) -> bool:
        """Whether the rows of any source are."""
        return any(
            self._kind_of(own).is_part(own) for part in leaf.parts for own in flatten(part)[0]
        )

    def num_bytes(self, leaf: Any) -> int:
        """Those of all sources."""
        inside = (own for part in leaf.parts for own in flatten(part)[0])
        return int(leaf.sources.nbytes) + sum(self._kind_of(own).num_bytes(own) for own in inside)

    def pad(self, leaf: Any, count: int, num_rows: int) -> NoReturn:  # noqa: ARG002
        """Never asked for: rows are finished first."""
        raise _make_unfinished_error(leaf)

    def spec(self, leaf: Any) -> NoReturn:
        """Never asked for: rows are finished first."""
        raise _make_unfinished_error(leaf)

    def outline(self, leaf: Any) -> NoReturn:
        """Never asked for: rows are finished first."""
        raise _make_unfinished_error(leaf)

    def blank(self, spec: TensorSpec, num_rows: int, order: Order) -> NoReturn:  # noqa: ARG002
        """Never asked for: no spec is of this kind."""
        raise _make_unfinished_error(spec)

    def _take_part(self, part: Batch, rows: torch.Tensor) -> Batch:
        return map_leaves(lambda own: self._kind_of(own).take(own, rows), part)

    def _join(self, batches: Sequence[Batch]) -> Batch:
        """Batches of one source; None where none has rows."""
        there = [batch for batch in batches if batch is not None]
        if len(there) < 2:
            return there[0] if there else None
        structure = flatten(there[0])[1]
        flat = [leaves_like(batch, structure) for batch in there]
        if any(leaves is None for leaves in flat):
            msg = (
                "Expected batches of one structure from a source of a mixture, got several. Give "
                "all its examples the same keys and containers."
            )
            raise ValueError(msg)
        columns = zip(*(leaves or [] for leaves in flat), strict=True)
        joined = [self._kind_of(column[0]).concat(column) for column in columns]
        return unflatten(structure, joined)


def _make_unfinished_error(leaf: Any) -> TypeError:
    return TypeError(f"Expected rows that are finished, got {type(leaf).__name__}.")
