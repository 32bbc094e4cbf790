"""Where the workers of one dataset meet: its channel, kept from epoch to epoch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from torch_distinput.cluster.liveness.heartbeat import Heartbeat
from torch_distinput.cluster.liveness.status import Activity
from torch_distinput.cluster.liveness.wait_limit import WaitLimit
from torch_distinput.communicator import Channel, Communicator, Gone, check_company, named_workers
from torch_distinput.errors import PeerFailedError, PeerTimeoutError
from torch_distinput.plan.progress.tally import NOTHING_TALLIED, TallySize

if TYPE_CHECKING:
    from torch_distinput.cluster.agreement.agreement import Agreement
    from torch_distinput.cluster.agreement.voted_steps import NoteVote, S
    from torch_distinput.plan.progress.delivered import DeliveryCounter


_SLICE_SECONDS = 0.2
"""Time between two questions who is gone."""


class AgreementChannel:
    """Owns a channel and makes sure that one agreement at a time uses it."""

    def __init__(self, communicator: Communicator, heartbeat: Heartbeat) -> None:
        """Open nothing yet."""
        self._heartbeat = heartbeat
        self._communicator = communicator
        self._channel: Channel | None = None
        self._last: Agreement[Any] | None = None
        self._has_missed_one = False

    def start(
        self,
        steps: Iterator[S],
        *,
        shared: bool,
        introduce: Callable[[S], Any],
        counter: DeliveryCounter,
        timeout: float,
        tallied: TallySize = NOTHING_TALLIED,
        note_vote: NoteVote[S] = None,
    ) -> Agreement[S]:
        """Start an agreement; the one before has been closed on all workers, so it leaves now."""
        before = self._heartbeat.outside
        try:
            self._wait_for_last(timeout)
        except BaseException:
            self._has_missed_one = True
            raise
        # Imported here, because where lengths are known nobody has to agree.
        from torch_distinput.cluster.agreement.agreement import Agreement  # noqa: PLC0415

        if self._channel is None:
            self._channel = self._connect(timeout)
        self._heartbeat.outside = before  # nothing is waited for any more
        self._last = Agreement(
            steps,
            self._channel,
            shared=shared,
            introduce=introduce,
            counter=counter,
            tallied=tallied,
            note_vote=note_vote,
        )
        return self._last

    def _connect(self, timeout: float) -> Channel:
        peers = self._heartbeat.peers
        self._heartbeat.outside = Activity(
            "waiting for the others to", "begin voting", None, time.monotonic(), timeout
        )
        try:
            gone = partial(peers.gone, timeout)
            return self._communicator.open_channel(timeout=timeout, gone=gone)
        except PeerTimeoutError as error:
            if not error.workers:  # it is the store that does not answer
                raise
            who = named_workers(error.workers, peers.names)
            msg = (
                f"Expected all workers to begin voting within {timeout:g} s, but {who} did not "
                f"come ({peers.describe(error.workers)}). Bound the waits of its source, or raise "
                "InputOptions.timeout if it takes that long to start."
            )
            raise PeerTimeoutError(msg, error.workers) from error

    def _wait_for_last(self, timeout: float) -> None:
        """Wait until the agreement before has ended here, and in a way that allows another.

        Else the others may be in a vote still: they would take the next message for it.
        """
        if self._has_missed_one:
            msg = (
                "Expected to go on voting where the previous epoch ended, but this worker could "
                "not begin that one, in which others may have voted. Restart the job."
            )
            raise PeerFailedError(msg)
        peers = self._heartbeat.peers
        here = self._heartbeat.outside = Activity(
            "waiting for the end of", "the epoch before", None, time.monotonic(), timeout
        )
        gone = partial(peers.gone, timeout)
        if self._last is not None and not _has_left(self._last, timeout, gone, peers.names):
            late = tuple(w for w in peers.late(here) if w < self._communicator.size)
            why = (
                "this worker's source has not returned from reading a step. Bound its waits"
                if self._last.is_reading
                else f"another worker is still in it ({peers.describe(late)}). Every "
                "worker must leave the loop at one step"
            )
            msg = f"Expected the previous epoch to end within {timeout:g} s, but {why}."
            raise PeerTimeoutError(msg, () if self._last.is_reading else late)
        if self._last is not None and (error := self._last.breach) is not None:
            msg = (
                "Expected to go on voting where the previous epoch ended, but there this worker "
                f"broke off in the middle of a vote ({type(error).__name__}: {error}). Restart "
                "the job."
            )
            raise PeerFailedError(msg) from error


def _has_left(
    last: Agreement[Any], timeout: float, gone: Gone, names: Sequence[str] | None
) -> bool:
    """Wait for the threads of an agreement, as long as the other workers are there."""
    wait_limit = WaitLimit(timeout)
    while not last.join(min(_SLICE_SECONDS, timeout)):
        if wait_limit.is_over:
            return False
        if not last.is_reading:
            check_company("the end of the epoch before", gone(), names)
    return True
