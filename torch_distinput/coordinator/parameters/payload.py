"""Tensors on their way between a client and a server, and gradients cut at the servers' rows."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
import torch

from torch_distinput.coordinator.parameters.placement import ParameterShard
from torch_distinput.data.batch.serialized import split_buffers


@dataclass(frozen=True, kw_only=True, slots=True)
class SomeRows:
    """Some rows of a shard.

    Attributes:
        indices: which, counted from the shard's first: ascending, each once. (rows,)
        values: what they are, or their gradients. (rows, ...)
    """

    indices: torch.Tensor
    values: torch.Tensor


Update: TypeAlias = "torch.Tensor | SomeRows"
"""All values of a shard, or some of its rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed:
    """A value on its way: a pickle, and beside it the contents of its tensors, where they are.

    Attributes:
        text: the pickle.
        arrays: vectors of bytes.
    """

    text: bytes
    arrays: tuple[np.ndarray[Any, Any], ...]


def pack_tensors(value: Any) -> Packed:
    """Pack a value, with whose dense tensors on the CPU it shares memory until it is sent."""
    text, buffers = split_buffers(value)
    arrays = tuple(np.frombuffer(buffer.raw(), dtype=np.uint8) for buffer in buffers)
    return Packed(text=text, arrays=arrays)


def unpack_tensors(packed: Packed) -> Any:
    """Return the value, whose tensors share memory with nothing else, and may be written to."""
    own = [array if array.flags.writeable else array.copy() for array in packed.arrays]
    return pickle.loads(packed.text, buffers=own)  # noqa: S301 - from our own processes


def read_tensors(packed: Packed) -> Any:
    """Return the value, whose tensors are only to be read: they may lie in shared memory.

    Each keeps all the memory of its message, so what is to stay is copied.
    """
    readable = [_as_torch_takes_it(array) for array in packed.arrays]
    return pickle.loads(packed.text, buffers=readable)  # noqa: S301 - from our own processes


def _as_torch_takes_it(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same memory, which torch takes without a warning that it could be written to."""
    return array if array.flags.writeable else np.asarray(_Unmarked(array))


@final
class _Unmarked:
    """Stands for a read-only array, which it keeps, where one without that mark is asked for."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}


def cut_gradient(
    gradient: torch.Tensor, shards: Sequence[tuple[int, ParameterShard]]
) -> Iterator[tuple[int, Update]]:
    """Cut a parameter's gradient into those of its shards, which are given with their indices."""
    if gradient.is_sparse and gradient.sparse_dim() != 1:
        gradient = gradient.to_dense()
    if not gradient.is_sparse:
        yield from ((index, shard.cut(gradient)) for index, shard in shards)
        return
    gradient = gradient.coalesce()
    indices, values = gradient.indices()[0], gradient.values()
    for index, shard in shards:
        bounds = torch.tensor([shard.start, shard.stop], device=indices.device)
        first, last = torch.searchsorted(indices, bounds).tolist()
        rows = SomeRows(indices=indices[first:last] - shard.start, values=values[first:last])
        yield index, rows


def as_sparse(rows: SomeRows, shape: torch.Size) -> torch.Tensor:
    """Rows as a sparse tensor, coalesced."""
    return torch.sparse_coo_tensor(
        rows.indices[None], rows.values, shape, is_coalesced=True, check_invariants=False
    )
