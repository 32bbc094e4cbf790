"""At the end of an epoch a worker that is ahead waits until all have delivered the last step.

Where lengths are known nobody asks the others during an epoch. Without a barrier one worker could
end it, and save a state, before another one fails; the state would claim rows that never came.

    worker 0    delivers the last step, asks for more: waits . . . . . . . . . . . the end
    worker 1    is slower . . . . . . . . delivers the last step, asks for more    the end
                                          or fails                                 an error on both

But not every worker comes: some may leave the loop behind the last step, or before it, and be about
to wait for this one somewhere else. So a worker that waits listens to the heartbeats, too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import NoReturn, final

from torch_distinput.cluster.liveness.heartbeat import Heartbeat
from torch_distinput.cluster.liveness.peer_monitor import PeerMonitor
from torch_distinput.cluster.liveness.status import Activity, Reached
from torch_distinput.cluster.liveness.wait_limit import WaitLimit
from torch_distinput.communicator import Meeting
from torch_distinput.errors import PeerFailedError, PeerTimeoutError

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.2
_NOTHING: Reached = (-1, 0)
"""How far a worker is of which nothing was heard."""


class _OverError(Exception):
    """Nobody is left to wait for."""


@final
class EpochBarrier:
    """The wait at the end of one epoch.

    Whoever waits listens: the thread of the exchange in the store, and main when that is over. They
    take turns, so nothing here needs a lock.
    """

    def __init__(
        self,
        meeting: Meeting,
        heartbeat: Heartbeat,
        monitor: PeerMonitor,
        topic: str,
        *,
        timeout: float,
    ) -> None:
        """Take the way to the other workers, and what is heard of them in this iteration."""
        self._meeting = meeting
        self._heartbeat = heartbeat
        self._peers = heartbeat.peers
        self._monitor = monitor
        self._topic = topic
        self._timeout = timeout
        self._limit = WaitLimit(timeout)  # begins anew at the first look, and when somebody moves
        self._missing: dict[int, Reached] = {}  # where those were that are waited for

    def wait(self) -> None:
        """Wait until all have come, or will not come, or do nothing any more.

        Raises:
            PeerFailedError: another worker failed in this epoch, or in that of another loop which
                is open here, or its process has ended.
            PeerTimeoutError: another worker has given no sign of life for too long.
        """
        self._monitor.check_open_loops()
        if not self._monitor.is_newest:
            return  # loops inside of each other: workers may come to their ends in other orders
        self._heartbeat.stop.unclaim()
        self._heartbeat.outside = Activity(
            "waiting for the others at the end of", self._topic, None, time.monotonic(),
            self._timeout,
        )  # fmt: skip
        with suppress(_OverError):
            try:
                self._meeting.join(
                    f"end of {self._topic}", "", "".join, timeout=self._timeout, gone=self._look
                )
            except (PeerFailedError, PeerTimeoutError):  # some will not come, or are slow
                self._listen()

    def _listen(self) -> NoReturn:
        """Wait by the heartbeats alone."""
        while True:
            self._look()
            time.sleep(_LOOK_SECONDS)

    def _look(self) -> Mapping[int, str]:
        """Raise for whoever failed, and if there is nobody to wait for."""
        self._monitor.check_open_loops()
        if self._heartbeat.is_closed or not self._monitor.is_newest:
            raise _OverError  # the process is about to end, or somebody has closed the iterator
        missing = self._find_missing()
        if not missing:
            raise _OverError
        if self._heartbeat.lost is not None:
            self._give_up("the store of the process group is gone", missing)
        self._monitor.look()
        if missing != self._missing:
            self._missing, self._limit = missing, WaitLimit(self._timeout)
        if self._limit.is_over:
            self._give_up(f"nothing has moved for {self._timeout:g} s", missing)
        return {}

    def _find_missing(self) -> dict[int, Reached]:
        """The workers that are in the loop still, and have delivered less than this one.

        Where not all are heard, those are that are behind.
        """
        own, peers = self._heartbeat.progress.reached, self._peers
        statuses = {worker: peers.status(worker) for worker in peers.in_view or peers.others}
        return {
            worker: status.reached if status else _NOTHING
            for worker, status in statuses.items()
            if status is None or not (status.has_left or status.reached >= own)
        }

    def _give_up(self, why: str, missing: Mapping[int, Reached]) -> NoReturn:
        _log.warning(
            "ended %s and did not wait longer for the others to end it: %s (%s)",
            self._topic,
            why,
            self._peers.describe(missing),
        )
        raise _OverError
