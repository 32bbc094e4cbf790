"""What adapting asks of a layer, and of the state that the layer counts in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

if TYPE_CHECKING:
    from typing_extensions import Self


class LayerState(Protocol):
    """What a layer counts: mergeable, and canonical.

    The arrays and what is finished from them are functions of the multiset of examples: neither
    batches, order, ranks nor the tree of merges can change one bit.
    """

    def merge(self, other: Self) -> None:
        """Add what another state has counted."""

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The state as arrays, for a file."""

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Undo :meth:`to_arrays`."""


class Analyzer(Protocol):
    """From what was counted to what a layer takes over; a value, without a layer."""

    def new_state(self) -> LayerState:
        """Return an empty state."""

    def finish(self, state: Any) -> Any | None:
        """Return what the layer adopts; None if nothing was counted that it could learn from.

        Raises:
            ValueError: for what no layer can adopt.
        """


class TokenAnalyzer(Analyzer, Protocol):
    """One whose states are counts of tokens, of which a worker may hold a part."""

    def trim(self, state: Any) -> Any:
        """Leave out what cannot matter, of a state that has all there is of what it holds."""


class Configured(Protocol):
    """What must be made alike on all workers."""

    def config_fingerprint(self) -> str:
        """Tell what it counts from what others do."""


class Adaptive(Configured, Protocol):
    """A layer that adapts."""

    analyzer: Analyzer
    is_given: bool

    def describe(self) -> str:
        """Name the layer in a message."""

    def check_may_adapt(self) -> None:
        """Refuse to adapt where the state was given."""

    def count(self, state: Any, column: Any) -> None:
        """Add the rows of a column, in host memory, to a state; zero rows add nothing."""

    def adopt(self, found: Any) -> None:
        """Make what the analyzer has found the layer's own; cannot fail."""
