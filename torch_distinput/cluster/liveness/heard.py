"""What was heard of the other workers, and when.

    thread      writes                                  reads
    heartbeat   all but what main does: it alone hears  all
    main        interval; heard_at before the           all
                heartbeat starts

No lock: each attribute has one writer, a dict changes by one item at a time or is replaced as a
whole, and whoever reads copes with what was true a moment ago. Who goes through a dict goes through
a copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from torch_distinput.cluster.liveness.status import Status

_PAUSED_BEATS = 3
"""A worker that has missed so many beats of its own was stopped."""


@final
class Heard:
    """The last status of each worker of whom one is known.

    Attributes:
        interval: the time between two statuses, in seconds.
        hears_all: whether this worker hears of all; else the watcher tells of those that others
            must hear of, and the rest does what all do.
        statuses: by worker, with the time when it changed last.
        heard_at: when this worker listened last.
        told_at: when the watcher told something new.
        num_news: how often something new could be heard.
        steps_of_left: of those who have left, how many steps they delivered: a dict, for each step
            asks.
        failed_at: when it was heard that a worker failed.
    """

    def __init__(self, own: int, *, interval: float) -> None:
        """Nothing is heard yet; ``own`` is this worker."""
        self.interval = interval
        self.hears_all = True
        self.statuses: dict[int, tuple[Status, float]] = {}
        self.heard_at = self.told_at = 0.0
        self.num_news = 0
        self.steps_of_left: dict[int, int] = {}
        self.failed_at: dict[int, float] = {}
        self._own = own

    def find_pause(self, now: float) -> float:
        """Seconds for which this process was stopped, since it heard something."""
        pause = now - self.heard_at - self.interval
        return pause if pause > _PAUSED_BEATS * self.interval else 0.0

    def forget_pause(self, now: float) -> None:
        """Time in which this process was stopped is no silence of the others.

        Perhaps all of them were stopped: whoever wakes first has not heard the others yet.
        """
        if pause := self.find_pause(now):
            heard = self.statuses.items()
            self.statuses = {worker: (status, at + pause) for worker, (status, at) in heard}

    def hear(self, worker: int, text: str, now: float, *, since: float | None = None) -> None:
        """Take what a worker has posted; ``since``: when it was there, if it was not heard yet."""
        status, before = Status.read(text), self._status(worker)
        self._note(worker, status, now)
        if before is None or before.beat != status.beat:
            self.statuses[worker] = (status, since if before is None and since is not None else now)

    def hear_told(self, told: Mapping[int, tuple[Status, float]], now: float) -> None:
        """Take what the watcher tells of some workers, with the seconds of their silence."""
        others = {worker: said for worker, said in told.items() if worker != self._own}
        for worker, (status, _) in others.items():
            self._note(worker, status, now)
        self.statuses = {worker: (status, now - ago) for worker, (status, ago) in others.items()}
        self.heard_at = self.told_at = now
        self.num_news += 1

    def hear_nothing_new(self, now: float) -> None:
        """Note that the watcher told nothing new."""
        self.forget_pause(now)
        self.heard_at = now

    def _note(self, worker: int, status: Status, now: float) -> None:
        """What stays true of a worker; before its status is replaced."""
        before = self._status(worker)
        if status.has_left:
            self.steps_of_left[worker] = status.steps
        if status.failed and (before is None or before.failed != status.failed):
            self.failed_at[worker] = now

    def _status(self, worker: int) -> Status | None:
        said = self.statuses.get(worker)
        return said[0] if said else None
