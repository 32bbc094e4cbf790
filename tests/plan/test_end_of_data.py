"""The verdict over votes: the table, then every mixture of few workers."""

from __future__ import annotations

import itertools

import pytest

from torch_distinput.plan.progress.end_of_data import (
    Outcome,
    Verdict,
    Vote,
    VoterState,
    decide,
)

RUN, END, FAIL, CLOSE = VoterState.RUNNING, VoterState.ENDED, VoterState.FAILED, VoterState.CLOSED


def vote(state, *counts):
    """A vote without marks."""
    nothing = (0,) * len(counts)
    return Vote(state=state, counts=counts, marks=nothing, files_touched=nothing)


@pytest.mark.parametrize(
    ("votes", "totals", "outcome", "workers"),
    [
        ([vote(RUN, 2, 2), vote(RUN, 3)], (5,), Outcome.GO_ON, ()),
        ([vote(RUN, 2, 2), vote(END, 3)], (5, 2), Outcome.GO_ON, ()),  # the longest goes on
        ([vote(RUN, 2), vote(END)], (2,), Outcome.GO_ON, ()),
        ([vote(END, 2, 2), vote(END, 3)], (5, 2), Outcome.ENDED, ()),
        ([vote(END), vote(END)], (), Outcome.ENDED, ()),
        ([vote(RUN, 1, 1), vote(FAIL)], (), Outcome.FAILED, (1,)),
        ([vote(RUN, 1, 1), vote(FAIL, 1)], (2,), Outcome.FAILED, (1,)),  # good steps first
        ([vote(RUN, 1), vote(FAIL, 1, 1)], (2,), Outcome.GO_ON, ()),
        ([vote(END), vote(FAIL, 1)], (1,), Outcome.FAILED, (1,)),
        ([vote(FAIL), vote(FAIL)], (), Outcome.FAILED, (0, 1)),
        ([vote(RUN, 1, 1), vote(CLOSE)], (), Outcome.LEFT, (1,)),
        ([vote(FAIL), vote(CLOSE)], (), Outcome.LEFT, (1,)),
        ([vote(RUN, 0, 1), vote(RUN, 0, 0)], (0, 1), Outcome.GO_ON, ()),
    ],
)
def test_table(votes, totals, outcome, workers):
    """The rows of the module's table."""
    expected = Verdict(totals=totals, outcome=outcome, workers=workers)
    assert expected == decide(votes, shared=False)


def test_workers_that_read_one_stream_end_together():
    """Under DATA a worker that ends while another has a step has lost examples."""
    votes = [vote(RUN, 2, 2), vote(END, 2)]
    assert Verdict(outcome=Outcome.DIFFER, workers=(1,)) == decide(votes, shared=True)
    assert Outcome.GO_ON is decide([vote(RUN, 2), vote(END, 2)], shared=True).outcome


def test_marks_that_differ_name_the_odd_workers():
    """The lowest worker that has the step is the measure."""
    votes = [Vote(state=RUN, counts=(1,), marks=(mark,)) for mark in (7, 8, 7)]
    assert Verdict(outcome=Outcome.DIFFER, workers=(1,)) == decide(votes, shared=True)


def test_rounds_play_every_step_of_every_worker():
    """Whatever is ready when, the totals over all rounds are those of the longest worker."""
    for lengths in itertools.product(range(4), repeat=3):
        for paces in itertools.product((1, 2), repeat=3):
            left, played = list(lengths), []
            while True:
                shown = [min(rest, pace) for rest, pace in zip(left, paces, strict=True)]
                states = [END if s == rest else RUN for s, rest in zip(shown, left, strict=True)]
                ballot = zip(states, shown, strict=True)
                verdict = decide([vote(state, *[1] * s) for state, s in ballot], shared=False)
                played += verdict.totals
                left = [max(0, rest - len(verdict.totals)) for rest in left]
                if verdict.outcome is Outcome.ENDED:
                    break
            expected = [sum(step < length for length in lengths) for step in range(max(lengths))]
            assert expected == played
