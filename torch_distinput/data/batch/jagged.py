"""Jagged tensors: the one place where they are made, and what is known of their lengths."""

from __future__ import annotations

import logging

import torch

_torchs_log = logging.getLogger("torch.fx._symbolic_trace")


def jagged(
    values: torch.Tensor, offsets: torch.Tensor, longest: int | None = None
) -> torch.Tensor:
    """``torch.nested.nested_tensor_from_jagged``, with a ``max_seqlen``.

    It is the width that rows are padded to, as with ``torch.nested.nested_tensor``; without one
    torch would take the length of all rows together.

    Args:
        values: the rows, one after another.
        offsets: where they begin, and the end.
        longest: of the batch that the rows are from; None: that of the rows.
    """
    if longest is None:
        longest = _longest(offsets)
    before = _torchs_log.disabled
    _torchs_log.disabled = True  # torch 2.13 warns of a function of its own that will be renamed
    try:
        return torch.nested.nested_tensor_from_jagged(values, offsets, max_seqlen=longest)
    finally:
        _torchs_log.disabled = before


def longest_of(tensor: torch.Tensor) -> int:
    """The ``max_seqlen`` of a jagged tensor, which may be set higher; else its longest row."""
    found: int | None = getattr(tensor, "_maybe_max_seqlen", None)  # torch has no public name
    return _longest(tensor.offsets()) if found is None else found  # type: ignore[attr-defined]


def _longest(offsets: torch.Tensor) -> int:
    return int(offsets.diff().max()) if len(offsets) > 1 else 0
