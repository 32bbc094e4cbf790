"""Batches for a process that has no example in a step, whose model must run all the same.

Many models of Transformers raise for a batch of zero rows (``mask.view(len(mask), -1)``), and DDP
waits for every process. So such a process runs the batch that it had before, and its loss is
divided by infinity: exactly 0, and so are its gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, final

import torch


@final
class StandIn:
    """The last batch of this process that had rows."""

    def __init__(self) -> None:
        self._last: Any = None

    def fill(self, batch: Any, num_rows: int) -> Any:
        """The batch itself; one that stands in for it if it has no rows."""
        if num_rows:
            self._last = batch
            return batch
        return _map_tensors(_one_row, batch) if self._last is None else self._last


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
    return _map_tensors(lambda tensor: tensor.new_empty((0, *tensor.shape[1:])), batch)


def _one_row(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.new_zeros((1, *tensor.shape[1:]))


def _map_tensors(change: Callable[[torch.Tensor], torch.Tensor], batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return {key: _map_tensors(change, value) for key, value in batch.items()}
    if isinstance(batch, tuple):
        return tuple(_map_tensors(change, value) for value in batch)
    return change(batch) if isinstance(batch, torch.Tensor) else batch[:0]
