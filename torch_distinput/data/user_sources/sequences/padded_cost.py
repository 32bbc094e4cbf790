"""A cost of padded rows, as a user writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch_distinput.data.user_sources.sequences.length import Length


@final
@dataclass(frozen=True, slots=True)
class PaddedCost:
    """A cost for ``balance=`` where a replica pads its rows to the longest of them.

    Each row of a replica costs as much as the dearest of them. So rows of similar cost go to one
    replica, and one with long rows gets fewer.

    Attributes:
        cost: of an example by itself, as ``balance=`` takes it. It may be any function of the
            length that does not fall: 1,000 x length + length ** 2, say.
    """

    cost: Length
