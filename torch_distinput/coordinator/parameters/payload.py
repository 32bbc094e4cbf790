"""Tensors on their way between a client and a server, and gradients cut at the servers' rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
import torch

from torch_distinput.coordinator.parameters.placement import ParameterShard
from torch_distinput.data.batch.serialized import deserialize, serialize


@dataclass(frozen=True, kw_only=True, slots=True)
class SomeRows:
    """Some rows of a shard.

    Attributes:
        indices: which, counted from the shard's first: ascending, each once. (rows,)
        values: what they are, or their gradients. (rows, ...)
    """

    indices: torch.Tensor
    values: torch.Tensor


_LITTLE = 1 << 16
"""Bytes that are kept however little is needed."""

Update: TypeAlias = "torch.Tensor | SomeRows"
"""All values of a shard, or some of its rows."""


Packed: TypeAlias = np.ndarray[Any, Any]
"""A value as a vector of bytes."""


@final
class Packer:
    """Packs values, one at a time, into memory that it uses again when nobody else does.

    Memory that is new to the process costs more than what is written into it. A packed value that
    somebody still has, or a tensor of it, keeps its memory: the next one gets other.
    """

    def __init__(self) -> None:
        self._new_memory(0)

    def pack(self, value: Any) -> Packed:
        """Return a value as one vector of bytes, which pickle sends without a copy."""
        return serialize(value, self._allocate).numpy()

    def _allocate(self, num_bytes: int) -> torch.Tensor:
        is_used = sys.getrefcount(self._memory) != self._num_own_references
        if is_used or not num_bytes <= len(self._memory) <= 2 * num_bytes + _LITTLE:
            self._new_memory(max(num_bytes, _LITTLE))
        return torch.from_numpy(self._memory[:num_bytes])

    def _new_memory(self, num_bytes: int) -> None:
        self._memory = np.empty(num_bytes, dtype=np.uint8)
        self._num_own_references = sys.getrefcount(self._memory)


def unpack_tensors(packed: Packed) -> Any:
    """Return the value; its tensors may be written to, and share memory with nothing else."""
    if not packed.flags.writeable:  # as those that Ray reads from its shared memory
        packed = packed.copy()
    return deserialize(torch.from_numpy(packed))


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
