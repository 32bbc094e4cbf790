"""What a wait was for, from a few times of one step."""

from __future__ import annotations

import itertools
import pickle
import threading

import pytest

from torch_distinput.meter import (
    COLLATE,
    DECODE,
    SOURCE,
    StepMark,
    Wait,
    Work,
    WorkClock,
    divide_own,
    read_mark,
    split_wait,
)


def wait(asked, had, pull, **keywords):
    """Of the loop, from ``asked`` to ``had``."""
    return split_wait(StepMark(0, 8, asked, had, *pull), **keywords)


@pytest.mark.parametrize(
    ("asked", "had", "pull", "expected"),
    [
        # The loop pulls the step itself: all that is read is waited for, and the rest is copying.
        (10, 20, (10, 18, Work(), True), Wait(8, 0, 2)),
        # Another thread began before the loop asked ...
        (10, 20, (4, 18, Work(), True), Wait(8, 0, 2)),
        # ... and had the step before it: nothing was waited for.
        (10, 10.5, (4, 9, Work(), True), Wait(0, 0, 0.5)),
        # It began after the loop asked, as it had no room before.
        (10, 20, (13, 18, Work(), True), Wait(5, 0, 5)),
        # Votes: this rank voted in the middle, before, and just when all had agreed.
        (10, 20, (10, 20, Work(voted=14), True), Wait(4, 6, 0)),
        (10, 20, (10, 20, Work(voted=7), True), Wait(0, 10, 0)),
        (10, 20, (10, 20, Work(voted=20), True), Wait(10, 0, 0)),
        # This rank has ended, and plays zero rows until the others have, too.
        (10, 20, (10, 20, None, False), Wait(0, 10, 0)),
        # Ready batches of which nothing is known.
        (10, 20, (10, 20, None, True), Wait(10, 0, 0)),
    ],
)
def test_a_wait_is_for_oneself_for_others_or_for_the_copy(asked, had, pull, expected):
    assert expected == wait(asked, had, pull)


def test_a_rank_that_reads_for_others_waits_for_them_longer_than_it_reads():
    """It sends a step when the one before was taken, and reads 3 s of the 10."""
    assert Wait(3, 7, 0) == wait(0, 10, (0, 10, Work(2, 0, 1), True), is_shared=True)


def test_a_rank_for_which_another_reads_waits_for_that_one():
    assert Wait(0, 10, 0) == wait(0, 10, (0, 10, None, True), is_shared=True)


def test_the_parts_of_a_wait_are_all_of_it():
    """Whatever the order of the times: no part is negative, and nothing is counted twice."""
    for asked, pull_asked, voted in itertools.product(range(4), repeat=3):
        for pull_had, had in itertools.product(range(pull_asked, 5), range(asked, 5)):
            parts = wait(asked, had, (pull_asked, pull_had, Work(voted=voted), True))
            assert had - asked == sum(parts)
            assert min(parts) >= 0


def test_ones_own_wait_is_divided_as_the_making_was():
    works = [Work(source=3, collate=1), None, Work(source=1, decode=4, collate=1)]
    assert {SOURCE: 2.0, DECODE: 2.0, COLLATE: 1.0} == divide_own(5, works)


def test_what_was_not_measured_is_source():
    assert {SOURCE: 5, DECODE: 0.0, COLLATE: 0.0} == divide_own(5, [None, Work()])


def test_a_clock_of_work_counts_each_thread_for_itself():
    clock = WorkClock()
    clock.collate = 1.0
    found = []
    thread = threading.Thread(target=lambda: found.append(clock.take()))
    thread.start()
    thread.join()
    assert [(0.0, 0.0)] == found
    assert (0.0, 1.0) == clock.take()


def test_a_clock_of_work_begins_anew_in_a_loader_process():
    clock = WorkClock()
    clock.decode = 1.0
    assert (0.0, 0.0) == pickle.loads(pickle.dumps(clock)).take()


def test_what_is_made_where_it_is_pulled_is_known_from_the_clock_of_that_thread():
    """Of 10 s the clock has counted 2 s of decoding and 3 s of collating since the step before."""
    before = (0, 8, 0.0, 5.0, (0.0, 5.0, None, True, 7.0, 1.0))
    raw = (1, 8, 10.0, 21.0, (10.0, 20.0, None, True, 9.0, 4.0))
    expected = StepMark(1, 8, 10.0, 21.0, 10.0, 20.0, Work(5.0, 2.0, 3.0), True)
    assert expected == read_mark(raw, before)
