"""The decimal text of integers, as packed bytes: Keras hashes an integer by its text."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

_WIDTH = 20
"""Bytes of the longest text: the sign and 19 digits of -2^63."""
_ZERO, _MINUS = b"0-"


def decimal_text(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``data``: uint8 (numbers, 20), zero past each length, and ``lengths``: int64.

    Args:
        values: int64 of any shape; the texts are in the order of its flat numbers.
    """
    flat = values.reshape(-1, 1)
    is_negative = flat < 0
    # Below zero, where -2^63 has no counterpart above.
    minus = torch.where(is_negative, flat, -flat)
    powers = torch.full((_WIDTH - 2,), 10, device=flat.device).cumprod(0).flip(0)
    quotients = torch.div(minus, powers, rounding_mode="trunc")  # by 10^18 to 10
    lengths = 1 + (quotients < 0).sum(1, keepdim=True) + is_negative
    # A digit is a difference of quotients, and the lowest bits of them are enough for it.
    lowest = torch.cat([quotients.to(torch.uint8), minus.to(torch.uint8)], 1)
    digits = pad(lowest, (2, 0))[:, :-1] * 10 - pad(lowest, (1, 0)) + _ZERO
    # The text stands at the right: bring it to the left, and zeros from behind it after it.
    columns = torch.arange(_WIDTH, dtype=torch.uint8, device=flat.device)
    sources = (columns + (_WIDTH - lengths).to(torch.uint8)).clamp(max=_WIDTH)
    data = pad(digits, (0, 1)).gather(1, sources.long())
    first = torch.where(is_negative, _MINUS, data[:, :1])
    return torch.cat([first, data[:, 1:]], 1), lengths.squeeze(1)
