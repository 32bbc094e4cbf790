"""Indices as one-hot, multi-hot, counted or weighted vectors: the output modes of all layers."""

from __future__ import annotations

from typing import Any, final

import torch

from torch_distinput.options import check_count
from torch_distinput.preprocessing.columns.tensors import Takes, to_floats, to_integers
from torch_distinput.preprocessing.layers.layer import Layer, check_choice

NOWHERE = -1
"""An index that counts nowhere."""
_MODES = ("one_hot", "multi_hot", "count")


def encode(
    indices: torch.Tensor,
    mode: str,
    depth: int,
    *,
    dtype: torch.dtype = torch.int64,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Encode indices; one that is not in ``0..depth-1`` counts nowhere.

    ``"one_hot"``: ``(..., depth)``, without a last dimension of 1 before it. ``"multi_hot"`` and
    ``"count"``: the last dimension is the sample, so ``(rows, n)`` gives ``(rows, depth)``, and a
    vector is one sample. (Keras 3.15 reduces dimension 1 of three.)

    Args:
        indices: int64 ``(...)``.
        mode: ``"one_hot"``, ``"multi_hot"`` or ``"count"``.
        depth: the number of places.
        dtype: of the result.
        weights: what each index counts, of the shape of ``indices``; for ``"count"``.
    """
    if indices.ndim == 0:
        indices = indices.reshape(1)
        weights = None if weights is None else weights.reshape(1)
    if mode == "one_hot":
        if indices.ndim > 1 and indices.shape[-1] == 1:
            indices = indices.squeeze(-1)
        places = torch.arange(depth, device=indices.device)
        return (indices.unsqueeze(-1) == places).to(dtype)
    outside = (indices < 0) | (indices >= depth)
    slots = torch.where(outside, depth, indices)  # one place more, which is cut off
    out = torch.zeros((*indices.shape[:-1], depth + 1), dtype=dtype, device=indices.device)
    if mode == "multi_hot":
        out = out.scatter(-1, slots, 1)
    else:
        ones = torch.ones_like(indices, dtype=dtype) if weights is None else weights.to(dtype)
        out = out.scatter_add(-1, slots, ones)
    return out[..., :depth]


@final
class CategoryEncoding(Layer):
    """Encode integers as vectors (``keras.layers.CategoryEncoding``).

    Takes integers ``(rows,)`` or ``(rows, n)``; gives float32 ``(rows, num_tokens)``, see
    :func:`encode`. An integer outside ``0..num_tokens-1`` counts nowhere.

    Args:
        num_tokens: the number of places.
        output_mode: ``"multi_hot"``, ``"one_hot"`` or ``"count"``.
    """

    takes: Takes = "any"

    def __init__(self, num_tokens: int | None = None, output_mode: str = "multi_hot") -> None:
        """See the class."""
        if num_tokens is None:
            msg = "CategoryEncoding needs num_tokens, the number of categories; got None."
            raise ValueError(msg)
        self.num_tokens = check_count("num_tokens", num_tokens, minimum=1)
        self.output_mode = check_choice("output_mode", output_mode, _MODES)
        super().__init__(num_tokens=self.num_tokens, output_mode=output_mode)

    def forward(self, inputs: Any, count_weights: Any = None) -> torch.Tensor:
        """Encode integers; ``count_weights`` says what each counts, for ``"count"``."""
        if count_weights is not None and self.output_mode != "count":
            msg = (
                f"count_weights needs output_mode='count', got {self.output_mode!r}. Leave the "
                "weights out, or use that mode."
            )
            raise ValueError(msg)
        indices = to_integers(inputs, self)
        weights = None if count_weights is None else to_floats(count_weights, self)
        if weights is not None and weights.shape != indices.shape:
            msg = (
                f"Expected count_weights of the shape of the inputs, {tuple(indices.shape)}, got "
                f"{tuple(weights.shape)}. Pass one weight for each input."
            )
            raise ValueError(msg)
        return encode(
            indices, self.output_mode, self.num_tokens, dtype=torch.float32, weights=weights
        )
