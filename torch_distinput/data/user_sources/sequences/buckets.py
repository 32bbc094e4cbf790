"""Buckets by length, as a user writes them: a source, how long its examples are, and the limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral
from typing import Any, final

from torch_distinput.errors import ConfigurationError
from torch_distinput.options import check_count
from torch_distinput.plan.assignment.bucketing import MOST_BOUNDARIES

_WINDOW = 10_000


@final
@dataclass(frozen=True, eq=False)
class Buckets:
    """A source whose examples are sorted by length; made by :func:`bucket`.

    Attributes:
        source: the user's.
        length: tells how long its examples are.
        boundaries: the longest of each bucket but the last.
        window: examples that are sorted together.
    """

    source: Any
    length: Any
    boundaries: tuple[int, ...]
    window: int

    def __repr__(self) -> str:
        """Show the buckets: the source may be large."""
        return f"bucket({type(self.source).__name__}, boundaries={self.boundaries})"


def bucket(
    source: Any, *, length: Any, boundaries: Sequence[int], window: int = _WINDOW
) -> Buckets:
    """Let examples of about one length share a global batch, so that less is padded.

    A source like any other, to be passed to ``distribute_dataset``. The order of the source is cut
    into windows. Each window is sorted by bucket and cut into global batches, and these are played
    in another order: with ``shuffle=True`` in one of seed and epoch, else each in the turn of its
    first example. A batch keeps the order of its examples, and each example comes exactly once.

    Args:
        source: a tensor, array, dataset with an index, stream, FileDataset or ``mix``.
        length: the name of a column, which holds whole numbers, or rows that each count by their
            own length; or a function of an example that returns a whole number; or, for a source
            with an index, an array with a number for each example. Of a source with an index all
            lengths are found out when it is distributed, in this process: a function is called for
            each example.
        boundaries: the longest length of each bucket but the last, increasing: ``(128, 512)`` makes
            three buckets, up to 128, up to 512, and above.
        window: examples that are sorted together, rounded up to whole global batches. A larger one
            pads less, and mixes less well. Of a stream a window is held in memory.

    Raises:
        TypeError: if a boundary is no whole number, or ``length`` is missing.
        ValueError: if there are no boundaries, or they do not increase from 1 on; or ``window`` is
            below 1.
    """
    if length is None:
        msg = (
            "bucket expects length= to be the name of a column, a function of an example or an "
            "array, got None."
        )
        raise TypeError(msg)
    return Buckets(
        source, length, _check_boundaries(boundaries), check_count("window", window, minimum=1)
    )


def _check_boundaries(boundaries: Any) -> tuple[int, ...]:
    found = boundaries.tolist() if hasattr(boundaries, "tolist") else boundaries
    if isinstance(found, (str, bytes)) or not isinstance(found, Sequence):
        msg = f"bucket expects boundaries in a sequence, such as (128, 512), got {boundaries!r}."
        raise TypeError(msg)
    if not all(isinstance(each, Integral) and not isinstance(each, bool) for each in found):
        msg = f"bucket expects whole numbers as boundaries, got {list(found)}. Round them."
        raise TypeError(msg)
    if not found or found[0] < 1 or any(two <= one for one, two in pairwise(found)):
        msg = (
            "bucket expects one boundary or more, from 1 on and increasing, got "
            f"{', '.join(map(str, found)) or 'none'}. Write the longest length of each bucket but "
            "the last, such as (128, 512)."
        )
        raise ConfigurationError(msg)
    if len(found) > MOST_BOUNDARIES:
        msg = f"bucket expects at most {MOST_BOUNDARIES} boundaries, got {len(found)}. Merge some."
        raise ConfigurationError(msg)
    return tuple(map(int, found))
