"""Steps that several workers agree on, where lengths are not known before they are read."""

from __future__ import annotations

from typing import Any, NamedTuple, final

from torch_distinput.cluster.agreement.agreement import Agreement
from torch_distinput.cluster.agreement.voted_steps import Agreed, Ending
from torch_distinput.cluster.liveness.peer_monitor import PeerMonitor
from torch_distinput.cluster.liveness.wait_limit import WaitLimit
from torch_distinput.communicator import named_workers
from torch_distinput.data.batch.fingerprint import examine
from torch_distinput.data.batch.spec import merge_specs, name_difference, name_kinds
from torch_distinput.data.steps.local_step import LocalStep, empty_step
from torch_distinput.data.steps.step_tally import StepTally
from torch_distinput.engine.epoch_record import Origin
from torch_distinput.engine.feeds import Delivery, find_cause, locate_error, spec_of_step
from torch_distinput.engine.same_data import make_kinds_error, warn_of_copies
from torch_distinput.errors import MismatchError, PeerFailedError
from torch_distinput.plan.progress.end_of_data import Outcome
from torch_distinput.plan.progress.tally import Tally

_LEAVE_SECONDS = 1.0
_POLL_SECONDS = 0.2
"""Time between two looks at the board while a step is waited for."""


class Introduction(NamedTuple):
    """What all workers know of the first step of each.

    Attributes:
        spec: of its batch and ids.
        fingerprint: of its batches; None where they are not compared, or cannot be.
    """

    spec: Any
    fingerprint: int | None


def introduce_first(step: LocalStep, *, is_fingerprinted: bool) -> Introduction:
    """Introduce the first step of a worker that has examples."""
    number = None
    if is_fingerprinted:
        found = examine([part.batch for part in step.parts if part is not None])
        number = None if found.unchecked else found.number
    return Introduction(spec_of_step(step), number)


@final
class VotedFeed:
    """The steps that all workers agreed on."""

    def __init__(
        self,
        agreement: Agreement[LocalStep],
        monitor: PeerMonitor,
        *,
        origin: Origin,
        worker: int,
        timeout: float,
        tally: StepTally,
    ) -> None:
        """Take a running agreement; ``tally``: what is joined in it."""
        self._tally = tally
        self.origin = origin
        self._agreement = agreement
        self._compared = False
        self._monitor = monitor
        self._worker = worker
        self._timeout = timeout
        self._index = origin.position.steps  # of the step that is asked for

    def next(self, index: int) -> Delivery | None:
        """Wait for the next step, and look for failures meanwhile."""
        self._index = index
        taken = self._take(0.0)  # as a rule it is there
        if taken is None:
            taken = self._wait()
        if isinstance(taken, Agreed):
            if not self._compared:
                self._compared = True
                self._compare()
            step = taken.step if taken.tally is None else self._complete(taken.step, taken.tally)
            return Delivery(step, taken.num_examples, taken.progress)
        self._end(taken)
        return None

    def _complete(self, own: LocalStep | None, tally: Tally) -> LocalStep:
        """The step with what all have counted, also for a worker that has ended."""
        num_replicas = self.origin.position.layout.replicas_per_worker
        step = empty_step(num_replicas) if own is None else own
        return self._tally.complete(step, tally)

    def _wait(self) -> Agreed | Ending:
        wait_limit = WaitLimit(self._timeout)
        self._note_wait()
        while (taken := self._take(_POLL_SECONDS)) is None:
            self._monitor.look()
            self._check_time(wait_limit)
        return taken

    def spec(self) -> Any:
        """What the workers' first steps introduced, in worker order."""
        wait_limit = WaitLimit(self._timeout)
        self._note_wait()
        while (introduced := self._agreement.introductions(_POLL_SECONDS)) is None:
            self._monitor.look()
            self._check_time(wait_limit)
            ending = self._agreement.ending
            if ending is not None:
                self._end(ending)
        specs = [one.spec for one in introduced if one is not None]
        spec = specs[0] if specs else None
        for other in specs[1:]:
            spec = merge_specs(spec, other)
        return spec

    def close(self) -> None:
        """Leave the agreement; the others hear of it.

        Where all workers leave at one step the threads end within milliseconds; a worker that is
        late is not waited for long.
        """
        self._agreement.close()
        self._agreement.join(_LEAVE_SECONDS)

    def _compare(self) -> None:
        """Refuse first steps of different kinds; all workers have been shown all, so all refuse."""
        introduced = self._agreement.introductions(_POLL_SECONDS) or []
        known = {worker: one for worker, one in enumerate(introduced) if one is not None}
        kinds = {worker: name_kinds(one.spec[0]) for worker, one in known.items()}
        first = next(iter(kinds), 0)
        odd = [worker for worker in kinds if kinds[worker] != kinds[first]]
        if odd:
            expected, got = name_difference(kinds[first], kinds[odd[0]])
            raise make_kinds_error(first, expected, odd, got)
        warn_of_copies({worker: one.fingerprint for worker, one in known.items()}, self._worker)

    def _end(self, ending: Ending) -> None:
        """Return at the end of data; raise anything else."""
        if ending.outcome is Outcome.ENDED:
            return
        if ending.outcome is Outcome.FAILED:
            self._raise_failed(ending)
        if ending.outcome is Outcome.DIFFER:
            msg = (
                "Expected all workers to read the same stream under AutoShardPolicy.DATA, but "
                f"after step {self._index} the data of {named_workers(ending.workers)} differs "
                "from that of the others, or has ended before theirs. Shuffle by a seed that is "
                "the same on all ranks, let nothing depend on the process, or deal out files "
                "(FILE). For a stream that divides itself by rank, as litdata's does, pass "
                'InputOptions(auto_shard_policy="off").'
            )
            raise MismatchError(msg)
        if ending.error is not None:
            self._monitor.call_roll(ending.error)
        self._monitor.ask_why(ending.workers, f"a step from every worker after step {self._index}")

    def _raise_failed(self, ending: Ending) -> None:
        if ending.error is not None:
            error = ending.error
            if not ending.words:
                self._monitor.tell(error)  # the voting itself broke off here
            raise locate_error(error, self._worker, self._index) from find_cause(error)
        words = "; ".join(f"worker {w}: {ending.words[w]}" for w in ending.workers)
        msg = f"Expected step {self._index} from every worker, but a worker failed. {words}"
        raise PeerFailedError(msg)

    def _take(self, timeout: float) -> Agreed | Ending | None:
        try:
            return self._agreement.next(timeout)
        except Exception as error:  # noqa: BLE001 - torch raises the death of a loader process here
            self._agreement.fail(error)
            return None

    def _note_wait(self) -> None:
        self._monitor.waiting(self._index, is_reading=self._agreement.lacks_steps)

    def _check_time(self, wait_limit: WaitLimit) -> None:
        self._note_wait()
        if wait_limit.is_over:
            self._monitor.give_up(
                f"all workers to agree on step {self._index}",
                self._index,
                "Raise InputOptions.timeout if a source is only slow.",
            )
