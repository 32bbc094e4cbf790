"""Host memory that is used again: a fresh batch of 38 MB costs 18 ms of page faults, a kept one 2.

A tensor that is handed out lies over an array of ours. Torch refers to that array from the storage,
and so does whatever shares it: a view, ``detach()``, ``numpy()``, a batch that is kept in a list.
When nothing is left the array's reference count is back at its base, and the memory is free. So a
user who keeps a batch never sees it change, and nobody has to say how long a batch is needed.

    thread                        writes               reads               guarded by
    any that asks for memory      _arrays              reference counts    _lock
    who drops the last tensor     a reference count                        the interpreter
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from sys import getrefcount
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from torch_distinput.threads import new_lock

Allocate = Callable[[int], torch.Tensor]
"""Makes a tensor of so many bytes in host memory."""

LARGE = 1 << 16
"""Bytes from which it pays; the allocator keeps smaller blocks by itself."""
_MOST_KEPT = 4
"""Arrays: one that the user computes with, one that is filled, and some that were read ahead."""


def pageable(num_bytes: int) -> torch.Tensor:
    """Allocate as torch does, at addresses that suit vector instructions."""
    return torch.empty(num_bytes, dtype=torch.uint8, device="cpu")


@final
class Buffers:
    """The memory of one leaf, batch after batch; it may be asked from several threads."""

    def __init__(self, allocate: Allocate = pageable) -> None:
        """Allocate nothing yet."""
        self._allocate = allocate
        self._arrays: list[NDArray[np.uint8]] = []
        self._lock = new_lock()

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor whose memory nobody else refers to, as ``torch.empty`` does."""
        count = prod(shape)
        with self._lock:
            array = self._free(count * dtype.itemsize)
            return torch.frombuffer(array, dtype=dtype, count=count).view(*shape)

    def __reduce__(self) -> Any:
        """Go to another process without the memory."""
        return Buffers, (self._allocate,)

    def _free(self, num_bytes: int) -> NDArray[np.uint8]:
        arrays, found = self._arrays, -1
        for number, array in enumerate(arrays):
            if getrefcount(array) == _UNUSED:
                if array.nbytes >= num_bytes:
                    return array
                if found < 0:
                    found = number
        # What is too small goes first, then the oldest: whoever refers to it keeps it.
        if found >= 0 or len(arrays) == _MOST_KEPT:
            del arrays[max(found, 0)]
        arrays.append(self._allocate(num_bytes).numpy())
        return arrays[-1]


def _count_unused() -> int:
    """What an array counts that only a list refers to, in this version of Python."""
    for _, array in enumerate([np.empty(0, dtype=np.uint8)]):  # as in `_free`
        return getrefcount(array)
    raise AssertionError


_UNUSED = _count_unused()
