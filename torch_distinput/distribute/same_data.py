"""Do all workers have the same dataset? What a spot check found is compared here."""

from __future__ import annotations

from collections.abc import Sequence

from torch_distinput.communicator import named_workers
from torch_distinput.data.spot_check import UNKNOWN
from torch_distinput.errors import MismatchError


def check_same_data(shown: Sequence[Sequence[int]], indices: Sequence[int], name: str) -> None:
    """Compare fingerprints of examples over the workers.

    Args:
        shown: for each worker the fingerprints of the first examples, as many as it had time for.
        indices: which examples they are.
        name: of the source.

    Raises:
        MismatchError: on all workers, if an example differs.
    """
    for index, prints in zip(indices, zip(*shown, strict=False), strict=False):
        known = {worker: found for worker, found in enumerate(prints) if found != UNKNOWN}
        first = next(iter(known), 0)
        odd = [worker for worker, found in known.items() if found != known[first]]
        if odd:
            raise MismatchError(
                "Expected the same data on all workers, because under AutoShardPolicy.DATA each "
                f"delivers its own part of the whole, but example {index} of {name} on "
                f"{named_workers(odd)} is not that of worker {first}. Was the dataset split by "
                "rank before (a Subset, split_dataset_by_node, files of this rank's)? Then pass "
                "the whole of it. Is it made of random numbers? Then seed them alike on all ranks. "
                "What each rank should play by itself goes into distribute_datasets_from_function, "
                'or auto_shard_policy="off".'
            )
