"""What this worker has heard of the others, and what follows: who is late, has left, or died.

    thread      writes               reads
    heartbeat   all of ``heard``     all
    main        _begun, _ended       all

No lock: as in :mod:`.heard`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from torch_distinput.cluster.liveness.coordinated_stop import FAR
from torch_distinput.cluster.liveness.heard import Heard
from torch_distinput.cluster.liveness.process_identity import ProcessIdentity, has_died
from torch_distinput.cluster.liveness.status import LEFT, Activity, IterationProgress, Status
from torch_distinput.cluster.liveness.summary import is_of_peer
from torch_distinput.communicator import named_workers

_TOLD_BEATS = 5.5
"""A summary may be so old that it says nothing of a worker: its watcher hears of a missing beat one
and a half of them later, what it read then may have lain there for one, and so may the summary. On
a busy machine both threads are late as well: for that there are two more."""
_RETURN_SECONDS = 1.0
"""Time for a worker that failed to come to the next iteration: its script may have expected it."""


class Peers:
    """The other workers, by the last status of each that was heard.

    Attributes:
        heard: what was heard of them, which the heartbeat writes.
        names: for messages, where not all are workers over which data is parallel.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        *,
        process: ProcessIdentity,
        interval: float,
        names: Sequence[str] | None = None,
    ) -> None:
        """Nothing is heard yet; ``interval`` is the time between two statuses, in seconds."""
        self.heard = Heard(rank, interval=interval)
        self.names = names
        self._rank = rank
        self._size = size
        self._process = process
        self._begun = ""  # the iteration that began last here
        self._ended: set[str] = set()  # iterations that ended well here, since the last handshake

    # ------------------------------------------------------------------ the main thread

    def begin(self, topic: str) -> None:
        """Note that an iteration begins here."""
        self._begun = topic

    def end_well(self, topic: str) -> None:
        """Note that an iteration came to its end of data here."""
        self._ended.add(topic)

    def survive(self) -> None:
        """Note that all workers have come to a new iteration, whatever happened before."""
        self._ended.clear()

    # ------------------------------------------------------------------ questions

    @property
    def others(self) -> list[int]:
        """All workers but this one."""
        return [worker for worker in range(self._size) if worker != self._rank]

    @property
    def in_view(self) -> list[int]:
        """The other workers of whom something can be said."""
        return self.others if self.heard.hears_all else list(self.heard.statuses)

    def status(self, worker: int) -> Status | None:
        """What was heard of a worker last."""
        heard = self.heard.statuses.get(worker)
        return heard[0] if heard else None

    def failures(self, topic: str, *, since: int = -1) -> dict[int, str]:
        """Who else failed in an iteration, and with what words.

        ``since``: only if they did when the iteration of this number, or a later one, had begun.

        Who has only heard of a failure is named while nothing was heard of the culprit itself.
        """
        statuses = {worker: self.status(worker) for worker in self.in_view}
        told = {
            worker: status.failed for worker, status in statuses.items() if status and status.failed
        }
        failed = {
            worker: failure.words
            for worker, failure in told.items()
            if failure.topic == topic and failure.newest >= since
        }
        culprits = {w: words for w, words in failed.items() if not is_of_peer(words)}
        return culprits or failed

    def gone(self, wait_limit: float, among: Sequence[int] | None = None) -> dict[int, str]:
        """Who will not come to where all workers have to come, and why.

        Workers that have left, died, or given no sign of life for ``wait_limit`` seconds; those
        that failed in the iteration that has begun here; and those that failed in one that ended
        well here, and did not come back from it soon.

        ``among``: only some workers, who are then told by their places among these.
        """
        places = dict(enumerate(range(self._size) if among is None else among))
        others = {place: worker for place, worker in places.items() if worker != self._rank}
        why = {place: self._why_gone(worker, wait_limit) for place, worker in others.items()}
        return {place: words for place, words in why.items() if words}

    def _why_gone(self, worker: int, wait_limit: float) -> str:
        status = self.status(worker)
        if status is None:
            return ""
        if status.has_left:
            return self._said_of(worker)
        if self.has_died(worker):
            return f"its process has ended without an error ({self._said_of(worker)})"
        if self.silence(worker) > wait_limit:
            return f"no sign of life within {wait_limit:g} s ({self._said_of(worker)})"
        if status.failed is None:
            return ""
        topic, words, _ = status.failed
        ago = time.monotonic() - self.heard.failed_at[worker]
        is_out = ago > _RETURN_SECONDS if topic in self._ended else topic == self._begun
        return f"it failed in {topic}: {words}" if is_out else ""

    def has_died(self, worker: int) -> bool:
        """Whether a worker of this machine was killed, or crashed."""
        status = self.status(worker)
        return (
            status is not None and not status.has_left and has_died(status.process, self._process)
        )

    def misses_beat(self, worker: int) -> bool:
        """Whether nothing was heard of a worker when something should have been."""
        return self.silence(worker) > 1.5 * self.heard.interval

    def is_alive(self, worker: int, since: float) -> bool:
        """Whether a worker has beaten after a time: it was heard later than one beat after it.

        Sooner, a note may be heard that was left before.
        """
        heard = self.heard.statuses.get(worker)
        if heard is None and not self.heard.hears_all:
            return self.heard.told_at > since + _TOLD_BEATS * self.heard.interval
        if heard is None or heard[0].has_left:
            return False
        return heard[1] > since + 1.5 * self.heard.interval

    def silence(self, worker: int) -> float:
        """Seconds without a sign of life, as far as we listened; 0 of who was not heard yet.

        If this process itself was stopped, it has not listened.
        """
        heard = self.heard.statuses.get(worker)
        return 0.0 if heard is None or heard[0].has_left else self.heard.heard_at - heard[1]

    def late(self, place: Activity) -> tuple[int, ...]:
        """The other workers in view that do not wait where this one waits."""
        statuses = {worker: self.status(worker) for worker in self.in_view}
        return tuple(
            w for w, status in statuses.items() if status is None or status.activity != place.words
        )

    def find_leavers(self, progress: IterationProgress, topic: str, steps: int) -> list[int]:
        """The workers that will not come to this one's step: they have left its iteration.

        Not who has begun another one: it may lie inside of this one, where this worker is late.

        Args:
            progress: in the iteration of this worker.
            topic: its name.
            steps: those that this one has delivered, over all iterators; who has delivered more
                may be ahead.
        """
        end = (progress.number, LEFT)
        statuses = {worker: self.status(worker) for worker in self.in_view}
        return [
            worker
            for worker, status in statuses.items()
            if status
            and status.steps <= steps
            and (
                status.has_left or (status.reached == end and status.activity.endswith(f" {topic}"))
            )
        ]

    def describe(self, workers: Iterable[int]) -> str:
        """What was heard of workers last."""
        pairs = ((named_workers([w], self.names), self._said_of(w)) for w in workers)
        return "; ".join(f"{name}: {said}" for name, said in pairs)

    def _said_of(self, worker: int) -> str:
        heard = self.heard.statuses.get(worker)
        if heard is None:
            return "no sign of life yet" if self.heard.hears_all else "it does what all do"
        status, changed = heard
        if status.has_left:
            failed = status.failed
            is_told = failed and status.activity.endswith(failed.topic)
            words = f": {failed.words}" if failed and is_told else ""
            return f"left after {status.steps % FAR} steps, {status.activity}{words}"
        ago = time.monotonic() - changed
        return (
            f"last heard of {ago:.1f} s ago, with {status.steps % FAR} steps delivered, "
            f"{status.activity} for {status.seconds:.1f} s"
        )
