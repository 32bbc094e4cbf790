"""The value that leaves the data room: one step of this worker, in host memory."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

from torch_distinput.data import rows
from torch_distinput.data.stream import Ids
from torch_distinput.data.structure import Batch

Part = tuple[Batch, Ids]
"""A replica batch and the names of its rows, ``(rows,)`` or ``(rows, k)``: one tree."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalStep:
    """The replica batches of this worker's replicas in one step.

    Attributes:
        parts: for each local replica its batch with ids; None where it has no rows.
        sizes: rows of each local replica.
        mark: fingerprint of the whole global batch where all workers must have read it alike;
            0 where they need not, or it was not taken.
    """

    parts: tuple[Part | None, ...]
    sizes: tuple[int, ...]
    mark: int = 0

    @property
    def count(self) -> int:
        """Examples of this worker in the step."""
        return sum(self.sizes)

    @property
    def num_bytes(self) -> int:
        """Bytes of the batches in host memory."""
        return sum(rows.num_bytes(part) for part in self.parts if part is not None)


def cut_step(part: Part, sizes: tuple[int, ...], *, mark: int = 0) -> LocalStep:
    """Cut a batch, whose rows belong to the local replicas in order, into views for each."""
    if len(sizes) == 1:
        return LocalStep(parts=(part if sizes[0] else None,), sizes=sizes, mark=mark)
    bounds = list(accumulate(sizes, initial=0))
    parts = tuple(
        rows.slice_rows(part, start, stop) if stop > start else None
        for start, stop in pairwise(bounds)
    )
    return LocalStep(parts=parts, sizes=sizes, mark=mark)


def empty_step(num_replicas: int, *, mark: int = 0) -> LocalStep:
    """Return a step in which this worker's replicas have no rows."""
    return LocalStep(parts=(None,) * num_replicas, sizes=(0,) * num_replicas, mark=mark)
