"""The value that leaves the data room: one step of this worker, in host memory."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

from torch_distinput.data import rows
from torch_distinput.data.stream import Ids
from torch_distinput.data.structure import Batch
from torch_distinput.plan.position import Bookmark

Part = tuple[Batch, Ids]
"""A replica batch and the names of its rows, ``(rows,)`` or ``(rows, k)``: one tree."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """Where a step was read; enough to read it again.

    Attributes:
        bookmark: see :class:`LocalStep`.
        reach: see :class:`LocalStep`.
    """

    bookmark: Bookmark | None = None
    reach: int = 0


NO_TRACE = Trace()


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalStep:
    """The replica batches of this worker's replicas in one step.

    Attributes:
        parts: for each local replica its batch with ids; None where it has no rows.
        sizes: rows of each local replica.
        mark: fingerprint of the whole global batch where all workers must have read it alike;
            0 where they need not, or it was not taken.
        trace: where it was read.
    """

    parts: tuple[Part | None, ...]
    sizes: tuple[int, ...]
    mark: int = 0
    trace: Trace = NO_TRACE

    @property
    def bookmark(self) -> Bookmark | None:
        """A place at or before the step from which the stream can be read again."""
        return self.trace.bookmark

    @property
    def reach(self) -> int:
        """How many of the files dealt to this worker the rows up to here are from."""
        return self.trace.reach

    @property
    def count(self) -> int:
        """Examples of this worker in the step."""
        return sum(self.sizes)

    @property
    def num_bytes(self) -> int:
        """Bytes of the batches in host memory."""
        return sum(rows.num_bytes(part) for part in self.parts if part is not None)


def cut_step(
    part: Part, sizes: tuple[int, ...], *, mark: int = 0, trace: Trace = NO_TRACE
) -> LocalStep:
    """Cut a batch, whose rows belong to the local replicas in order, into views for each."""
    if len(sizes) == 1:
        only = part if sizes[0] else None
        return LocalStep(parts=(only,), sizes=sizes, mark=mark, trace=trace)
    bounds = list(accumulate(sizes, initial=0))
    parts = tuple(
        rows.slice_rows(part, start, stop) if stop > start else None
        for start, stop in pairwise(bounds)
    )
    return LocalStep(parts=parts, sizes=sizes, mark=mark, trace=trace)


def empty_step(num_replicas: int, *, mark: int = 0, trace: Trace = NO_TRACE) -> LocalStep:
    """Return a step in which this worker's replicas have no rows."""
    return LocalStep(
        parts=(None,) * num_replicas, sizes=(0,) * num_replicas, mark=mark, trace=trace
    )
