"""From the 64 bits of a hash to one of a number of bins."""

from __future__ import annotations

import torch
from torch import Tensor


def bucket(hashes: Tensor, num_bins: int) -> Tensor:
    """Return each hash, read as a uint64, modulo ``num_bins``; exact for every int64 number.

    Raises:
        ValueError: unless 1 <= num_bins < 2^63.
    """
    if not 1 <= num_bins < 1 << 63:
        msg = f"num_bins is a number from 1 to 2^63 - 1, got {num_bins}. Give the number of bins."
        raise ValueError(msg)
    remainders = hashes % num_bins  # of the int64, rounded down: 2^64 is missing where it is < 0
    missing = (1 << 64) % num_bins
    room = num_bins - missing
    # remainders + missing may pass 2^63 where it is not chosen, and nowhere else.
    added = torch.where(remainders >= room, remainders - room, remainders + missing)
    return torch.where(hashes < 0, added, remainders)
