"""The queue between the threads of an agreement: what a worker says in its votes, and when."""

from __future__ import annotations

import threading

import pytest

from tests.cluster.test_agreement import LIMIT, Step
from torch_distinput.cluster.agreement.agreement_queue import AgreementQueue
from torch_distinput.plan.progress.end_of_data import WINDOW, VoterState
from torch_distinput.plan.progress.place import Place
from torch_distinput.plan.progress.position import ResumePoint


def test_an_end_is_told_when_all_before_it_is():
    """Else the others would end while this worker still has steps."""
    queue = AgreementQueue[Step]()
    for _ in range(WINDOW + 1):
        queue.put(Step(1), 1)
    queue.end_reading()
    assert VoterState.RUNNING is queue.wait_for_vote()[0].state
    queue.agree([1], [None])
    assert VoterState.ENDED is queue.wait_for_vote()[0].state


@pytest.mark.parametrize("later", ["end_reading", "fail"])
def test_who_has_closed_says_so_whatever_happens_later(later):
    """A reader that ends, or breaks because it is closed, is no end of data and no failure."""
    queue = AgreementQueue[Step]()
    queue.close()
    queue.fail(KeyError("closed file")) if later == "fail" else queue.end_reading()
    assert VoterState.CLOSED is queue.wait_for_vote()[0].state
    assert queue.failure is None


def test_resume_points_are_told_once():
    """The first and the last of the window; then only new ones: telling costs a collective."""
    points = [
        ResumePoint(batch=batch, row=0, segment=0, start=Place("row", (("number", batch),)))
        for batch in range(4)
    ]
    queue = AgreementQueue[Step]()
    for point in points[:3]:
        queue.put(Step(1, resume_point=point), 1)
    vote, news = queue.wait_for_vote()
    assert (True, (points[0], points[2])) == (vote.has_news, news)
    vote, news = queue.wait_for_vote()
    assert (False, ()) == (vote.has_news, news)
    queue.put(Step(1, resume_point=points[3]), 1)
    assert (points[3],) == queue.wait_for_vote()[1]


def test_closing_inside_the_lock():
    """A collection of garbage may do so in any thread, also in one that holds the lock."""
    queue = AgreementQueue[Step]()

    def work():
        with queue._lock:
            queue.close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(LIMIT)
    assert not thread.is_alive()
