"""torchdata: a distributed dataset as a node, so that a pipeline of nodes goes on behind it.

    node = DistributedNode(dataset)                        # the dataset of a strategy
    loader = nodes.Loader(nodes.Prefetcher(nodes.Mapper(node, augment), 2))

Nodes that read ahead (Prefetcher, ParallelMapper, PinMemory) run the nodes before them in a thread
of theirs:

    thread                     calls of the node            guarded by
    who starts an epoch        ``reset``, ``close``         torchdata: it ends its thread first; one
                                                            that is held up in ``next`` gets an
                                                            error, since its iterator is closed
    who reads (maybe the same) ``next``, then ``get_state`` one thread at a time, by torchdata

The state is asked for by the thread that reads, right after ``next``: it is that of the step the
node gave last, and travels with it. So a state of the pipeline says what its consumer has got.
"""

from __future__ import annotations

from typing import Any

from torchdata.nodes import BaseNode

import torch_distinput as tdi


class DistributedNode(BaseNode):  # type: ignore[misc] # torchdata has no types
    """Plays a distributed dataset in a pipeline of ``torchdata.nodes``, epoch by epoch.

    Each ``reset()`` (each ``iter()`` of a ``nodes.Loader``) begins the next epoch, or goes
    on from a state. It is collective, as ``iter(dataset)`` is; all ranks get the end of data at the
    same step. The first call of ``state_dict()``, without an epoch under way, begins one, too.

    Args:
        dataset: what is played; while the node plays it, nobody else iterates it.
        with_info: yield pairs of the step and its :class:`StepInfo`. Nodes may read ahead, so that
            what the dataset has delivered last is not the step that trains: pass
            ``compute_average_loss(loss, num_examples=info.num_examples)``.
    """

    DATASET_KEY = "dataset"

    def __init__(self, dataset: tdi.DistributedDataset, *, with_info: bool = False) -> None:
        super().__init__()
        self.dataset = dataset
        self.with_info = with_info
        self._iterator: tdi.DistributedIterator | None = None

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Begin the next epoch, or go on from a state; on all ranks."""
        super().reset(initial_state)
        if initial_state is not None:
            self.dataset.load_state_dict(initial_state[self.DATASET_KEY])
        self._iterator = iter(self.dataset)

    def next(self) -> Any:
        """Return the next step."""
        iterator = self._running
        step = next(iterator)
        return (step, iterator.last_step) if self.with_info else step

    def get_state(self) -> dict[str, Any]:
        """Where the epoch stands after the step that was returned last; the same on all ranks."""
        return {self.DATASET_KEY: self._running.state_dict()}

    def close(self) -> None:
        """End the epoch that is under way; its ``next`` raises UsageError then, in any thread."""
        if self._iterator is not None:
            self._iterator.close()

    @property
    def _running(self) -> tdi.DistributedIterator:
        assert self._iterator is not None, "torchdata resets a node before it reads"
        return self._iterator
