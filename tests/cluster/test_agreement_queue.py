"""The queue between the threads of an agreement: what a worker says in its votes, and when."""

from __future__ import annotations

import threading

import pytest

from tests.cluster.test_agreement import LIMIT, Step
from torch_distinput.cluster.agreement import agreement_queue, vote_pace
from torch_distinput.cluster.agreement.agreement_queue import _LOW_WATER, AgreementQueue
from torch_distinput.cluster.agreement.voted_steps import Agreed
from torch_distinput.plan.progress.end_of_data import WINDOW, VoterState
from torch_distinput.plan.progress.place import Place
from torch_distinput.plan.progress.position import ResumePoint

SOON = 5.0


def test_an_end_is_told_when_all_before_it_is():
    """Else the others would end while this worker still has steps."""
    queue = AgreementQueue[Step]()
    for _ in range(WINDOW + 1):
        queue.put(Step(1), 1)
    queue.end_reading()
    assert VoterState.RUNNING is queue.wait_for_vote().state
    queue.agree([1], [None])
    assert VoterState.ENDED is queue.wait_for_vote().state


@pytest.mark.parametrize("later", ["end_reading", "fail"])
def test_who_has_closed_says_so_whatever_happens_later(later):
    """A reader that ends, or breaks because it is closed, is no end of data and no failure."""
    queue = AgreementQueue[Step]()
    queue.close()
    queue.fail(KeyError("closed file")) if later == "fail" else queue.end_reading()
    assert VoterState.CLOSED is queue.wait_for_vote().state
    assert queue.failure is None


def test_resume_points_are_told_once():
    """The first and the last of the window; then only new ones."""
    points = [
        ResumePoint(batch=batch, row=0, segment=0, start=Place("row", (("number", batch),)))
        for batch in range(4)
    ]
    queue = AgreementQueue[Step]()
    for point in points[:3]:
        queue.put(Step(1, resume_point=point), 1)
    assert (points[0], points[2]) == queue.wait_for_vote().resume_points
    assert () == queue.wait_for_vote().resume_points
    queue.put(Step(1, resume_point=points[3]), 1)
    assert (points[3],) == queue.wait_for_vote().resume_points


def vote_in_thread(queue, *, then):
    """The vote that is waited for while ``then`` happens, and how often the voter was woken."""
    wakes, waits = [], threading.Event()
    notify, wait = queue._votable.notify, queue._votable.wait

    def noted_wait(seconds=None):
        waits.set()  # with the lock, which the wait gives up
        return wait(seconds)

    queue._votable.wait = noted_wait
    queue._votable.notify = lambda number=1: wakes.append(1) or notify(number)
    voted = []
    voter = threading.Thread(target=lambda: voted.append(queue.wait_for_vote()), daemon=True)
    voter.start()
    assert waits.wait(LIMIT)
    then()
    voter.join(LIMIT)
    (vote,) = voted
    return vote, len(wakes)


def put_steps(queue, number):
    """What the reader does."""
    for _ in range(number):
        queue.put(Step(1), 1)


@pytest.fixture
def queue_after_vote(monkeypatch):
    """A queue whose last vote was just now, and stays so."""
    monkeypatch.setattr(vote_pace, "_PART_SECONDS", 1000.0)
    queue = AgreementQueue[Step]()
    queue.introduce([None])
    put_steps(queue, 1)
    queue.agree([1], [None])
    assert isinstance(queue.get(0.0), Agreed)
    return queue


def test_a_vote_soon_after_another_is_on_a_full_window(queue_after_vote):
    """The voter is woken once for all its steps."""
    vote, num_wakes = vote_in_thread(
        queue_after_vote, then=lambda: put_steps(queue_after_vote, WINDOW)
    )
    assert (WINDOW, 1) == (len(vote.counts), num_wakes)


def vote_on(queue, number):
    """A vote on so many steps, which are taken."""
    put_steps(queue, number)
    queue.agree([1] * number, [None] * number)
    for _ in range(number):
        assert isinstance(queue.get(0.0), Agreed)


