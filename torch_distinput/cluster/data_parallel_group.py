"""The ranks over which data is parallel, where each knows its data-parallel rank and no more.

A trainer that splits its model as well tells its input two numbers: this process's data-parallel
rank, and how many there are. Processes of one data-parallel rank train the same examples:

    rank               0  1  2  3  4  5  6  7       two stages of a pipeline, two tensor-parallel
    data-parallel      0  0  1  1  0  0  1  1       ranks in each, two data-parallel ranks
    group              a  b  a  b  c  d  c  d       each group has every data-parallel rank once
    worker in it       0  0  1  1  0  0  1  1
"""

from __future__ import annotations

import json
import weakref

import torch.distributed as dist

from torch_distinput.cluster.process_group import ProcessGroupCommunicator
from torch_distinput.communicator import exchange
from torch_distinput.errors import ConfigurationError, UsageError
from torch_distinput.options import TIMEOUT, check_count

_formed: weakref.WeakKeyDictionary[
    dist.ProcessGroup, dict[tuple[int, int, bool], dist.ProcessGroup | None]
] = weakref.WeakKeyDictionary()
"""By default group, which ends with the job; None for the default group itself."""
_compared: weakref.WeakKeyDictionary[dist.ProcessGroup, list[list[int]]] = (
    weakref.WeakKeyDictionary()
)
"""By a group of ranks that compare what they read: all groups that were formed with it."""


def form_data_parallel_group(
    rank: int, size: int, *, compares: bool = False, timeout: float = TIMEOUT
) -> dist.ProcessGroup | None:
    """Form a process group in which this rank is number ``rank`` of ``size``.

    For ``MultiWorkerMirroredStrategy(process_group=...)``, where there is no ``DeviceMesh`` to ask.
    Ranks that pass the same ``rank`` come into different groups, and read the same data there.
    Collective over all ranks; asked again for the same numbers, it returns the same group.

    Args:
        rank: this process's data-parallel rank, from 0.
        size: how many data-parallel ranks there are, the same on all processes.
        compares: whether those of one data-parallel rank compare what they read first, and hear of
            each other's failures, as on a ``DeviceMesh``. Then each of them makes a strategy of its
            group, and plays the same datasets.
        timeout: seconds to wait for the other ranks.

    Returns:
        The group; None where ``torch.distributed`` is not initialized and ``size`` is 1.

    Raises:
        ConfigurationError: on all ranks, if not as many have each data-parallel rank.
        PeerTimeoutError: another rank did not call this.
        UsageError: without a process group, if ``size`` is more than 1.
    """
    rank, size = check_count("rank", rank, minimum=0), check_count("size", size, minimum=1)
    world = dist.group.WORLD if dist.is_available() and dist.is_initialized() else None
    if world is None:
        if size > 1:
            msg = (
                f"Expected a process group, because data is parallel over {size} ranks, but "
                "torch.distributed is not initialized. Call init_process_group first."
            )
            raise UsageError(msg)
        return None
    formed = _formed.setdefault(world, {})
    if (rank, size, compares) not in formed:
        workers = ProcessGroupCommunicator(world)
        text = json.dumps((rank, size))
        shown = exchange(workers, "data-parallel group", text, timeout=timeout)
        groups = _divide([tuple(json.loads(text)) for text in shown], size)
        group = None
        if len(groups) > 1:
            own = next(members for members in groups if dist.get_rank() in members)
            # Its ranks alone, and named after them: a number would be that of other groups too.
            group = dist.new_group(own, use_local_synchronization=True)
            if compares:
                _compared[group] = groups
        formed[rank, size, compares] = group
    return formed[rank, size, compares] or world


def find_compared(group: dist.ProcessGroup | None) -> list[list[int]] | None:
    """All groups formed with one, by their ranks; None if partners do not compare."""
    return None if group is None else _compared.get(group)


def _divide(told: list[tuple[int, int]], size: int) -> list[list[int]]:
    """The ranks of each group: the n-th has, of each data-parallel rank, the n-th that has it."""
    ranks = [
        [rank for rank, at in enumerate(told) if at == (own, size)] for own in range(size)
    ]
    counts = {len(having) for having in ranks}
    groups = [list(members) for members in zip(*ranks, strict=False)]
    is_split = len(counts) == 1 and counts == {len(told) // size} and len(told) % size == 0
    # torch numbers the ranks of a group in their order.
    if not is_split or any(members != sorted(members) for members in groups):
        msg = (
            f"Expected every data-parallel rank from 0 to {size - 1} on equally many of the "
            f"{len(told)} ranks, in ascending order, got these pairs (data-parallel rank, size) of "
            f"ranks 0, 1, ...: {told}. Pass the data-parallel rank and size of the trainer's mesh."
        )
        raise ConfigurationError(msg)
    return groups
