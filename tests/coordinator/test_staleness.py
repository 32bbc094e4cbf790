"""The bound on staleness: the rule by all schedules of three workers, the gate with threads."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import Future

import pytest

from torch_distinput.coordinator.parameters.gate import Gate
from torch_distinput.coordinator.parameters.identity import Caller
from torch_distinput.coordinator.parameters.staleness import may_pull, may_push
from torch_distinput.errors import UsageError

SECONDS = 100
"""A watchdog."""


def schedules(bound):
    """All lines of outstanding pulls that can come about, and how stale each push was.

    A line is a tuple of (worker, versions since its pull), the oldest first.
    """
    found, new, pushes = {()}, [()], []
    while new:
        line = new.pop()
        ages = [age for _, age in line]
        after = []
        if may_pull(len(line), bound):
            waiting = {worker for worker, _ in line}
            after += [(*line, (worker, 0)) for worker in {0, 1, 2} - waiting]
        for place, (worker, age) in enumerate(line):
            left = [one for one in line if one[0] != worker]
            after.append(tuple(left))  # it died
            if may_push([-one for one in ages], place, 0, bound):
                after.append(tuple((other, since + 1) for other, since in left))
                pushes.append((line, place, age))
        new += [one for one in after if one not in found]
        found.update(after)
    return found, pushes


@pytest.mark.parametrize("bound", [0, 1, 2, 3])
def test_no_push_is_more_stale_than_the_bound_and_some_are_as_stale(bound):
    _, pushes = schedules(bound)
    assert bound == max(age for _, _, age in pushes)


@pytest.mark.parametrize("bound", [0, 1, 2, 3])
def test_nobody_waits_for_ever(bound):
    """The oldest may always push, and with nobody before it a worker may pull."""
    found, pushes = schedules(bound)
    assert {line for line in found if line} == {line for line, place, _ in pushes if place == 0}
    assert may_pull(0, bound)


@pytest.mark.parametrize("bound", [0, 1, 2, 3])
def test_as_many_may_pull_at_once_as_can_push_one_after_another(bound):
    lines = [line for line in schedules(bound)[0] if all(age == 0 for _, age in line)]
    assert min(bound + 1, 3) == max(map(len, lines))


def worker(number, nonce="first"):
    return Caller(worker=f"worker {number}", nonce=nonce)


def gate_of(bound, num_workers=3):
    gate = Gate(bound)
    for number in range(num_workers):
        gate.register(worker(number))
    return gate


def push(gate, caller, pulled):
    with gate.push(caller, pulled):
        pass


def until_waiting(gate, num=1):
    """Return when so many threads wait at the gate."""
    deadline = time.monotonic() + SECONDS
    while len(gate._condition._waiters) < num:
        assert time.monotonic() < deadline
        os.sched_yield()


class Later:
    """A call in a thread that nobody waits for if it never ends."""

    def __init__(self, call, *args):
        self._outcome = Future()
        self._call, self._args = call, args
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        try:
            self._outcome.set_result(self._call(*self._args))
        except BaseException as error:  # noqa: BLE001 - of the thread that waits
            self._outcome.set_exception(error)

    def done(self):
        return self._outcome.done()

    def result(self):
        return self._outcome.result(SECONDS)


def test_a_pull_waits_for_the_push_before_it():
    gate = gate_of(0)
    pulled = gate.admit(worker(0))
    later = Later(gate.admit, worker(1))
    until_waiting(gate)
    push(gate, worker(0), pulled)
    assert 1 == later.result()


def test_a_push_waits_for_one_that_would_become_too_stale():
    gate = gate_of(1)
    oldest = gate.admit(worker(0))
    push(gate, worker(1), gate.admit(worker(1)))
    later = Later(push, gate, worker(1), gate.admit(worker(1)))
    until_waiting(gate)  # the oldest is 1 version stale already
    push(gate, worker(0), oldest)
    later.result()
    assert {0: 1, 1: 2} == gate.stats().staleness


@pytest.mark.parametrize("bound", [0, 1, 2, None])
def test_threads_keep_to_the_bound_and_come_to_an_end(bound):
    gate = gate_of(bound)

    def work(number):
        for _ in range(300):
            push(gate, worker(number), gate.admit(worker(number)))

    for done in [Later(work, number) for number in range(3)]:
        done.result()
    stats = gate.stats()
    assert (900, 900) == (stats.num_pulls, stats.num_pushes)
    assert 900 == sum(stats.staleness.values())
    assert bound is None or max(stats.staleness) <= bound


def test_a_worker_that_died_holds_nobody_up():
    gate = gate_of(0)
    gate.admit(worker(0))
    later = Later(gate.admit, worker(1))
    until_waiting(gate)
    gate.release("worker 0")
    assert 0 == later.result()


def test_a_pull_that_waits_is_refused_when_its_worker_dies():
    """Let in later, it would hold up all others for ever."""
    gate = gate_of(0)
    pulled = gate.admit(worker(0))
    later = Later(gate.admit, worker(1))
    until_waiting(gate)
    gate.release("worker 1")
    push(gate, worker(0), pulled)
    with pytest.raises(UsageError, match="process of it that was released"):
        later.result()
    assert 1 == gate.admit(worker(2))


def test_a_late_message_of_a_process_that_died_is_refused():
    gate = gate_of(0)
    gate.release("worker 0")
    gate.register(worker(0, "second"))
    with pytest.raises(UsageError, match="released"):
        gate.admit(worker(0, "first"))
    assert 0 == gate.admit(worker(0, "second"))


def test_release_waits_for_the_push_that_is_being_applied():
    gate = gate_of(None)
    with gate.push(worker(0), 0):
        later = Later(gate.release, "worker 0")
        until_waiting(gate)
        assert not later.done()
    later.result()
    assert 1 == gate.stats().num_pushes


def test_a_closure_without_a_push_holds_nobody_up():
    gate = gate_of(0)
    gate.admit(worker(0))
    gate.withdraw(worker(0))
    assert 0 == gate.admit(worker(1))


def test_a_second_pull_takes_the_place_of_the_first():
    gate = gate_of(0)
    assert [0, 0] == [gate.admit(worker(0)), gate.admit(worker(0))]


def test_a_process_that_is_no_worker_pulls_past_the_line_and_may_not_push():
    gate = gate_of(0)
    gate.admit(worker(0))
    coordinator = Caller(worker=None, nonce="coordinator")
    assert 0 == gate.admit(coordinator)
    with pytest.raises(UsageError, match="pull is outstanding.*no worker.*same closure"):
        push(gate, coordinator, 0)


def test_a_push_that_fails_does_not_count_and_frees_the_turn():
    gate = gate_of(0)
    pulled = gate.admit(worker(0))
    with pytest.raises(ZeroDivisionError), gate.push(worker(0), pulled):
        raise ZeroDivisionError
    assert 0 == gate.admit(worker(1))
    assert {} == gate.stats().staleness


def test_a_hold_keeps_pushes_back_until_its_end_or_its_workers_death():
    gate = gate_of(None)
    gate.hold(worker(1), "first")
    later = Later(push, gate, worker(0), 0)
    until_waiting(gate)
    gate.resume("first")
    later.result()
    gate.hold(worker(1), "second")
    later = Later(push, gate, worker(0), 0)
    until_waiting(gate)
    gate.release("worker 1")
    later.result()


@pytest.mark.parametrize("is_there", [False, True])
def test_a_hold_that_is_ended_before_it_begins_holds_nobody(is_there):
    """Ctrl-C ends a call that waits in the server, or is only on its way to it."""
    gate = gate_of(None)
    gate.hold(worker(1), "before")
    later = Later(gate.hold, worker(1), "ended") if is_there else None
    if later is not None:
        until_waiting(gate)
    gate.resume("ended")
    if later is None:
        gate.hold(worker(1), "ended")
    else:
        later.result()
    gate.resume("before")
    push(gate, worker(0), 0)
