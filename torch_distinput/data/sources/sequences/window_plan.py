"""What a windowed stream asks about a window: which rows come of its examples.

OrderPlan   the same rows in another order: bucket     they keep their ids, and are finished later
RowPlan     rows that are made of examples: pack       more or fewer than were read, with new ids
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from torch_distinput.data.stream.chunk import Ids
from torch_distinput.plan.assignment.permutation import Indices


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class WindowKey:
    """Which window it is, for what is drawn at random.

    Attributes:
        seed: the caller's.
        epoch: which epoch.
        number: of the window among those of its shard.
    """

    seed: int
    epoch: int
    number: int


class WindowPlan(ABC):
    """Decides about windows, by their examples alone. Picklable, for loader processes.

    The same examples under the same key give the same rows, on any rank and after a restart:
    places in a stream of windows count rows.
    """

    @property
    @abstractmethod
    def kind(self) -> str:
        """Names its places, in states."""

    @property
    @abstractmethod
    def recipe(self) -> Mapping[str, Any]:
        """What decides the rows: names and plain values, for states."""


class OrderPlan(WindowPlan):
    """Puts the rows of a window in an order."""

    @abstractmethod
    def order(self, examples: Sequence[Any], key: WindowKey) -> Indices:
        """Return each place of the window once, in the order in which its rows come."""


class MadeRows(ABC):
    """The rows that come of a window. They may be made when they are asked for."""

    @property
    @abstractmethod
    def ids(self) -> Ids:
        """Of all rows: int64, ``(rows,)`` or ``(rows, k)``; k is that of all windows."""

    @property
    @abstractmethod
    def digest(self) -> str:
        """Names what the examples had that decided which rows they make."""

    @abstractmethod
    def take(self, start: int, stop: int) -> Sequence[Any]:
        """The rows from ``start`` to ``stop`` as examples, not collated."""


class RowPlan(WindowPlan):
    """Makes rows of the examples of a window."""

    @abstractmethod
    def make_rows(self, examples: Sequence[Any], ids: Ids, key: WindowKey) -> MadeRows:
        """Decide about a window.

        Args:
            examples: of the window, mapped, at least one.
            ids: of each of them.
            key: which window it is.
        """

    @abstractmethod
    def count_contents(self, examples: Sequence[Any]) -> Indices:
        """``(rows, 3)``: documents, tokens, and tokens with padding of each of some rows."""

    @abstractmethod
    def collate(self, examples: list[Any]) -> Any:
        """Make a batch of some of its rows."""
