"""Do all workers have the same dataset? What spot checks found is compared here."""

from __future__ import annotations

from collections.abc import Sequence

from torch_distinput.communicator import named_workers
from torch_distinput.data.sources.spot_check import UNKNOWN, Prints
from torch_distinput.errors import MismatchError, refer


def find_difference(shown: Sequence[Prints]) -> tuple[int, list[int]] | None:
    """The first example that is not the same on all workers, and the workers that differ.

    Args:
        shown: for each worker the fingerprints of the same examples; nothing of one that has none.

    Returns:
        The place of the example, and the workers whose leaves differ from those of the lowest
        worker that knows them; None if there is no such example.
    """
    known = {worker: prints for worker, prints in enumerate(shown) if prints}
    for place, examples in enumerate(zip(*known.values(), strict=True)):
        for leaf in zip(*(example for example in examples if example), strict=False):
            owners = [worker for worker, example in zip(known, examples, strict=True) if example]
            told = {w: found for w, found in zip(owners, leaf, strict=True) if found != UNKNOWN}
            first = next(iter(told.values()), UNKNOWN)
            odd = [worker for worker, found in told.items() if found != first]
            if odd:
                return place, odd
    return None


def confirm(before: list[int], again: list[int]) -> list[int]:
    """What is still the same after many looks."""
    if len(before) != len(again):
        return []
    return [new if new == old else UNKNOWN for old, new in zip(before, again, strict=True)]


def refuse_other_data(shown: Sequence[Prints], index: int, name: str) -> None:
    """Refuse an example that still differs between workers, on all of them.

    Args:
        shown: for each worker its fingerprints, as those of the only example.
        index: which example it is.
        name: of the source.

    Raises:
        MismatchError: names the workers.
    """
    found = find_difference(shown)
    if found is not None:
        msg = (
            "Expected the same data on all workers, because under AutoShardPolicy.DATA each "
            f"delivers its own part of the whole, but example {index} of {name} on "
            f"{named_workers(found[1])} is not that of worker 0. Was the dataset split by rank "
            "before (a Subset, split_dataset_by_node, files of this rank's)? Then pass the "
            "whole of it. Is it made of random numbers? Then seed them alike on all ranks. Does "
            "it contain the name or number of the rank, its process or its machine? Then leave "
            "that out. For data that differs between ranks on purpose, use "
            'distribute_datasets_from_function, or auto_shard_policy="off".'
        )
        raise refer(MismatchError(msg), "docs/errors.md#the-data-differs-between-ranks")
