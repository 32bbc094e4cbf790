"""From the workers' votes to a verdict: how many steps may all of them play, and what then.

A vote says, for the next steps that a worker has *ready*, how many examples it brings to each,
and what it knows about what follows. The votes of one round are the same on every worker, and so
is the verdict. The table (docs/semantics.md, End of data):

    some worker ...                          steps agreed on             then
    closed its loop                          none                        LEFT, on all
    differs from another in what it read     none                        DIFFER, on all
    is still running or failed               least ready among these     go on; FAILED once the good
                                                                         steps of a failed worker
                                                                         are used up
    (all have ended)                         most ready                  ENDED
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from torch_distinput.plan.progress.position import ResumePoint

WINDOW = 64
"""Steps that one vote can speak of."""


class VoterState(enum.IntEnum):
    """What a worker knows about the steps after those it has ready."""

    RUNNING = 0
    ENDED = 1
    FAILED = 2
    CLOSED = 3


class Outcome(enum.Enum):
    """What follows the steps agreed on."""

    GO_ON = "go on"
    ENDED = "ended"
    FAILED = "failed"
    LEFT = "left"
    DIFFER = "differ"


class Vote(NamedTuple):
    """One worker's word in one round.

    Attributes:
        state: what follows the ready steps.
        counts: examples this worker brings to each ready step; at most ``WINDOW`` of them.
        marks: for each ready step a fingerprint of what all workers should have read alike, or 0.
        files_touched: for each ready step how many of this worker's files were touched by then.
        resume_points: places, new to the others, from which its stream can be read again.
    """

    state: VoterState
    counts: tuple[int, ...] = ()
    marks: tuple[int, ...] = ()
    files_touched: tuple[int, ...] = ()
    resume_points: tuple[ResumePoint, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What all workers do next.

    Attributes:
        totals: examples in sync of each step agreed on; a step of none is not delivered.
        outcome: what follows them.
        workers: the workers that the outcome names.
    """

    totals: tuple[int, ...] = ()
    outcome: Outcome = Outcome.GO_ON
    workers: tuple[int, ...] = ()


def decide(votes: list[Vote], *, shared: bool) -> Verdict:
    """Return the verdict over one vote per worker.

    ``shared``: all workers read the same stream (DATA), so they must end at the same step.
    """
    closed = _workers(votes, VoterState.CLOSED)
    if closed:
        return Verdict(outcome=Outcome.LEFT, workers=closed)
    differing = _differing(votes) or (_ended_early(votes) if shared else ())
    if differing:
        return Verdict(outcome=Outcome.DIFFER, workers=differing)
    waiting = [len(vote.counts) for vote in votes if vote.state is not VoterState.ENDED]
    steps = min(waiting) if waiting else max(len(vote.counts) for vote in votes)
    failed = tuple(w for w in _workers(votes, VoterState.FAILED) if len(votes[w].counts) == steps)
    if failed:
        outcome = Outcome.FAILED
    else:
        outcome = Outcome.GO_ON if waiting else Outcome.ENDED
    return Verdict(totals=_totals(votes, steps), outcome=outcome, workers=failed)


def _totals(votes: list[Vote], steps: int) -> tuple[int, ...]:
    columns = zip_longest(*(vote.counts[:steps] for vote in votes), fillvalue=0)
    return tuple(map(sum, columns))


def _workers(votes: list[Vote], state: VoterState) -> tuple[int, ...]:
    return tuple(worker for worker, vote in enumerate(votes) if vote.state is state)


def _differing(votes: list[Vote]) -> tuple[int, ...]:
    """Workers whose mark differs from that of the lowest worker that has the step."""
    if not any(any(vote.marks) for vote in votes):
        return ()
    for step in range(max(len(vote.marks) for vote in votes)):
        marks = {w: vote.marks[step] for w, vote in enumerate(votes) if len(vote.marks) > step}
        first = next(iter(marks.values()))
        odd = tuple(worker for worker, mark in marks.items() if mark != first)
        if odd:
            return odd
    return ()


def _ended_early(votes: list[Vote]) -> tuple[int, ...]:
    longest = max(len(vote.counts) for vote in votes)
    return tuple(w for w in _workers(votes, VoterState.ENDED) if len(votes[w].counts) < longest)
