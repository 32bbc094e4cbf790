"""Where loops over datasets have ended: what is added up of their steps is of the same ones.

Where lengths are known nobody asks the others during an epoch. A rank that leaves its loop alone
would only add up less than they do, so what is combined afterwards goes with where it left. Others
may be inside of their loops still, and combine something in each step; they say where they are.

Loops that are open on all may be anywhere, as those of iterators that somebody has looked into. But
what all combine after a step of one dataset is of that step: a rank that has passed over one alone
would give values of the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any

from torch_distinput.cluster.handshake import NOT_KNOWN, first_odd_fact
from torch_distinput.communicator import named_workers
from torch_distinput.errors import MismatchError

if TYPE_CHECKING:
    from torch_distinput.engine.epoch_record import EpochRecord

LeftAt = tuple[int, int] | str
"""An epoch, and how many of its steps had been delivered; not known after an error."""
Told = tuple[LeftAt, bool, bool]
"""Where a loop has ended, or stands; whether it is open, and has delivered the last step."""
_STEPS = "{1} steps of epoch {0}"


class EndedLoops:
    """The last loop over each dataset, from its end until all workers have told of it.

    One thread adds up, and tells of its own loops. A thread that reads ahead of it ends at another
    step on each worker; what it reads is not used there.
    """

    def __init__(self) -> None:
        """None has ended."""
        self._ended: dict[int, tuple[LeftAt, int | None]] = {}
        self._open: dict[int, EpochRecord] = {}

    def begin(self, record: EpochRecord) -> None:
        """Note that a loop begins."""
        self._open[record.dataset] = record

    def add(self, record: EpochRecord) -> None:
        """Note that the loop over what was delivered has ended, however it did."""
        self._ended[record.dataset] = _place(record), record.thread
        if self._open.get(record.dataset) is record:
            del self._open[record.dataset]

    def forget(self, dataset: int) -> None:
        """Another beginning was chosen, wherever the loop has ended."""
        self._ended.pop(dataset, None)

    def told(self, last: int | None) -> dict[int, Told]:
        """What this worker tells the others, by number of the dataset; the last one delivered."""
        here = (None, get_ident())
        # Copies: a finalizer may end a loop meanwhile.
        ended, inside = list(self._ended.items()), list(self._open.items())
        left = {
            number: (place, False, False) for number, (place, thread) in ended if thread in here
        }
        opened = {number: record for number, record in inside if record.thread in here}
        return left | {
            number: (_place(record), True, number == last) for number, record in opened.items()
        }

    def compare(self, told: Sequence[Mapping[int, Told]]) -> None:
        """Raise MismatchError if a loop has ended at different steps, or by an error of some.

        All workers have told.
        """
        common = [dataset for dataset in told[0] if all(dataset in places for places in told)]
        opens = {dataset: [places[dataset][1] for places in told] for dataset in common}
        in_step = {dataset for dataset in common if all(places[dataset][2] for places in told)}
        compared = [one for one in common if one in in_step or not all(opens[one])]
        left = [{dataset: places[dataset][0] for dataset in compared} for places in told]
        for dataset in compared:
            _refuse_failed(dataset, [places[dataset] for places in left])
        difference = first_odd_fact(left)
        if difference is not None:
            raise _make_error(*difference, is_open=difference[0] in in_step)
        for dataset in compared:
            if not any(opens[dataset]):
                self.forget(dataset)


def _place(record: EpochRecord) -> LeftAt:
    steps = record.steps_to_compare
    return steps if isinstance(steps, str) else (record.before.epoch, steps)


def _refuse_failed(dataset: int, places: Sequence[LeftAt]) -> None:
    """Refuse an error that some workers had and others did not; who had it may have caught it.

    An error of all ended their loops anywhere: they know, and what they combine is their affair.
    """
    failed = [worker for worker, place in enumerate(places) if place == NOT_KNOWN]
    sound = [worker for worker, place in enumerate(places) if place != NOT_KNOWN]
    if failed and sound:
        left_at = _STEPS.format(*places[sound[0]])
        msg = (
            f"Expected all workers to have left the loop over dataset {dataset} at the same step "
            f"before their values are combined, but it ended with an error on "
            f"{named_workers(failed)}, and after {left_at} on "
            f"{named_workers(sound)}. Let the error end the program; or catch this one on all "
            "ranks, and play the dataset again from a state that all have."
        )
        raise MismatchError(msg)


def _make_error(
    dataset: int, expected: Any, got: Any, first: int, odd: Sequence[int], *, is_open: bool
) -> MismatchError:
    what = (
        f"left the loop over dataset {dataset} at the same step before their values are combined"
    )
    cure = "Did one rank leave its loop alone? Leave a loop on all ranks at the same step."
    if is_open:
        what = f"played the same steps of dataset {dataset} when their values are combined"
        cure = (
            "Did one rank pass over a step alone, as by `continue`, or read one ahead? Do so on "
            "all ranks; or combine zeros, or zero rows, for the step on that one."
        )
    msg = (
        f"Expected all workers to have {what}, got {_STEPS.format(*expected)} on worker {first} "
        f"and {_STEPS.format(*got)} on worker {odd[0]}. {cure}"
    )
    return MismatchError(msg)
