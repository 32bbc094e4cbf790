"""Where the leaves of a result lie in a slot; most results of a source look like the one before.

Of a plain result, then, two numbers travel: that of its slot, and that of its layout. Plain are
dense tensors and arrays of numbers: one, or those in a tuple, list or dict. All else is pickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

ALIGN = 64
"""The header of a slot, and what the places in it are multiples of: a cache line."""
_MOST_LEAVES = 64
_NUMBERS = "biufc"


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Of results that look alike.

    Attributes:
        kind: the container's class; None without one.
        keys: of a dict.
        places: dtype, shape and first byte of each leaf.
        num_bytes: of the slot.
    """

    kind: type | None
    keys: tuple[str, ...]
    places: tuple[tuple[Any, tuple[int, ...], int], ...]
    num_bytes: int

    @staticmethod
    def of(result: Any, leaves: Sequence[Any]) -> Layout:
        """Lay out a plain result."""
        places, end = [], ALIGN
        for leaf in leaves:
            places.append((leaf.dtype, tuple(leaf.shape), end))
            end = align(end + leaf.nbytes)
        kind = type(result)
        return Layout(
            kind=None if kind is torch.Tensor or kind is np.ndarray else kind,
            keys=tuple(result) if kind is dict else (),
            places=tuple(places),
            num_bytes=end,
        )

    def view(self, slot: NDArray[np.uint8]) -> list[Any]:
        """The leaves in a slot."""
        return [_view(slot, *place) for place in self.places]

    def build(self, leaves: list[Any]) -> Any:
        """Put the leaves together."""
        if self.kind is tuple:
            return tuple(leaves)
        if self.kind is dict:
            return dict(zip(self.keys, leaves, strict=True))
        return leaves if self.kind is list else leaves[0]


def align(end: int) -> int:
    """The next place in a slot."""
    return -(-end // ALIGN) * ALIGN


def plain_leaves(result: Any) -> Sequence[Any] | None:
    """The leaves of a plain result; None of another. One that comes twice must stay one."""
    kind = type(result)
    leaves: Sequence[Any] = (result,)
    if kind is tuple or kind is list:
        leaves = result
    elif kind is dict:
        if not all(type(key) is str for key in result):
            return None
        leaves = tuple(result.values())
    if not 0 < len(leaves) <= _MOST_LEAVES or not all(map(_is_plain, leaves)):
        return None
    return leaves if len(set(map(id, leaves))) == len(leaves) else None


def look(result: Any, leaves: Sequence[Any]) -> tuple[Any, ...]:
    """Equal for results of one layout."""
    kind = type(result)
    keys = tuple(result) if kind is dict else ()
    return kind, keys, tuple([(leaf.dtype, leaf.shape) for leaf in leaves])


def copy_leaves(leaves: Sequence[Any], places: Sequence[Any]) -> None:
    """Write leaves into a slot."""
    for leaf, place in zip(leaves, places, strict=True):
        if type(leaf) is torch.Tensor:
            place.copy_(leaf)
        else:
            place[...] = leaf


def is_plain_tensor(tensor: torch.Tensor) -> bool:
    """Whether a tensor is its bytes, its dtype and its shape."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.is_nested
        and tensor.is_contiguous()
        and tensor.numel() > 0
        and not (tensor.requires_grad or tensor.is_quantized)
    )


def _is_plain(leaf: Any) -> bool:
    if type(leaf) is torch.Tensor:
        return is_plain_tensor(leaf)
    if type(leaf) is not np.ndarray:
        return False
    dtype = leaf.dtype
    is_numbers = dtype.kind in _NUMBERS and dtype.metadata is None
    return is_numbers and leaf.size > 0 and leaf.flags.c_contiguous


def _view(slot: NDArray[np.uint8], dtype: Any, shape: tuple[int, ...], start: int) -> Any:
    if isinstance(dtype, torch.dtype):
        count = prod(shape)
        return torch.frombuffer(slot, dtype=dtype, count=count, offset=start).view(shape)
    return np.frombuffer(slot, dtype=dtype, count=prod(shape), offset=start).reshape(shape)
