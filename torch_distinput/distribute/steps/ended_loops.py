"""Where loops over datasets have ended: what is added up of their steps is of the same ones.

Where lengths are known nobody asks the others during an epoch. A rank that leaves its loop alone
would only add up less than they do, so what is combined afterwards goes with where it left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import get_ident
from typing import TYPE_CHECKING

from torch_distinput.cluster.handshake import NOT_KNOWN
from torch_distinput.errors import MismatchError

if TYPE_CHECKING:
    from torch_distinput.engine.epoch_record import EpochRecord

LeftAt = tuple[int, "int | str"]
"""An epoch, and how many of its steps had been delivered."""


class EndedLoops:
    """The last loop over each dataset, from its end until all workers have told of it.

    One thread adds up, and tells of its own loops. A thread that reads ahead of it ends at another
    step on each worker; what it reads is not used there.
    """

    def __init__(self) -> None:
        """None has ended."""
        self._ended: dict[int, tuple[LeftAt, int | None]] = {}

    def add(self, record: EpochRecord) -> None:
        """Note that the loop over what was delivered has ended, however it did."""
        place = record.before.epoch, record.steps_to_compare
        self._ended[record.dataset] = place, record.thread

    def forget(self, dataset: int) -> None:
        """Another beginning was chosen, wherever the loop has ended."""
        self._ended.pop(dataset, None)

    def told(self) -> dict[int, LeftAt]:
        """What this worker tells the others, by number of the dataset."""
        here, ended = (None, get_ident()), list(self._ended.items())
        return {dataset: place for dataset, (place, thread) in ended if thread in here}

    def compare(self, told: Sequence[Mapping[int, LeftAt]]) -> None:
        """Raise MismatchError if a loop has ended at different steps; all workers have told."""
        for dataset in told[0]:
            if not all(dataset in places for places in told):
                continue  # still open somewhere
            places = {worker: told[worker][dataset] for worker in range(len(told))}
            known = {worker: at for worker, at in places.items() if at[1] != NOT_KNOWN}
            first = next(iter(known), 0)
            odd = [worker for worker, place in known.items() if place != known[first]]
            if odd:
                raise _make_error(dataset, known, first, odd[0])
            self.forget(dataset)


def _make_error(
    dataset: int, places: Mapping[int, LeftAt], first: int, odd: int
) -> MismatchError:
    expected, got = ("{1} steps of epoch {0}".format(*places[worker]) for worker in (first, odd))
    msg = (
        f"Expected all workers to have left the loop over dataset {dataset} at the same step "
        f"before their values are combined, got {expected} on worker {first} and {got} on worker "
        f"{odd}. Did one rank leave its loop alone? Leave a loop on all ranks at the same step."
    )
    return MismatchError(msg)
