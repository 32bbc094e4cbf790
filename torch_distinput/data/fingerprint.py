"""A number that is equal on all ranks when they read the same data, for any batch or examples."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch

from torch_distinput.data.structure import flatten_example

_PLAIN = (str, bytes, int, float, complex, bool, np.generic)


def fingerprint(data: Any) -> int:
    """Return 63 bits of a digest over structure, dtypes, shapes and values; never 0.

    Objects of other kinds count by their class only, since their text may hold an address; tensors
    whose values do not lie in one piece of memory (sparse, quantized) by dtype and shape.
    """
    digest = hashlib.blake2b(digest_size=8)
    leaves, structure = flatten_example(data)
    digest.update(repr([len(leaves), structure.kind]).encode())
    for leaf in leaves:
        for part in _parts(leaf):
            digest.update(part)
    return int.from_bytes(digest.digest(), "big") >> 1 | 1


def _parts(leaf: Any) -> list[bytes]:
    if isinstance(leaf, torch.Tensor):
        if leaf.layout is torch.jagged:
            return _parts(leaf.values()) + _parts(leaf.offsets())  # type: ignore[attr-defined]
        if leaf.layout is not torch.strided or leaf.is_nested or leaf.is_quantized or leaf.is_meta:
            sizes = [leaf.size(dim) for dim in range(0 if leaf.is_nested else leaf.ndim)]
            return [f"{leaf.layout}{leaf.dtype}{sizes}".encode()]
        dense = leaf.detach().cpu().resolve_conj().resolve_neg().contiguous()
        array = dense.view(torch.uint8).numpy() if dense.ndim and dense.numel() else None
        content = b"" if array is None else array.tobytes()
        label = f"{dense.dtype}{tuple(dense.shape)}{dense.tolist() if not dense.ndim else ''}"
        return [label.encode(), content]
    if isinstance(leaf, np.ndarray):
        content = repr(leaf.tolist()).encode() if leaf.dtype.hasobject else leaf.tobytes()
        return [f"{leaf.dtype}{leaf.shape}".encode(), content]
    return [repr(leaf).encode() if isinstance(leaf, _PLAIN) else type(leaf).__name__.encode()]
