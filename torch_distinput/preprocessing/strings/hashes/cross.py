"""TensorFlow's crossing of features: FingerprintCat64, one column after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_distinput.preprocessing.strings.hashes.words import shift_right, signed

_KEY = 0xDECAFCAFFE
"""What ``tf.sparse.cross_hashed`` starts from, unless it is told otherwise."""
_MULTIPLIER = signed(0xC6A4A7935BD1E995)


def crossed(columns: Sequence[Tensor]) -> Tensor:
    """Return one hash for each row of columns of one shape, as the int64 that has its bits.

    Args:
        columns: int64 each: of strings their ``fingerprint64``, and integers as they are.
    """
    hashes = torch.full_like(columns[0], _KEY)
    for column in columns:
        hashes = _joined(hashes, column)
    return hashes


def _joined(first: Tensor, second: Tensor) -> Tensor:
    joined = first ^ _MULTIPLIER ^ (_shift_mix(second * _MULTIPLIER) * _MULTIPLIER)
    return _shift_mix(_shift_mix(joined * _MULTIPLIER) * _MULTIPLIER)


def _shift_mix(words: Tensor) -> Tensor:
    return words ^ shift_right(words, 47)