def test_a_source_that_waits_for_the_loop_is_not_waited_for(queue_after_vote):
    """It gave two steps while a vote waited in full: no more would come before these are taken."""
    vote_on(queue_after_vote, 2)
    vote, num_wakes = vote_in_thread(queue_after_vote, then=lambda: put_steps(queue_after_vote, 2))
    assert (2, 1) == (len(vote.counts), num_wakes)


def test_one_vote_of_many_waits_in_full_again(queue_after_vote):
    """Else few steps would be voted on for ever, once a source was slow."""
    for _ in range(vote_pace._CYCLE):
        vote_on(queue_after_vote, 2)
    vote, num_wakes = vote_in_thread(
        queue_after_vote, then=lambda: put_steps(queue_after_vote, WINDOW)
    )
    assert (WINDOW, 1) == (len(vote.counts), num_wakes)


@pytest.mark.parametrize("last", ["end_reading", "close"])
def test_a_vote_does_not_wait_for_steps_that_will_not_come(queue_after_vote, last):
    """An end and a close are told at once, however soon after another vote."""

    def leave():
        put_steps(queue_after_vote, 3)
        getattr(queue_after_vote, last)()

    vote, _ = vote_in_thread(queue_after_vote, then=leave)
    assert 3 == len(vote.counts)


def test_a_part_of_a_window_is_voted_on_after_a_while(monkeypatch):
    """Also where the source does not return from reading the next step."""
    monkeypatch.setattr(vote_pace, "_PART_SECONDS", 0.05)
    queue = AgreementQueue[Step]()
    put_steps(queue, 2)
    queue.agree([1], [None])
    assert isinstance(queue.get(0.0), Agreed)
    assert 1 == len(vote_in_thread(queue, then=lambda: None)[0].counts)


def test_the_first_step_is_voted_on_at_once():
    """So is each step of a source that takes longer for one."""
    queue = AgreementQueue[Step]()
    vote, num_wakes = vote_in_thread(queue, then=lambda: put_steps(queue, 1))
    assert (1, 1) == (len(vote.counts), num_wakes)


def test_no_vote_while_many_agreed_steps_wait():
    """A vote could wait for a worker that is busy; the consumer wakes the voter in time."""
    queue = AgreementQueue[Step]()
    put_steps(queue, 2 * WINDOW)
    queue.agree([1] * WINDOW, [None] * WINDOW)

    def take():
        for _ in range(WINDOW - _LOW_WATER):
            assert isinstance(queue.get(0.0), Agreed)

    vote, num_wakes = vote_in_thread(queue, then=take)
    assert (WINDOW, 1) == (len(vote.counts), num_wakes)


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


def test_a_reader_that_was_woken_without_room_is_woken_again(monkeypatch):
    """A large step among small ones: there is no room at the low water, but later."""
    monkeypatch.setattr(agreement_queue, "_HELD_BYTES", 100)
    queue = AgreementQueue[Step]()
    sizes = [1] * (_LOW_WATER + 1) + [100]
    for num_bytes in sizes:
        queue.put(Step(1), num_bytes)
    queue.agree([1] * len(sizes), [None] * len(sizes))
    waits, wait = threading.Semaphore(0), queue._room.wait

    def noted_wait(seconds=None):
        waits.release()  # with the lock, which the wait gives up
        return wait(seconds)

    queue._room.wait = noted_wait
    has_room = []
    reader = threading.Thread(target=lambda: has_room.append(queue.wait_for_room()), daemon=True)
    reader.start()
    assert waits.acquire(timeout=LIMIT)
    for _ in range(2):
        assert isinstance(queue.get(0.0), Agreed)
    assert waits.acquire(timeout=LIMIT), "it was woken, and has found no room"
    for _ in range(_LOW_WATER):
        assert isinstance(queue.get(0.0), Agreed)
    reader.join(SOON)
    assert [True] == has_room


def test_a_failure_is_told_though_the_data_ends():
    """The thread that waits for a step may fail while the reader reads on."""
    queue, error = AgreementQueue[Step](), KeyError("raised in next()")
    assert queue.wait_for_room()
    queue.fail(error)
    assert not queue.wait_for_room(), "nobody plays what is read from now on"
    queue.end_reading()
    assert VoterState.FAILED is queue.wait_for_vote().state
    assert error is queue.failure
