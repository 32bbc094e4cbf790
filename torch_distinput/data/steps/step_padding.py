"""Rows of a step as long as its longest row on any worker, which is known once all have voted.

Each worker pads its own rows to the longest of them, and tells how long they are. When the workers
have agreed on the step, those with shorter rows make them as long as the longest::

    worker 0 (2, 5)    worker 1 (1, 3)    votes 5, 3    worker 1 (1, 5)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from torch_distinput.data.steps.local_step import LocalStep, ReplicaBatch

if TYPE_CHECKING:
    import torch

    from torch_distinput.data.sources.sequences.pad_collate import PadCollate


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class StepPadding:
    """Finds and fills up what a ``pad_collate`` has padded. Picklable, for loader processes.

    Attributes:
        collate: pads rows to the longest of this worker's.
    """

    collate: PadCollate

    def measure(self, part: ReplicaBatch) -> int:
        """How long the rows of a batch are; of several columns, the longest."""
        widths = (part.leaves[leaf].shape[1] for leaf in self._find(part))
        return max(widths, default=0)

    def widen_step(self, step: LocalStep, longest: int) -> LocalStep:
        """The step with rows of that length."""
        parts = (None if part is None else self.widen(part, longest) for part in step.parts)
        return step._replace(parts=tuple(parts))

    def widen(self, part: ReplicaBatch, longest: int) -> ReplicaBatch:
        """A batch with rows of that length; as it is, if they have it."""
        narrow = {
            leaf: fill
            for leaf, fill in self._find(part).items()
            if part.leaves[leaf].shape[1] < longest
        }
        if not narrow:
            return part
        leaves = list(part.leaves)
        for leaf, fill in narrow.items():
            leaves[leaf] = _fill_up(leaves[leaf], longest, fill)
        return part._replace(leaves=leaves)

    def _find(self, part: ReplicaBatch) -> dict[int, float]:
        """What is padded: the number of each such leaf, and what fills it up."""
        numbered = part.structure.build(range(len(part.leaves)))
        return {
            leaf: fill
            for leaf, fill in self.collate.list_fills(numbered)
            if getattr(part.leaves[leaf], "ndim", 0) > 1
        }


def _fill_up(rows: torch.Tensor, longest: int, fill: Any) -> torch.Tensor:
    wider = rows.new_full((len(rows), longest, *rows.shape[2:]), fill)
    wider[:, : rows.shape[1]] = rows
    return wider
