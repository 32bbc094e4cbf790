"""Which server holds which rows of which parameter.

emb.weight (10, 4)   rows 0-4    server 0      an embedding: rows over all servers
rows 4-7    server 1
rows 7-10   server 2
fc.weight  (4, 4)    whole       server 1      the largest first, where the fewest bytes are
fc.bias    (4,)      whole       server 2
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import TypeAlias

import torch

from torch_distinput.errors import ConfigurationError

Partitioner: TypeAlias = Callable[[str, tuple[int, ...], torch.dtype, int], int]
"""``partitioner(name, shape, dtype, num_servers)``: into how many runs of rows to cut it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParameterSpec:
    """A parameter as its placement sees it."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    is_embedding: bool
    requires_grad: bool

    @property
    def num_rows(self) -> int:
        """Its length in the first dimension; a number is one row."""
        return self.shape[0] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return prod(self.shape[1:]) * self.dtype.itemsize


@dataclass(frozen=True, kw_only=True, slots=True)
class ParameterShard:
    """Rows ``start`` (inclusive) to ``stop`` (exclusive) of a parameter, held by one server."""

    name: str
    start: int
    stop: int
    server: int
    is_whole: bool

    def cut(self, whole: torch.Tensor) -> torch.Tensor:
        """Its rows of a tensor that has all of them, as a view."""
        return whole if self.is_whole else whole[self.start : self.stop]


def place_parameters(
    specs: Sequence[ParameterSpec], num_servers: int, partitioner: Partitioner | None = None
) -> tuple[ParameterShard, ...]:
    """Return the shards of all parameters, in the order of ``specs`` and of rows.

    What is cut into rows comes first, then the others from the largest to the smallest. Each piece
    goes to a server that has the fewest pieces of its parameter, and of those to the one with the
    fewest bytes, the first if there are several: so no server has more bytes than another by more
    than one piece.

    Raises:
        ConfigurationError: the partitioner returned a number that is not possible.
    """
    counts = {spec.name: _count(spec, num_servers, partitioner) for spec in specs}
    order = sorted(
        specs, key=lambda spec: (counts[spec.name] == 1, -spec.num_rows * spec.row_bytes)
    )
    loads = [0] * num_servers
    placed: dict[str, list[ParameterShard]] = {}
    for spec in order:
        placed[spec.name] = _place_one(spec, counts[spec.name], loads)
    return tuple(shard for spec in specs for shard in placed[spec.name])


def _place_one(spec: ParameterSpec, count: int, loads: list[int]) -> list[ParameterShard]:
    bounds = [index * spec.num_rows // count for index in range(count + 1)]
    pieces = sorted(pairwise(bounds), key=lambda piece: piece[0] - piece[1])  # longest first
    pieces_of = [0] * len(loads)
    shards = []
    for start, stop in pieces:
        server = min(range(len(loads)), key=lambda one: (pieces_of[one], loads[one]))
        pieces_of[server] += 1
        loads[server] += (stop - start) * spec.row_bytes
        shard = ParameterShard(
            name=spec.name, start=start, stop=stop, server=server, is_whole=count == 1
        )
        shards.append(shard)
    return sorted(shards, key=lambda shard: shard.start)


def _count(spec: ParameterSpec, num_servers: int, partitioner: Partitioner | None) -> int:
    if partitioner is None:
        return max(1, min(num_servers, spec.num_rows)) if spec.is_embedding else 1
    count = partitioner(spec.name, spec.shape, spec.dtype, num_servers)
    most = max(1, spec.num_rows)
    if type(count) is not int or not 1 <= count <= most:
        msg = (
            f"Expected partitioner({spec.name!r}, {spec.shape}, {spec.dtype}, {num_servers}) to "
            f"return a number of row shards from 1 to {most}, got {count!r}. Return 1 for a "
            "parameter that is to stay whole."
        )
        raise ConfigurationError(msg)
    return count
