"""Who reads the statuses of all workers: each of a few; of many one, the watcher.

    worker 0, the watcher    reads all statuses    posts its own and a summary
    every other worker       reads the summary     posts its own

A watcher may leave, or die, like anybody: then its summary does not change any more, and the first
worker to claim the next term takes its place. It has not listened before, so it counts everybody's
silence from the last summary on.

    term 0   worker 0   . . . . (dies)
    term 1   worker 7             claims it, reads all three times, posts . . . . . . . .
             others               hear nothing new                    hear worker 7: 0 is silent

Used by the heartbeat's thread alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import final

from torch_distinput.cluster.liveness.peers import Peers
from torch_distinput.cluster.liveness.status import Status
from torch_distinput.cluster.liveness.summary import Summary, choose_told, sum_up_votes
from torch_distinput.communicator import Board

ALL_READ = 16
"""So many workers all read all: that costs little, and is as fast as can be."""
_STALE_BEATS = 2.5
"""A summary that does not change for so long has lost its watcher."""
_FIRST_READS = 3
"""After so many of its looks who took over knows who is silent: whom it has not heard again by then
has missed a beat."""
Votes = Sequence[int | None]


def read_all(board: Board, peers: Peers, *, since: float | None = None) -> Votes:
    """Hear all statuses; return the votes of the workers that are still there, None for no vote.

    ``since``: when who was not heard before was there still, if that is known.
    """
    texts = board.read()
    now = time.monotonic()
    peers.heard.forget_pause(now)
    for worker, text in texts.items():
        peers.heard.hear(worker, text, now, since=since)
    peers.heard.heard_at = now
    peers.heard.num_news += 1
    statuses = [peers.status(worker) for worker in peers.others]
    votes = [(status.vote, status.has_left) if status else (None, False) for status in statuses]
    return [vote for vote, has_left in votes if vote is not None or not has_left]


@final
class Watch:
    """One of many workers: it hears the watcher, or is the watcher."""

    def __init__(self, board: Board, peers: Peers, own: int) -> None:
        """Hear nothing yet.

        Args:
            board: where all workers leave their statuses.
            peers: keeps what is heard.
            own: this worker's number.
        """
        self._board = board
        self._peers = peers
        self._name = board.names[own]
        self._workers = {name: worker for worker, name in enumerate(board.names)}
        self._term = 0
        self._num_reads = 0  # of all statuses, in the term of this watcher
        self._num_told = 0
        self._newest = (0, -1)  # term and beat of the newest summary
        self._changed_at = time.monotonic()
        self._votes: Votes = ()
        self._is_watcher = peers.heard.hears_all = self._name == min(board.names)

    def hear(self) -> Votes:
        """Hear the others; return what counts of the votes."""
        text = self._board.read_summary()
        summary, now = Summary.read(text) if text else None, time.monotonic()
        if summary is not None and (summary.term, summary.beat) > self._newest:
            return self._follow(summary, now)
        self._changed_at += self._peers.heard.find_pause(now)
        if not self._is_watcher:
            is_stale = now - self._changed_at > _STALE_BEATS * self._peers.heard.interval
            if is_stale or (summary is not None and self._has_left(summary)):
                self._claim(now)
        if self._is_watcher:
            self._num_reads += 1
            is_new = self._term and self._num_reads == 1
            since = self._changed_at if is_new else None
            self._votes = read_all(self._board, self._peers, since=since)
            self._peers.heard.hears_all = True
            return self._votes
        self._peers.heard.hear_nothing_new(now)
        return (None,)

    def tell(self, own: Status) -> None:
        """After this worker's status was posted: a watcher sums up what it has heard."""
        peers = self._peers
        if not self._is_watcher or (self._term and self._num_reads < _FIRST_READS):
            return
        heard = {worker: status for worker in peers.others if (status := peers.status(worker))}
        silence = {worker: peers.silence(worker) for worker in heard if peers.misses_beat(worker)}
        told = choose_told(heard, silence=silence, failed_at=peers.heard.failed_at)
        names = self._board.names
        summary = Summary(
            term=self._term,
            beat=self._num_told,
            watcher=self._name,
            votes=sum_up_votes([*self._votes, own.vote]),
            told={names[worker]: (heard[worker], peers.silence(worker)) for worker in told}
            | {self._name: (own, 0.0)},
        )
        self._board.post_summary(summary.written())
        self._newest = (summary.term, summary.beat)
        self._num_told += 1

    def _follow(self, summary: Summary, now: float) -> Votes:
        self._newest = (summary.term, summary.beat)
        self._term, self._changed_at = summary.term, now
        self._is_watcher = self._peers.heard.hears_all = False
        told = {self._workers[name]: said for name, said in summary.told.items()}
        self._peers.heard.hear_told(told, now)
        return summary.votes

    def _has_left(self, summary: Summary) -> bool:
        """Whether the watcher of this term said good-bye."""
        return summary.term == self._term and summary.told[summary.watcher][0].has_left

    def _claim(self, now: float) -> None:
        """Be the next watcher, unless somebody is already; then wait for its summary."""
        if self._board.claim(self._term):
            self._is_watcher = True
            self._num_reads = self._num_told = 0
        else:
            self._changed_at = now + _FIRST_READS * self._peers.heard.interval
        self._term += 1
