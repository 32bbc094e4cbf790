"""The value that leaves the data room: one step of this worker, in host memory."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

from torch_distinput.data import rows
from torch_distinput.data.stream import Ids
from torch_distinput.data.structure import Batch


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalStep:
    """The replica batches of this worker's replicas in one step.

    Attributes:
        batches: for each local replica its batch; None where it has no rows.
        sizes: rows of each local replica.
        ids: for each local replica the names of its rows, shape ``(rows,)`` or ``(rows, k)``;
            None where there are none.
        mark: fingerprint of the whole global batch where all workers must have read it alike;
            0 where they need not, or it was not taken.
    """

    batches: tuple[Batch | None, ...]
    sizes: tuple[int, ...]
    ids: tuple[Ids, ...] | None = None
    mark: int = 0

    @property
    def count(self) -> int:
        """Examples of this worker in the step."""
        return sum(self.sizes)

    @property
    def num_bytes(self) -> int:
        """Bytes of the batches in host memory."""
        return sum(rows.num_bytes(batch) for batch in self.batches if batch is not None)


def cut_step(
    batch: Batch | None, sizes: tuple[int, ...], *, ids: Ids | None = None, mark: int = 0
) -> LocalStep:
    """Cut a batch, whose rows belong to the local replicas in order, into views for each."""
    bounds = list(accumulate(sizes, initial=0))
    spans = list(pairwise(bounds))
    return LocalStep(
        batches=tuple(
            rows.slice_rows(batch, start, stop) if stop > start else None for start, stop in spans
        ),
        sizes=sizes,
        ids=None if ids is None else tuple(ids[start:stop] for start, stop in spans),
        mark=mark,
    )


def empty_step(num_replicas: int, *, mark: int = 0) -> LocalStep:
    """Return a step in which this worker's replicas have no rows."""
    return LocalStep(batches=(None,) * num_replicas, sizes=(0,) * num_replicas, mark=mark)
