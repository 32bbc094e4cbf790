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
from typing import final

from torch_distinput.cluster.liveness.heartbeat import Heartbeat
from torch_distinput.cluster.liveness.peer_monitor import PeerMonitor
from torch_distinput.cluster.liveness.status import Activity, Status
from torch_distinput.cluster.liveness.wait_limit import WaitLimit
from torch_distinput.communicator import Communicator
from torch_distinput.errors import PeerFailedError, PeerTimeoutError

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.2


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
        communicator: Communicator,
        heartbeat: Heartbeat,
        monitor: PeerMonitor,
        topic: str,
        *,
        timeout: float,
    ) -> None:
        """Take the way to the other workers, and what is heard of them in this iteration."""
        self._communicator = communicator
        self._heartbeat = heartbeat
        self._peers = heartbeat.peers
        self._monitor = monitor
        self._topic = topic
        self._timeout = timeout
        self._limit = WaitLimit(timeout)
        self._missing: dict[int, int] = {}  # the steps of who is waited for, when last heard
        self._beats: dict[int, int] = {}  # of who was heard, when first heard

    def wait(self) -> None:
        """Wait until all have come, or will not come, or do nothing any more.

        Raises:
            PeerFailedError: another worker failed in this epoch, or its process has ended.
            PeerTimeoutError: another worker has given no sign of life for too long.
        """
        self._monitor.check_failures()
        if not self._peers.is_newest(self._topic):
            return  # loops inside of each other: workers may come to their ends in other orders
        self._limit = WaitLimit(self._timeout)
        self._heartbeat.outside = Activity(
            "waiting for the others at the end of", self._topic, None, time.monotonic(),
            self._timeout,
        )  # fmt: skip
        try:
            self._communicator.join(
                f"end of {self._topic}", "", "".join, timeout=self._timeout, gone=self._look
            )
        except _OverError:
            pass
        except (PeerFailedError, PeerTimeoutError) as error:
            if isinstance(error, PeerTimeoutError) and not error.workers:
                raise  # it is the store that does not answer
            self._listen()

    def _listen(self) -> None:
        """Wait by the heartbeats alone: some will not come, or are slow."""
        try:
            while True:
                self._look()
                time.sleep(_LOOK_SECONDS)
        except _OverError:
            pass

    def _look(self) -> Mapping[int, str]:
        """Raise for whoever failed, and if there is nobody to wait for."""
        self._monitor.check_failures()
        self._monitor.look()  # which is not done each time
        peers = self._peers
        heard = {worker: peers.status(worker) for worker in peers.in_view}
        missing = {
            worker: status.steps if status else 0
            for worker, status in heard.items()
            if status is None or not self._has_passed(worker, status)
        }
        if self._heartbeat.left == self._topic:  # somebody has closed the iterator here
            raise _OverError
        if not missing and peers.heard.hears_all:
            raise _OverError
        if missing != self._missing:
            self._missing, self._limit = missing, WaitLimit(self._timeout)
        if self._limit.is_over:
            _log.warning(
                "ended %s without waiting longer for the others to end it: nothing has moved for "
                "%g s (%s)",
                self._topic,
                self._timeout,
                peers.describe(missing),
            )
            raise _OverError
        return {}

    def _has_passed(self, worker: int, status: Status) -> bool:
        """Whether a worker has delivered as much as this one, or is in the loop no more.

        What it says of where it is may be older than this epoch: the next but one is newer.
        """
        if status.has_left or status.steps >= self._heartbeat.stop.delivered:
            return True
        is_new = status.beat > self._beats.setdefault(worker, status.beat) + 1
        is_out = status.left == self._topic or not status.activity.endswith(self._topic)
        return is_new and is_out
