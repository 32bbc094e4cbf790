"""One iteration's eye on the other workers: who failed, who is late, and where to stop."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import NoReturn

from torch_distinput.cluster.liveness.heartbeat import Heartbeat
from torch_distinput.cluster.liveness.status import READING, TRAINING, Activity, IterationProgress
from torch_distinput.cluster.liveness.store_board import (
    make_lost_store_error,
    make_silent_store_error,
)
from torch_distinput.cluster.liveness.wait_limit import WaitLimit
from torch_distinput.communicator import check_company, named_workers
from torch_distinput.errors import PeerFailedError, PeerTimeoutError, refer

_WAITING = "waiting for the others at"
_POLL_SECONDS = 0.05
_PAUSE_SECONDS = 0.1
"""Time between two looks at what the heartbeat heard, where that changes once a second."""
_ROLL_CALL_SECONDS = 3.0
_ROLL_CALL_BEATS = 3
_TOLD_CALL_BEATS = 8
"""The same where a watcher tells of the others: it may be the one that is gone."""


class PeerMonitor:
    """What one iteration of one dataset notes for the others, and looks for in what they note."""

    def __init__(
        self, heartbeat: Heartbeat, topic: str, number: int, *, timeout: float
    ) -> None:
        """Look after the iteration named ``topic``, which has begun on all workers."""
        self._heartbeat = heartbeat
        self._peers = heartbeat.peers
        self._stop = heartbeat.stop
        self._topic = topic
        self._timeout = timeout
        self._next_look = 0.0
        self._progress = heartbeat.progress = IterationProgress(number)
        heartbeat.open_topics.add(topic)

    def enter(self, step: int) -> None:
        """Main thread, before each step; waits if another worker asked to stop."""
        if not self._stop.claim():
            self._settle(step)
        self._heartbeat.outside = None

    def leave(self, step: int) -> None:
        """Main thread, after each step."""
        self._stop.delivered += 1
        self._progress.delivered += 1
        now = time.monotonic()
        self._heartbeat.outside = Activity(TRAINING, self._topic, step, now)

    def end(self, ending: BaseException) -> None:
        """Main thread: there are no more steps; an error is told."""
        self._stop.unclaim()
        is_well = isinstance(ending, StopIteration)
        verb = "past the end of" if is_well else "after an error in"
        self._heartbeat.outside = Activity(verb, self._topic, None, time.monotonic())
        if is_well:
            self._peers.end_well(self._topic)
        else:
            self.tell(ending)  # first: from who is ahead no step is expected
            if self._peers.others:
                self._stop.skip_ahead()

    def close(self) -> None:
        """Any thread: the loop was left, so nobody needs to wait for this worker at its end."""
        self._progress.is_left = True
        self._heartbeat.open_topics.discard(self._topic)

    @property
    def is_newest(self) -> bool:
        """Whether the loop is open, and no iteration has begun here since."""
        return self._heartbeat.progress is self._progress and not self._progress.is_left

    def reading(self, step: int) -> None:
        """Whoever pulls steps: about to enter the source."""
        self._heartbeat.inside = Activity(READING, self._topic, step, time.monotonic())

    def waiting(self, step: int, *, is_reading: bool) -> None:
        """Whoever pulls steps: waiting for a vote, or first for this worker's own reader."""
        verb = READING if is_reading else _WAITING
        if (verb, self._topic, step) != self._heartbeat.inside[:3]:
            limit = math.inf if is_reading else self._timeout
            self._heartbeat.inside = Activity(verb, self._topic, step, time.monotonic(), limit)

    def tell(self, error: BaseException) -> None:
        """Tell the others that this worker failed."""
        self._heartbeat.tell(self._topic, error)

    def ask_why(self, workers: Sequence[int], expected: str) -> NoReturn:
        """After workers closed their iterators: raise what they said, or what they were doing.

        Raises:
            PeerFailedError: always.
        """
        self._heartbeat.listen()
        self._look_for_failures()
        who = named_workers(workers, self._peers.names)
        msg = (
            f"Expected {expected}, but {who} closed the iterator or left its "
            "loop. Every worker must leave the loop at the same step."
        )
        raise PeerFailedError(msg)

    def look(self) -> None:
        """Raise if another worker failed, or if its heart has stopped; looks only now and then."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _PAUSE_SECONDS * max(1.0, self._peers.heard.interval)
        self._look_for_failures()
        peers, steps = self._peers, self._stop.delivered
        # Who is further than this worker is not needed, and may have ended without a word.
        statuses = [(w, peers.status(w)) for w in peers.in_view]
        needed = [w for w, status in statuses if status and status.steps <= steps]
        late = [w for w in needed if peers.misses_beat(w)]
        if died := [w for w in late if peers.has_died(w)]:
            msg = (
                "Expected a step from every worker, but the process of "
                f"{named_workers(died, peers.names)} has ended without an error: it was killed, "
                f"or it crashed. {peers.describe(died)}. Its own output, and the system's log, "
                "say why; restart the job."
            )
            section = "docs/errors.md#a-process-ends-without-a-python-error"
            raise refer(PeerFailedError(msg), section)
        silent = [w for w in late if peers.silence(w) > self._timeout]
        if silent:
            msg = (
                f"Expected a sign of life from every worker within {self._timeout:g} s, but "
                f"{named_workers(silent, peers.names)} gave none: the process was stopped, its "
                "machine is gone, or C code holds its interpreter. "
                f"{peers.describe(silent)}. Restart the job, or raise InputOptions.timeout."
            )
            raise PeerTimeoutError(msg, tuple(silent))
        if self._heartbeat.has_silent_store(self._timeout):
            raise make_silent_store_error(self._timeout)

    def check_open_loops(self) -> None:
        """The same of all whose loops are open here: under ``zip`` one may end the others.

        Not of failures from before this iteration, to which all workers have come since.
        """
        for topic in sorted(self._heartbeat.open_topics):
            self._raise_failures(topic, since=self._progress.number)

    def _raise_failures(self, topic: str, *, since: int = -1) -> None:
        if failed := self._peers.failures(topic, since=since):
            names = self._peers.names
            words = "; ".join(f"{named_workers([w], names)}: {text}" for w, text in failed.items())
            msg = f"Expected a step from every worker, but a worker failed. {words}"
            raise PeerFailedError(msg)

    def check_company(self, step: int) -> None:
        """Raise if another worker has left for good and will not play this step, which there is."""
        left, steps = self._peers.heard.steps_of_left, self._stop.delivered
        if not left:
            return
        # A copy, made in one operation: meanwhile the heartbeat may hear of others that leave.
        gone = [worker for worker, delivered in list(left.items()) if delivered <= steps]
        if gone:
            self.ask_why(gone, f"step {step} from every worker")

    def give_up(self, expected: str, step: int, cure: str) -> NoReturn:
        """Raise for whoever does not wait at a step.

        Raises:
            PeerTimeoutError: always.
        """
        late = self._peers.late(Activity(_WAITING, self._topic, step))
        said = self._peers.describe(late) if late else "the others wait there"
        own = self._heartbeat.inside.words
        msg = (
            f"Expected {expected} within {self._timeout:g} s, but it did not come. This worker: "
            f"{own}; {said}. {cure}"
        )
        raise PeerTimeoutError(msg, late)

    def call_roll(self, error: BaseException | None = None) -> NoReturn:
        """After a connection broke: find out who is gone.

        Raises:
            PeerFailedError: always; names the workers that failed, or gave no sign of life.
        """
        peers = self._peers
        beats = _ROLL_CALL_BEATS if peers.heard.hears_all else _TOLD_CALL_BEATS
        seconds = max(_ROLL_CALL_SECONDS, beats * peers.heard.interval)
        started = time.monotonic()
        while time.monotonic() < started + seconds:
            self._look_for_failures()
            missed = {w: said for w, said in peers.gone(math.inf).items() if self._lacks(w)}
            check_company("the next step", missed, peers.names)
            time.sleep(_POLL_SECONDS)
            if all(peers.is_alive(w, started) for w in peers.others if self._lacks(w)):
                break
        in_view = [w for w in peers.in_view if self._lacks(w)]
        gone = [w for w in in_view if not peers.is_alive(w, started)]
        who = "a worker died or closed the connection"
        if gone:
            who = (
                f"{named_workers(gone, peers.names)} died or closed the connection: no sign of "
                f"life within {seconds:g} s ({peers.describe(gone)})"
            )
        elif error is not None:  # all give signs of life: it may be the network
            who += f" ({error})"
        msg = (
            f"Expected a step from every worker, but {who}. Its own output says why; restart the "
            "job."
        )
        raise PeerFailedError(msg) from error

    def _lacks(self, worker: int) -> bool:
        """Whether the next step needs a worker: one that has left may have played it before.

        As those of a mesh do with whom this one shares no data.
        """
        delivered = self._stop.delivered
        return self._peers.heard.steps_of_left.get(worker, delivered) <= delivered

    def _look_for_failures(self) -> None:
        self._raise_failures(self._topic)
        if (lost := self._heartbeat.lost) is not None:
            raise make_lost_store_error(lost) from lost

    def _settle(self, step: int) -> None:
        """Wait for everybody's vote on where to stop."""
        peers, stop = self._peers, self._stop
        place = Activity(
            "agreeing where to stop before", self._topic, step, time.monotonic(), self._timeout
        )
        self._heartbeat.outside = place
        wait_limit = WaitLimit(self._timeout)
        while not stop.may_go():
            self.look()
            if wait_limit.is_over:
                statuses = {worker: peers.status(worker) for worker in peers.in_view}
                late = tuple(
                    w for w, status in statuses.items() if status is None or status.vote is None
                )
                msg = (
                    f"Expected all workers to agree where to stop within {self._timeout:g} s, but "
                    f"{named_workers(late, peers.names)} did not answer. {peers.describe(late)}."
                )
                raise PeerTimeoutError(msg, late)
            stop.settled.wait(_POLL_SECONDS)
