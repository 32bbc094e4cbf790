"""How the ranks of a channel are connected, and what they hear when one of them is gone."""

from __future__ import annotations

import math
import os
import threading
import time
from functools import partial

import pytest
import torch.distributed as dist

import torch_distinput as tdi
from tests.conftest import LONG
from tests.gloo.jobs import LONG_TIMEOUT, SOON, numbers
from torch_distinput.cluster.channels.gather import plan_rounds
from torch_distinput.cluster.channels.gloo_backend import GlooBackend
from torch_distinput.cluster.channels.vote_channels import VoteConnections
from torch_distinput.communicator import ChannelBrokenError
from torch_distinput.testing import run_ranks, run_ranks_outcomes

SIZE = 5
LARGE = 1 << 20


def open_alone(size, timeout=1.0):
    """One rank, to which nobody has connected yet."""
    GlooBackend(dist.HashStore(), 0, size, timeout=timeout).close()


@pytest.mark.parametrize("names", [None, "", "lo", "lo,lo"])
def test_who_opens_connections_waits_for_nobody(monkeypatch, names):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    if names is not None:
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", names)
    open_alone(4)


def test_a_timeout_may_be_endless():
    open_alone(4, timeout=math.inf)


def test_the_network_is_that_of_the_environment(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere")
    with pytest.raises(ChannelBrokenError, match="nowhere"):
        open_alone(4)


def use_two_channels(strategy):
    """Gather on both at a time, in two threads."""
    communicator = strategy._session.communicator
    channels = [communicator.open_channel(timeout=SOON) for _ in range(2)]
    rank = strategy.worker_index
    found = {}

    def gather(number):
        for _ in range(4):
            found[number] = channels[number].gather_objects((number, "x" * rank * LARGE))

    threads = [threading.Thread(target=gather, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3, SIZE])
def test_channels_of_two_datasets_do_not_meet(size):
    """Each rank gets the values of all, in worker order; also what no socket takes at once."""
    expected = {
        number: [(number, "x" * rank * LARGE) for rank in range(size)] for number in (0, 1)
    }
    assert [expected] * size == run_ranks(use_two_channels, size)


def die(victim, at, strategy):
    """One rank is killed before one of its sends of the first vote; how the others end."""
    if strategy.worker_index == victim:
        send, left = VoteConnections.send, [len(list(plan_rounds(0, SIZE))) + at]

        def send_or_die(*args):
            left[0] -= 1
            if left[0] < 0:
                os._exit(3)
            return send(*args)

        VoteConnections.send = send_or_die
    options = tdi.InputOptions(timeout=LONG_TIMEOUT)
    stream = partial(numbers, 100_000)
    dataset = strategy.distribute_dataset(stream, global_batch_size=SIZE, options=options)
    started = time.monotonic()
    with pytest.raises(tdi.PeerFailedError) as got:
        for _ in dataset:
            pass
    return str(got.value), time.monotonic() - started


DEATHS = [(victim, at) for victim in range(SIZE) for at in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "at"), DEATHS if LONG else DEATHS[1::6])
def test_a_rank_that_dies_in_a_round_is_named_and_not_its_neighbour(victim, at):
    outcomes = run_ranks_outcomes(partial(die, victim, at), SIZE)
    assert 3 == outcomes.pop(victim).exitcode
    for outcome in outcomes:
        words, seconds = outcome.result
        assert f"worker {victim}: its process has ended without an error" in words
        assert seconds < SOON


def die_before_it_connects(strategy):
    """Rank 1 has come to where all meet, and dies; how long the other one waits."""
    if strategy.worker_index == 1:
        VoteConnections.__init__ = lambda *_, **__: os._exit(3)
    started = time.monotonic()
    options = tdi.InputOptions(timeout=LONG_TIMEOUT)
    dataset = strategy.distribute_dataset(partial(numbers, 9), global_batch_size=4, options=options)
    with pytest.raises(tdi.PeerFailedError, match="worker 1: its process has ended"):
        iter(dataset)
    return time.monotonic() - started


@pytest.mark.slow
def test_a_rank_that_dies_before_it_connects_keeps_nobody_waiting():
    first, second = run_ranks_outcomes(die_before_it_connects, 2)
    assert 3 == second.exitcode
    assert first.result < SOON


def leave_a_vote(strategy):
    """Rank 0 votes alone, until its thread is freed."""
    channel = strategy._session.communicator.open_channel(timeout=SOON)
    if strategy.worker_index == 0:
        freed = []

        def vote():
            with pytest.raises(ChannelBrokenError):
                channel.gather_objects(1)
            freed.append(True)

        thread = threading.Thread(target=vote)
        thread.start()
        while not any(peer._is_read for peer in channel._connections._peers.values()):
            os.sched_yield()
        channel.abandon()
        thread.join(SOON)
        assert freed
    strategy.reduce("sum", 1)  # nobody leaves before
    return True


def test_a_vote_that_is_given_up_frees_its_thread():
    assert [True] * 3 == run_ranks(leave_a_vote, 3)
