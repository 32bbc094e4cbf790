"""Packed strings as leaves: what is done with their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

import numpy as np
import torch

from torch_distinput.data.batch.leaf_kind import LeafKind, Order, last_repeated, windows
from torch_distinput.packed_layout import offsets_of
from torch_distinput.packed_strings import MANY_BYTES, PackedStrings, strings_over
from torch_distinput.values import TensorSpec

_WORTH_A_COPY = 8
"""How many times the bytes of a slice the memory has that it keeps alive. Slices of one chunk that
follow each other share it; it is much larger only where most of its rows go elsewhere."""


@final
class _Packed(LeafKind):
    leaf_type = PackedStrings

    def has(self, leaf: Any) -> bool:  # noqa: ARG002
        return True

    def has_spec(self, spec: TensorSpec) -> bool:
        return isinstance(spec.dtype, type) and spec.layout is torch.jagged

    def count(self, leaf: Any) -> int:
        return len(leaf)

    def slice(self, leaf: Any, start: int, stop: int) -> Any:
        return leaf[start:stop]

    def split(self, leaf: Any, sizes: Sequence[int]) -> Sequence[Any]:
        return [leaf[window] for window in windows(tuple(sizes))]

    def take(self, leaf: Any, rows: torch.Tensor) -> Any:
        return leaf[rows]

    def pool(self, leaves: Sequence[Any]) -> Callable[[torch.Tensor], Any]:
        return _Pool(leaves).take

    def concat(self, leaves: Sequence[Any]) -> Any:
        return PackedStrings.concat(leaves)

    def iterate(self, leaf: Any) -> Iterable[Any]:
        return leaf.to_list()  # type: ignore[no-any-return]

    def empty_like(self, leaf: Any) -> Any:
        return PackedStrings(
            leaf.data.new_empty(0), leaf.offsets.new_zeros(1), dtype=leaf.dtype
        )

    def copy(self, leaf: Any) -> Any:
        return leaf.clone()

    def is_part(self, leaf: Any) -> bool:
        own = _WORTH_A_COPY * max(leaf.num_bytes(), 1)
        return bool(own < leaf.data.untyped_storage().nbytes())

    def num_bytes(self, leaf: Any) -> int:
        return int(leaf.num_bytes() + leaf.offsets.nbytes)

    def pad(self, leaf: Any, count: int, num_rows: int) -> Any:
        return self.take(leaf, last_repeated(count, num_rows))

    def spec(self, leaf: Any) -> TensorSpec:
        return TensorSpec((None,), leaf.dtype, torch.jagged)

    def outline(self, leaf: Any) -> Any:
        return PackedStrings, leaf.dtype

    def blank(self, spec: TensorSpec, num_rows: int, order: Order) -> Any:  # noqa: ARG002
        data = torch.empty(0, dtype=torch.uint8, device="cpu")
        offsets = torch.zeros(num_rows + 1, dtype=torch.int64, device="cpu")
        return PackedStrings(data, offsets, dtype=spec.dtype)


@final
class _Pool:
    """Long rows of several leaves, each copied once, from where it lies to where it is wanted."""

    def __init__(self, leaves: Sequence[PackedStrings]) -> None:
        num_bytes = sum(leaf.num_bytes() for leaf in leaves)
        is_long = num_bytes >= MANY_BYTES * sum(map(len, leaves))
        one_dtype = len({leaf.dtype for leaf in leaves}) == 1
        if not is_long or not one_dtype or len(leaves) == 1:
            leaves = [PackedStrings.concat(leaves) if len(leaves) > 1 else leaves[0]]
        self._leaves = leaves
        self._memories = [memoryview(leaf.data.numpy()) for leaf in leaves]  # type: ignore[arg-type]
        offsets = [leaf.offsets.numpy() for leaf in leaves]
        self._starts = np.concatenate([found[:-1] for found in offsets])
        self._stops = np.concatenate([found[1:] for found in offsets])
        self._numbers = np.repeat(np.arange(len(leaves)), list(map(len, leaves)))
        self._missing = None
        if any(leaf.missing is not None for leaf in leaves):
            self._missing = torch.cat([leaf.where_missing() for leaf in leaves])

    def take(self, rows: torch.Tensor) -> PackedStrings:
        if len(self._leaves) == 1:
            return self._leaves[0][rows]  # type: ignore[no-any-return]
        chosen, memories = rows.numpy(), self._memories
        numbers, starts, stops = self._numbers[chosen], self._starts[chosen], self._stops[chosen]
        spans = zip(numbers.tolist(), starts.tolist(), stops.tolist(), strict=True)
        joined = bytearray().join([memories[n][start:stop] for n, start, stop in spans])
        data = torch.from_numpy(np.frombuffer(joined, np.uint8))
        missing = [] if self._missing is None else [self._missing[rows]]
        own = [data, offsets_of(stops - starts), *missing]
        return strings_over(own, self._leaves[0].dtype)


PACKED = _Packed()
