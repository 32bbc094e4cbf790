"""Closures that pull several parameters with a bound, and would wait for each other for ever."""

from __future__ import annotations

import os
import random
import threading
import time

import pytest

from tests.coordinator.test_staleness import SECONDS, Later, push, until_waiting, worker
from torch_distinput.coordinator.parameters.gate import Gate, Gates
from torch_distinput.errors import UsageError


def gates_of(*bounds, num_workers=4):
    shared = Gates()
    made = [Gate(bound, shared) for bound in bounds]
    for gate in made:
        for number in range(num_workers):
            gate.register(worker(number))
    return made


def test_pulls_in_opposite_order_are_refused_once():
    """The other one goes on when the closure of the first has ended."""
    first, second = gates_of(0, 0)
    first.admit(worker(0))
    second.admit(worker(1))
    waiting = Later(second.admit, worker(0))
    until_waiting(first)
    with pytest.raises(UsageError, match=r"got 2 that wait for each other \(worker 0, worker 1\)"):
        first.admit(worker(1))
    second.withdraw(worker(1))
    assert 0 == waiting.result()


def test_the_same_order_does_not_help_where_a_push_waits():
    """All pull the first before the second."""
    first, second = gates_of(1, 0)
    first.admit(worker(0))
    push(first, worker(1), first.admit(worker(1)))  # worker 0 is now as stale as it may be
    pulled = first.admit(worker(2))
    second.admit(worker(2))
    waiting = Later(second.admit, worker(0))
    until_waiting(first)
    with pytest.raises(UsageError, match=r"got 2 .*\(worker 0, worker 2\)"):
        push(first, worker(2), pulled)
    second.withdraw(worker(2))
    assert 0 == waiting.result()


def test_those_that_wait_already_hear_of_one_that_closes_the_ring():
    """It keeps nothing at other gates, and so does not look there."""
    first, second = gates_of(1, 0)
    first.admit(worker(0))
    push(first, worker(1), first.admit(worker(1)))  # worker 0 is now as stale as it may be
    pulled = first.admit(worker(2))
    second.admit(worker(3))
    waiting = {3: Later(first.admit, worker(3)), 0: Later(second.admit, worker(0))}
    until_waiting(first, 2)
    assert [False, False] == [one.done() for one in waiting.values()]
    closing = Later(push, first, worker(2), pulled)
    deadline = time.monotonic() + SECONDS
    while not any(one.done() for one in waiting.values()):
        assert time.monotonic() < deadline
        os.sched_yield()
    (refused,) = [number for number, one in waiting.items() if one.done()]
    with pytest.raises(UsageError, match="got 3 that wait for each other"):
        waiting.pop(refused).result()
    for gate in (first, second):
        gate.withdraw(worker(refused))
    (other,) = waiting
    if other == 0:  # it has both now, and lets go of what the push waits for
        waiting[0].result()
        first.withdraw(worker(0))
    closing.result()
    waiting[other].result()


def test_three_in_a_ring_are_refused():
    first, second, third = gates_of(0, 0, 0)
    for number, gate in enumerate((first, second, third)):
        gate.admit(worker(number))
    waiting = [Later(second.admit, worker(0)), Later(third.admit, worker(1))]
    until_waiting(first, 2)
    with pytest.raises(UsageError, match="got 3 that wait for each other"):
        first.admit(worker(2))
    third.withdraw(worker(2))
    assert 0 == waiting[1].result()
    second.withdraw(worker(1))
    assert 0 == waiting[0].result()


def test_who_waits_for_one_that_computes_goes_on():
    first, second = gates_of(0, 0)
    first.admit(worker(0))
    pulled = second.admit(worker(1))
    waiting = Later(second.admit, worker(0))
    until_waiting(first)
    behind = Later(first.admit, worker(2))
    until_waiting(first, 2)
    push(second, worker(1), pulled)
    assert 1 == waiting.result()
    first.withdraw(worker(0))
    assert 0 == behind.result()


def test_parameters_without_a_bound_hold_nobody_up():
    first, second = gates_of(0, None)
    first.admit(worker(0))
    second.admit(worker(1))
    second.admit(worker(0))
    waiting = Later(first.admit, worker(1))
    until_waiting(first)
    first.withdraw(worker(0))
    assert 0 == waiting.result()


@pytest.mark.parametrize("bounds", [(0, 0), (1, 0), (1, 1, 0), (2, 1)])
def test_whatever_the_order_all_come_to_an_end(bounds):
    """Each closure that is refused lets go of its pulls, as one that raises does, and goes on."""
    gates = gates_of(*bounds)
    refused = threading.Semaphore(0)

    def work(number):
        rng = random.Random(number)
        for _ in range(100):
            order = rng.sample(gates, len(gates))
            try:
                pulled = [(gate, gate.admit(worker(number))) for gate in order]
                for gate, version in rng.sample(pulled, len(pulled)):
                    push(gate, worker(number), version)
            except UsageError:
                refused.release()
                for gate in gates:
                    gate.withdraw(worker(number))

    for done in [Later(work, number) for number in range(4)]:
        done.result()
    for gate, bound in zip(gates, bounds, strict=True):
        stats = gate.stats()
        assert max(stats.staleness) <= bound
        assert stats.num_pushes > 0


def test_a_call_that_is_to_be_refused_is_in_nobodys_way():
    """Worker 2 died while its push waited; its call has not woken up when another one looks."""
    first, _ = gates_of(1, 0)
    first.admit(worker(0))
    push(first, worker(1), first.admit(worker(1)))  # worker 0 is now as stale as it may be
    pulled = first.admit(worker(2))
    waiting = Later(push, first, worker(2), pulled)
    until_waiting(first)
    with first._condition:  # nobody wakes up before all of this is done
        first._registered.pop("worker 2")
        first._line = [pull for pull in first._line if pull.caller != worker(2)]
        first._condition.notify_all()
        assert set() == first._gates.calls.find_stuck()
    with pytest.raises(UsageError, match="released"):
        waiting.result()
