"""Strings into a number of bins, by FarmHash, or by SipHash where a salt keys it; as in Keras."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_distinput.preprocessing.strings.hashes.farmhash import fingerprint64
from torch_distinput.preprocessing.strings.hashes.siphash import siphash24
from torch_distinput.preprocessing.strings.hashes.words import choose_bucket


def parse_salt(salt: int | Sequence[int] | None) -> list[int] | None:
    """Return the two keys of a salt, which may be one integer.

    Raises:
        ValueError: for anything else.
    """
    if salt is None:
        return None
    keys = [salt, salt] if isinstance(salt, int) else salt
    if isinstance(keys, (tuple, list)) and len(keys) == 2 and all(type(k) is int for k in keys):
        return list(keys)
    msg = f"Expected salt to be an integer or two of them, got {salt!r}."
    raise ValueError(msg)


def choose_slots(
    data: torch.Tensor, lengths: torch.Tensor, num_bins: int, salt: Sequence[int] | None
) -> torch.Tensor:
    """Return the bin of each string, int64 ``(rows,)`` in ``0..num_bins-1``.

    Args:
        data: uint8 ``(rows, bytes)``, zero behind each string.
        lengths: int64 ``(rows,)``; a string that is not there goes where the empty one does.
        num_bins: how many bins there are.
        salt: two keys for SipHash; None for FarmHash.
    """
    lengths = lengths.clamp_min(0)
    if salt is None:
        return choose_bucket(fingerprint64(data, lengths), num_bins)
    return choose_bucket(siphash24(data, lengths, (salt[0], salt[1])), num_bins)
