"""Tokens in a sorted table of 64-bit hashes: lookup as tensor code, on mapped memory too.

A table refuses tokens of one hash by choosing another seed. A string that is no token is taken for
one with probability (tokens / 2**64).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from torch_distinput.preprocessing.strings.hashes.token_hash import token_hash
from torch_distinput.preprocessing.strings.packed import blocks_by_length, to_str

# What stands for the place of a string that is no token, the mask, and None.
NOT_FOUND, MASKED, ABSENT = -1, -2, -3
_MOST_BITS = 18  # of a directory: as many places as stay in the second level cache
_MOST_SEEDS = 8  # two of them meet once in 2**63 tokens squared; only texts made for it meet always


class Tokens(NamedTuple):
    """Tokens one behind the other.

    Attributes:
        text: uint8 ``(bytes,)``, UTF-8.
        ends: int64 ``(tokens,)``, where each ends.
    """

    text: torch.Tensor
    ends: torch.Tensor

    @staticmethod
    def of(tokens: Sequence[bytes]) -> Tokens:
        """Join tokens."""
        text = np.frombuffer(bytearray(b"".join(tokens)), np.uint8)
        lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
        return Tokens(torch.from_numpy(text), torch.from_numpy(np.cumsum(lengths)))

    def strings(self) -> list[str]:
        """The tokens in order."""
        content = self.text.cpu().numpy().tobytes()
        ends = self.ends.tolist()
        return [
            to_str(content[start:end]) for start, end in zip([0, *ends], ends, strict=False)
        ]

    def at(self, place: int) -> str:
        """One token."""
        start = int(self.ends[place - 1]) if place else 0
        return to_str(self.text[start : int(self.ends[place])].cpu().numpy().tobytes())


class Directory(NamedTuple):
    """Where keys of the same first bits begin among sorted keys.

    A search of all keys waits for memory and for branches that nobody can predict, at each of its
    steps. Hashes are spread evenly: after one look into this there are few steps left, and each of
    them is done for all keys that are wanted at once.

    Attributes:
        starts: int32 ``(2**bits,)``.
        num_steps: a place found is below ``start + 2**num_steps``.
    """

    starts: torch.Tensor
    num_steps: int

    def search(self, keys: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Do ``torch.searchsorted``; ``wanted`` has one dimension."""
        num_bits = self.starts.shape[0].bit_length() - 1
        first_bits = (wanted >> (64 - num_bits)) + (1 << (num_bits - 1))  # negative keys are first
        places = self.starts.index_select(0, first_bits).long()
        for step in range(self.num_steps - 1, -1, -1):
            is_below = keys.index_select(0, places + ((1 << step) - 1)) < wanted
            places = places + is_below * (1 << step)
        return places


def directory_of(keys: torch.Tensor) -> Directory | None:
    """Make the directory of sorted keys; None for a few keys that are in each other's way."""
    num_keys = keys.shape[0]
    num_bits = min(max(num_keys.bit_length(), 1), _MOST_BITS)
    half = 1 << (num_bits - 1)
    starts = torch.searchsorted(keys, torch.arange(-half, half) << (64 - num_bits))
    most = int(torch.diff(starts, append=torch.tensor([num_keys])).max())
    reach = (1 << most.bit_length()) - 1
    if reach > num_keys:
        return None
    # A search that would look behind the last key begins earlier.
    return Directory(starts.clamp_max(num_keys - reach).int(), most.bit_length())


class SortedTable(NamedTuple):
    """Keys in ascending order, and whose they are.

    Attributes:
        keys: int64 ``(tokens,)``, ascending.
        places: int64 ``(tokens,)``, the token's place in the vocabulary.
        seed: of the hash that the keys are; 0 for integers, which are their own keys.
        directory: where to begin to search, for keys that are hashes; None: in the middle.
    """

    keys: torch.Tensor
    places: torch.Tensor
    seed: int = 0
    directory: Directory | None = None

    def find(self, wanted: torch.Tensor) -> torch.Tensor:
        """Return the places of keys ``(...)``; -1 where there is none."""
        if not self.keys.shape[0]:
            return torch.full_like(wanted, NOT_FOUND)
        flat = wanted.reshape(-1)  # indexing with two dimensions is several times slower
        if self.directory is None:
            nearest = torch.searchsorted(self.keys, flat)
        else:
            nearest = self.directory.search(self.keys, flat)
        nearest = nearest.clamp_max(self.keys.shape[0] - 1)
        is_there = self.keys.index_select(0, nearest) == flat
        places = self.places.index_select(0, nearest)
        return torch.where(is_there, places, NOT_FOUND).reshape(wanted.shape)


def sorted_table(keys: torch.Tensor, seed: int = 0) -> SortedTable:
    """Sort keys, which are distinct."""
    ordered, places = keys.sort()
    return SortedTable(ordered, places, seed)


def hashed_table(tokens: Tokens) -> SortedTable:
    """Hash tokens, which are distinct, with the first seed that tells all of them apart."""
    for seed in range(_MOST_SEEDS):
        table = sorted_table(hashes(tokens, seed), seed)
        meets = table.keys[1:] == table.keys[:-1]
        if not bool(meets.any()):
            return table
    first = int(meets.nonzero()[0])
    pair = [tokens.at(int(table.places[place])) for place in (first, first + 1)]
    msg = (
        f"Expected tokens that a hash can tell apart, got {pair[0]!r:.60} and {pair[1]!r:.60}, "
        "which are made to be taken for each other. Leave one out."
    )
    raise ValueError(msg)


def hashes(tokens: Tokens, seed: int) -> torch.Tensor:
    """The hash of each token, int64 ``(tokens,)``; in blocks, whose tokens are about as long."""
    text, ends = tokens.text.numpy(), tokens.ends.numpy()
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])[: len(ends)]
    lengths = ends - starts
    out = torch.empty(len(ends), dtype=torch.int64)
    for block in blocks_by_length(lengths):
        width = int(lengths[block[-1]])
        inside = np.arange(width) < lengths[block][:, None]
        data = np.zeros((len(block), width), np.uint8)
        places = starts[block][:, None] + np.arange(width)
        data[inside] = text[places[inside]]
        hashed = token_hash(torch.from_numpy(data), torch.from_numpy(lengths[block]), seed)
        out[torch.from_numpy(block)] = hashed
    return out
