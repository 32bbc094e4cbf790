"""Keys in a sorted table: lookup as tensor code, on mapped memory too."""

from __future__ import annotations

from typing import NamedTuple

import torch

# What stands for the place of a key that is no token, the mask, and None.
NOT_FOUND, MASKED, ABSENT = -1, -2, -3
_MOST_BITS = 20  # of a directory: 4 MiB, in every process


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
        places = self.starts.index_select(0, first_bits)
        for step in range(self.num_steps - 1, -1, -1):
            is_below = keys[(1 << step) - 1 :].index_select(0, places) < wanted
            places = places.add(is_below, alpha=1 << step)
        return places


def build_directory(keys: torch.Tensor) -> Directory | None:
    """Make the directory of sorted keys; None for a few keys that are in each other's way."""
    num_keys = keys.shape[0]
    num_bits = min(max(num_keys.bit_length(), 1), _MOST_BITS)
    half = 1 << (num_bits - 1)
    begins = torch.arange(-half, half, device=keys.device) << (64 - num_bits)
    starts = torch.searchsorted(keys, begins)
    most = int(torch.diff(starts, append=starts.new_tensor([num_keys])).max())
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


def sort_keys(keys: torch.Tensor, seed: int = 0) -> SortedTable:
    """Sort keys, which are distinct."""
    ordered, places = keys.sort()
    return SortedTable(ordered, places, seed)
