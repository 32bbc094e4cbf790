"""The ranks that get the same data as this one: they differ only in dimensions of no data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from torch_distinput.cluster.store_meeting import StoreMeeting


@dataclass(frozen=True, kw_only=True, slots=True)
class Partners:
    """Ranks that share data, and all ranks of the mesh.

    Everybody plays the same steps, so everybody's signs of life are heard, and all stop at one. On
    a 2 x 2 mesh ("dp", "tp") of ranks [[0, 1], [2, 3]] rank 3 has

        workers    1, 3          number 0, 1 among everyone: its own row comes first,
        others     0, 2          number 2, 3                 so that workers are who they were
        partners   2, 3          of whom rank 2, the first, reads if the steps are broadcast

    Attributes:
        meeting: where the partners meet; the first of them reads.
        everyone: all ranks of the mesh that belong to this one, its workers first.
        ends: where they meet at the end of an epoch, in the order of ranks.
        broadcasts: whether one of the partners reads for all of them.
    """

    meeting: StoreMeeting
    everyone: StoreMeeting
    ends: StoreMeeting
    broadcasts: bool

    @property
    def is_reader(self) -> bool:
        """Whether this rank reads the data itself."""
        return not self.broadcasts or self.meeting.rank == 0

    @property
    def names(self) -> tuple[str, ...]:
        """What everyone is called in messages: a worker of this strategy's, or a rank beside."""
        ranks, num_workers = self.everyone.ranks, self.everyone.size // self.meeting.size
        workers = (f"worker {worker}" for worker in range(num_workers))
        return (*workers, *(f"rank {rank}" for rank in ranks[num_workers:]))

    @property
    def numbers(self) -> tuple[int, ...]:
        """The partners' numbers among everyone."""
        return tuple(map(self.everyone.ranks.index, self.meeting.ranks))


def find_partners(rows: torch.Tensor, own: int, *, broadcasts: bool) -> Partners | None:
    """The partners of the rank ``own``; None if it has none.

    ``rows``: the ranks of the mesh, ``(others, data)``: a column shares data.
    """
    if len(rows) == 1:
        return None
    (row,), (column,) = (found.tolist() for found in torch.nonzero(rows == own, as_tuple=True))
    first: Sequence[int] = rows[row].tolist()
    others = [rank for other, ranks in enumerate(rows.tolist()) if other != row for rank in ranks]
    return Partners(
        meeting=StoreMeeting(rows[:, column].tolist(), what="partners"),
        everyone=StoreMeeting([*first, *others], what="mesh"),
        ends=StoreMeeting(sorted([*first, *others]), what="ends"),
        broadcasts=broadcasts,
    )
