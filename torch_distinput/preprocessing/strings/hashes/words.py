"""Unsigned 64-bit words in int64 tensors, the words of packed bytes, and bins of words.

int64 has the bits of uint64 and wraps around like it: sums, products and left shifts need nothing.
What differs is here: constants above 2^63, the right shift and the rotation. Bytes are packed as
``data``: uint8 (rows, L), zero past the length of a row, and ``lengths``: int64 (rows,). Words are
little-endian, as on every machine that torch runs on.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

BYTES = 8
"""Bytes in a word."""
MASK_64 = (1 << 64) - 1
_LARGEST = (1 << 63) - 1


def to_signed(word: int) -> int:
    """Return the int64 that has the bits of this uint64."""
    return word - (1 << 64) if word > _LARGEST else word


def shift_right(words: Tensor, num_bits: int) -> Tensor:
    """Shift zeros in from the left, by 1 to 63 bits."""
    return (words >> num_bits) & (MASK_64 >> num_bits)


def rotate_right(words: Tensor, num_bits: int) -> Tensor:
    """Rotate to the right, by 1 to 63 bits."""
    return shift_right(words, num_bits) | (words << (64 - num_bits))


def split_words(data: Tensor) -> Tensor:
    """Return the aligned words of each row, (L // 8 + 1, rows): one zero byte at least is behind.

    A word of all rows lies in one piece, which is what the hashes work on.
    """
    num_bytes = data.shape[1]
    # Padding copies, so that the view is of aligned memory whatever slice the data is.
    padded = pad(data, (0, BYTES - num_bytes % BYTES))
    return padded.view(torch.int64).t().contiguous()


def read_last_words(words: Tensor, lengths: Tensor, count: int) -> Tensor:
    """Return the ``count`` words that end where each row ends, (count, rows).

    Those that would begin before the row are of no meaning.
    """
    begins = lengths - count * BYTES
    rows = (begins >> 3) + torch.arange(count + 1, device=words.device)[:, None]
    aligned = words.gather(0, rows.clamp(0, words.shape[0] - 1))
    num_bits = (begins & 7) << 3
    # By 0 to 56 bits, which differ from row to row. A shift by 64 would be undefined: hence two.
    lower = (aligned[:-1] >> num_bits) & (((_LARGEST >> num_bits) << 1) | 1)
    return lower | ((aligned[1:] << 1) << (63 - num_bits))


def choose_bucket(hashes: Tensor, num_bins: int) -> Tensor:
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
