"""Batches for a process that has no example in a step, whose model must run all the same.

Many models of Transformers raise for a batch of zero rows (``mask.view(len(mask), -1)``), and DDP
waits for every process. So such a process runs the batch that it had before, and its loss is
divided by infinity: exactly 0, and so are its gradients. In the first step there was none before,
and it runs the batch of another process: one that we make up might be data that no model expects,
and a loss that is NaN is NaN also when it is divided.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, final

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, send_to_device


@final
class StandIn:
    """The last batch of this process that had rows; until there is one, that of another process.

    Make one for each run over a dataset: batches of another dataset may have other columns.
    """

    def __init__(self) -> None:
        self._last: Any = None
        self._has_begun = False

    def begin(self, batch: Any, num_rows: int, accelerator: Accelerator) -> None:
        """In the first step, on all processes: who has no rows gets the batch of one that has.

        Each step has rows on some process.
        """
        if self._has_begun:
            return
        self._has_begun = True
        device = accelerator.device
        counts = accelerator.gather(torch.tensor([num_rows], device=device)).tolist()
        if all(counts):
            return
        giver = next(process for process, own in enumerate(counts) if own)
        is_giver = giver == accelerator.process_index
        given = [send_to_device(batch, "cpu") if is_giver else None]
        broadcast_object_list(given, from_process=giver)
        if not num_rows:
            self._last = send_to_device(given[0], device)

    def fill(self, batch: Any, num_rows: int) -> Any:
        """The batch itself; one that stands in for it if it has no rows."""
        if not num_rows:
            return copy.copy(self._last)
        self._last = copy.copy(batch)  # a training_step may take columns out of its own
        return batch


@final
class FilledBatches(list[Any]):
    """The batches of an update, as Trainer iterates them.

    Attributes:
        is_stand_in: whether the one that was iterated last stands in for no examples.
    """

    def __init__(self, batches: Iterable[Any] = (), num_rows: Sequence[int] = ()) -> None:
        super().__init__(batches)
        self.is_stand_in = False
        self._num_rows = num_rows

    def __iter__(self) -> Iterator[Any]:
        for batch, own in zip(super().__iter__(), self._num_rows, strict=True):
            self.is_stand_in = own == 0
            yield batch


def without_rows(batch: Any) -> Any:
    """A batch of the same structure with no rows."""
    if isinstance(batch, Mapping):
        return {key: without_rows(value) for key, value in batch.items()}
    if isinstance(batch, tuple):
        return tuple(map(without_rows, batch))
    is_tensor = isinstance(batch, torch.Tensor)
    return batch.new_empty((0, *batch.shape[1:])) if is_tensor else batch[:0]


def ignore_labels(batch: Any) -> Any:
    """The batch with labels that Trainer does not count."""
    if not isinstance(batch, Mapping):
        return batch
    ignored = {
        name: torch.full_like(batch[name], -100)
        for name in ("labels", "shift_labels")
        if isinstance(batch.get(name), torch.Tensor)
    }
    return {**batch, **ignored}
