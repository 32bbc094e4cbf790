"""Jagged tensors: the one place where they are made."""

from __future__ import annotations

import logging

import torch

_torchs_log = logging.getLogger("torch.fx._symbolic_trace")


def jagged(values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """``torch.nested.nested_tensor_from_jagged``, without what torch 2.13 logs about itself.

    Its first call in a process warns that a function which it calls will be renamed.
    """
    before = _torchs_log.disabled
    _torchs_log.disabled = True
    try:
        return torch.nested.nested_tensor_from_jagged(values, offsets)
    finally:
        _torchs_log.disabled = before
