"""Everybody's bytes to everybody: all numbers of workers, and each worker dying in each round."""

from __future__ import annotations

import queue
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_distinput.cluster.channels.gather import find_neighbours, gather, plan_rounds

SIZES = range(1, 34)
GONE = object()
LIMIT = 30.0
LENGTH, LENGTH_BYTES = 3, 8


class BrokenError(Exception):
    """What a transport raises."""


class Wire:
    """A queue from each worker to each other one; who leaves closes its own."""

    def __init__(self, size):
        self.size = size
        self.queues = {(a, b): queue.SimpleQueue() for a in range(size) for b in range(size)}

    def leave(self, worker):
        for other in range(self.size):
            self.queues[worker, other].put(GONE)


class Pretended:
    """One worker's transport, which dies before its send of the round ``dies_at``."""

    def __init__(self, wire, rank, dies_at=None):
        self.wire, self.rank, self.dies_at = wire, rank, dies_at
        self.sent = []

    def send(self, message, to):
        if len(self.sent) == self.dies_at:
            raise BrokenError
        self.sent.append(len(message))
        self.wire.queues[self.rank, to].put(message)

    def receive(self, source):
        received = self.wire.queues[source, self.rank].get(timeout=LIMIT)
        if received is GONE:
            raise BrokenError
        return received


def play(parts, *, victim=None, dies_at=None):
    """What each worker gets: all parts, or None where it breaks off; and what it has sent."""
    size = len(parts)
    wire, results = Wire(size), [None] * size
    transports = [
        Pretended(wire, rank, dies_at if rank == victim else None) for rank in range(size)
    ]

    def work(rank):
        try:
            results[rank] = gather(transports[rank], rank, size, parts[rank])
        except BrokenError:
            wire.leave(rank)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert not any(thread.is_alive() for thread in threads)
    return results, [transport.sent for transport in transports]


def numbered(size):
    return [bytes([rank]) * LENGTH for rank in range(size)]


@pytest.mark.parametrize("size", SIZES)
def test_all_workers_get_all_bytes_in_worker_order_after_so_many_rounds_as_digits(size):
    parts = numbered(size)
    results, sent = play(parts)
    assert [parts] * size == results
    assert {(size - 1).bit_length()} == set(map(len, sent))
    assert {(LENGTH + LENGTH_BYTES) * (size - 1)} == set(map(sum, sent))


@pytest.mark.slow
@given(st.lists(st.binary(max_size=9), min_size=1, max_size=9))
def test_workers_may_have_different_numbers_of_bytes(parts):
    assert [parts] * len(parts) == play(parts)[0]


@pytest.mark.parametrize("size", SIZES)
def test_a_worker_that_dies_in_a_round_leaves_nobody_with_wrong_bytes_or_waiting(size):
    """Some have all bytes by then; all others break off, since who breaks off leaves too."""
    parts = numbered(size)
    for victim in (0, size // 2, size - 1):
        for dies_at in range((size - 1).bit_length()):
            results, _ = play(parts, victim=victim, dies_at=dies_at)
            assert results[victim] is None
            assert all(result in (parts, None) for result in results)
            if not dies_at:  # nobody else has its bytes
                assert [None] * size == results


@pytest.mark.parametrize("size", [*SIZES, 1000, 1024, 16_384])
def test_the_neighbours_are_few_and_know_each_other(size):
    digits = (size - 1).bit_length()
    for rank in {0, 1, size // 3, size - 1} & set(range(size)):
        neighbours = find_neighbours(rank, size)
        assert len(neighbours) <= 2 * digits
        assert rank not in neighbours
        assert all(rank in find_neighbours(other, size) for other in neighbours)


@pytest.mark.parametrize("size", SIZES)
def test_who_is_sent_to_receives_as_much_in_the_same_round(size):
    plans = [list(plan_rounds(rank, size)) for rank in range(size)]
    for rank, plan in enumerate(plans):
        for number, one in enumerate(plan):
            other = plans[one.to][number]
            assert (rank, one.added, one.start) == (other.source, other.added, other.start)
