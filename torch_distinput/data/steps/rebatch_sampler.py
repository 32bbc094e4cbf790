"""Global batches of indices in, this worker's index lists out: a building block for DataLoaders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Literal

from torch.utils.data import Sampler

from torch_distinput.errors import ConfigurationError
from torch_distinput.options import Rebatch, parse_enum
from torch_distinput.plan.assignment.batching import Splitter
from torch_distinput.plan.assignment.topology import Topology


class RebatchSampler(Sampler[list[list[int]]]):
    """Cuts the index lists of a batch sampler for the replicas of one worker.

    A building block for plain DataLoaders; ``Strategy.distribute_dataset`` does all of this. Every
    worker iterates the same global batches and keeps its own pieces: no index is lost or repeated.

    Yields, per step, a list of ``replicas_per_worker`` index lists, in replica order; a list may be
    empty (see :func:`collate` for a collate function that accepts that). TensorFlow does the same
    in its rebatching rewrite of ``experimental_distribute_dataset``.

    A DataLoader's ``batch_sampler`` is one list a step: with one replica, the only one of each.

    >>> from torch.utils.data import DataLoader
    >>> from torch_distinput import Topology
    >>> steps = RebatchSampler([[0, 1, 2, 3], [4, 5]], Topology(num_workers=3, worker_index=1))
    >>> list(steps)
    [[[2, 3]], [[5]]]
    >>> class Mine(Sampler):
    ...     def __iter__(self):
    ...         return (lists[0] for lists in steps)
    >>> [batch.tolist() for batch in DataLoader(range(10, 16), batch_sampler=Mine())]
    [[12, 13], [15]]

    Args:
        batch_sampler: yields the index lists of global batches, in the same order on all workers.
        topology: the cluster, and which worker this is: ``Strategy.topology``.
        rebatch: ``"split"``, ``"even"`` or ``"cycle"``, as in :class:`InputOptions`. ``"cycle"``
            needs ``batch_sampler.batch_size``.
    """

    def __init__(
        self,
        batch_sampler: Iterable[Sequence[int]],
        topology: Topology,
        rebatch: Literal["split", "even", "cycle"] = "split",
    ) -> None:
        """See the class."""
        self._batch_sampler = batch_sampler
        rule = parse_enum(Rebatch, rebatch, "rebatch")
        size = getattr(batch_sampler, "batch_size", None)
        if rule is Rebatch.CYCLE and size is None:
            msg = (
                'rebatch="cycle" needs the size of a full batch, got a batch sampler without '
                'batch_size. Use "split" or "even".'
            )
            raise ConfigurationError(msg)
        self._splitter = Splitter(
            topology=topology, rebatch=rule, global_batch_size=size, shared=True
        )

    def __iter__(self) -> Iterator[list[list[int]]]:
        """Yield this worker's index lists of each step."""
        for batch in self._batch_sampler:
            indices = list(batch)
            self._check_size(len(indices))
            for cut in self._splitter.cut(len(indices)):
                mine = iter(indices[cut.start :])
                yield [list(islice(mine, size)) for size in cut.sizes]

    def _check_size(self, count: int) -> None:
        full = self._splitter.global_batch_size
        if self._splitter.rebatch is Rebatch.CYCLE and isinstance(full, int) and count > full:
            msg = (
                f'rebatch="cycle" expected at most batch_sampler.batch_size = {full} indices in a '
                f'batch, got {count}. Use "split" or "even".'
            )
            raise ValueError(msg)

    def __len__(self) -> int:
        """The number of steps, where the batch sampler knows it."""
        return len(self._batch_sampler)  # type: ignore[arg-type]
