"""What every kind of leaf can do with its rows; ``leaf_kinds`` has the table of all kinds."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import torch

from torch_distinput.values import TensorSpec

Order = Sequence[int] | None
"""The dimensions of a dense tensor from the outermost in memory to the innermost."""

EXPECTED = (
    "Leaves are dense or jagged tensors, NumPy arrays, packed strings and lists, with one row per "
    "example"
)


class LeafKind(ABC):
    """What can be done with leaves of one kind, and with the specs of such leaves."""

    leaf_type: type
    """Its leaves are of this class; two kinds may share one."""

    @abstractmethod
    def has(self, leaf: Any) -> bool:
        """Whether a leaf of :attr:`leaf_type` is of this kind."""

    @abstractmethod
    def has_spec(self, spec: TensorSpec) -> bool:
        """Whether a spec is of a leaf of this kind."""

    @abstractmethod
    def count(self, leaf: Any) -> int:
        """Return the number of rows; refuse a leaf that has none to count."""

    @abstractmethod
    def slice(self, leaf: Any, start: int, stop: int) -> Any:
        """Return the rows from ``start`` to ``stop`` as a view."""

    @abstractmethod
    def split(self, leaf: Any, sizes: Sequence[int]) -> Sequence[Any]:
        """Cut the rows into views, one for each size."""

    @abstractmethod
    def take(self, leaf: Any, rows: torch.Tensor) -> Any:
        """Return the rows at indices, as a copy."""

    @abstractmethod
    def pool(self, leaves: Sequence[Any]) -> Callable[[torch.Tensor], Any]:
        """Return what takes the rows at indices of leaves, counted through all, as a copy."""

    @abstractmethod
    def concat(self, leaves: Sequence[Any]) -> Any:
        """Join leaves row after row."""

    @abstractmethod
    def iterate(self, leaf: Any) -> Iterable[Any]:
        """The rows one by one."""

    @abstractmethod
    def empty_like(self, leaf: Any) -> Any:
        """Return a leaf like this one with zero rows and storage of its own."""

    @abstractmethod
    def copy(self, leaf: Any) -> Any:
        """Return the leaf in memory of its own."""

    @abstractmethod
    def is_part(self, leaf: Any) -> bool:
        """Whether it is a view of something larger, which it keeps alive."""

    @abstractmethod
    def num_bytes(self, leaf: Any) -> int:
        """Bytes that its rows take; roughly, where they are objects."""

    @abstractmethod
    def pad(self, leaf: Any, count: int, num_rows: int) -> Any:
        """Fill up a leaf of ``count`` rows by its last one; a jagged one by rows of no length."""

    @abstractmethod
    def spec(self, leaf: Any) -> TensorSpec:
        """Return its spec; the number of rows is left open."""

    @abstractmethod
    def outline(self, leaf: Any) -> Any:
        """What tells the spec from others, at less cost than the spec."""

    @abstractmethod
    def blank(self, spec: TensorSpec, num_rows: int, order: Order) -> Any:
        """Make a leaf of zeros, empty strings or None from a spec; open sizes are 0.

        ``order``: of the dimensions in memory, where it is known.
        """


def join(kind: LeafKind, leaves: Sequence[Any]) -> Any:
    """Join leaves of a kind; a single one is taken as it is."""
    return leaves[0] if len(leaves) == 1 else kind.concat(leaves)


@lru_cache(maxsize=64)
def windows(sizes: tuple[int, ...]) -> tuple[slice, ...]:
    """Where pieces of these sizes lie, one behind the other."""
    return tuple(slice(*bounds) for bounds in pairwise(accumulate(sizes, initial=0)))


def last_repeated(
    count: int, num_rows: int, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Indices that fill up ``count`` rows by the last of them."""
    return torch.arange(num_rows, device=device).clamp_(max=count - 1)


def open_shape(spec: TensorSpec, num_rows: int) -> tuple[int, ...]:
    """The sizes of a leaf with so many rows; open ones are 0."""
    return num_rows, *(size or 0 for size in spec.shape[1:])


def make_layout_error(tensor: torch.Tensor) -> TypeError:
    """Refuse sparse and quantized tensors, and nested ones whose rows have gaps between them."""
    what = "nested " * tensor.is_nested + "quantized " * tensor.is_quantized
    msg = (
        f"{EXPECTED}; got a {what}tensor of layout {tensor.layout}. Convert it with to_dense() "
        "or dequantize(), or to a contiguous jagged tensor."
    )
    return TypeError(msg)


def is_masked(kind: type) -> bool:
    """Whether it is NumPy's array with a mask; who has one has imported its module.

    Another thread may be about to import it: then the class is not there yet.
    """
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)
    return masked is not None and issubclass(kind, masked)


def make_masked_array_error(name: str) -> TypeError:
    """Refuse an array with a mask, which would be lost."""
    msg = (
        f"Expected arrays without a mask, got a MaskedArray as {name}, whose masked values would "
        "come as data. Pass array.filled(value), and ~np.ma.getmaskarray(array) as a column of its "
        "own that says which values there are."
    )
    return TypeError(msg)
