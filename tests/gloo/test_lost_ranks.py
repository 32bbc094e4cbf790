"""A rank that is killed, leaves or takes another path, a killed loader process: named errors."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from itertools import islice

import pytest
from torch.utils.data import DataLoader

import torch_distinput as tdi
from tests.gloo.jobs import LONG_TIMEOUT, SOON, described, numbers
from torch_distinput.cluster.liveness import watch
from torch_distinput.cluster.store_join import StoreJoin
from torch_distinput.testing import run_ranks, run_ranks_outcomes


def die(how, strategy, victim=1):
    """A rank is killed in the middle; the others say how they end."""
    stream = partial(numbers, 100_000)
    options = tdi.InputOptions(timeout=LONG_TIMEOUT)
    dataset = strategy.distribute_dataset(stream, global_batch_size=6, options=options)
    steps = 0
    started = time.monotonic()
    try:
        for _ in dataset:
            steps += 1
            if steps == 5 and strategy.worker_index == victim:
                if how == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                return "left"
    except tdi.DistinputError as error:
        return type(error).__name__, str(error), time.monotonic() - started
    return "ended"


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_killed_rank_is_named(ranks):
    """Every survivor ends in an error that names it, in bounded time."""
    outcomes = run_ranks_outcomes(partial(die, "kill"), ranks)
    assert -signal.SIGKILL == outcomes[1].exitcode
    for survivor in (outcomes[0], *outcomes[2:]):
        kind, text, seconds = survivor.result
        assert "PeerFailedError" == kind
        assert "worker 1: its process has ended without an error" in text
        assert seconds < SOON


def die_among_many(victim, strategy):
    """The same where the ranks are so many that one reads the statuses of all."""
    before, watch.ALL_READ = watch.ALL_READ, 1
    try:
        return die("kill", strategy, victim)
    finally:
        watch.ALL_READ = before


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_is_named_where_one_watches_all(victim):
    """Be it the watcher, or another one."""
    outcomes = run_ranks_outcomes(partial(die_among_many, victim), 4)
    assert -signal.SIGKILL == outcomes.pop(victim).exitcode
    for survivor in outcomes:
        kind, text, seconds = survivor.result
        assert "PeerFailedError" == kind
        assert f"worker {victim}: its process has ended without an error" in text
        assert seconds < SOON


def die_with_all_texts(strategy):
    """Rank 1 comes last, and dies when it is to join what all have shown."""
    options = tdi.InputOptions(timeout=LONG_TIMEOUT, auto_shard_policy="off")
    dataset = strategy.distribute_dataset(range(8), global_batch_size=4, options=options)
    if strategy.worker_index == 1:
        store = strategy._session.communicator._meeting._store
        while not store.add("iteration 0/come", 0):  # rank 0 has shown its text, and is counted
            os.sched_yield()
        StoreJoin._join = lambda _: os._exit(3)
    started = time.monotonic()
    iterator = iter(dataset)
    steps = len(list(islice(iterator, 4)))
    with pytest.raises(tdi.PeerFailedError, match="worker 1 has ended without an error"):
        next(iterator)
    return steps, time.monotonic() - started


@pytest.mark.slow
def test_a_rank_that_dies_with_all_texts_keeps_nobody_waiting():
    """Another one joins them; under OFF each rank plays its eight examples, two at a time."""
    first, second = run_ranks_outcomes(die_with_all_texts, 2)
    assert 3 == second.exitcode
    steps, seconds = first.result
    assert 4 == steps
    assert seconds < SOON


def die_before_the_channel(strategy):
    """Rank 1 shakes hands and dies; the other one says how long it waited."""
    if strategy.worker_index == 1:
        strategy._session.communicator.open_channel = lambda **_: os._exit(3)
    options = tdi.InputOptions(timeout=LONG_TIMEOUT)
    dataset = strategy.distribute_dataset(partial(numbers, 9), global_batch_size=4, options=options)
    started = time.monotonic()
    with pytest.raises(tdi.PeerFailedError, match="worker 1: its process has ended"):
        iter(dataset)
    return time.monotonic() - started


@pytest.mark.slow
def test_a_rank_that_dies_before_the_channel_is_there():
    """The others do not wait for it."""
    first, second = run_ranks_outcomes(die_before_the_channel, 2)
    assert 3 == second.exitcode
    assert first.result < SOON


@pytest.mark.slow
def test_a_rank_that_leaves_its_loop_is_named():
    """``break`` on one rank only is an error on the others, not a hang."""
    outcomes = run_ranks(partial(die, "leave"), 3)
    assert "left" == outcomes[1]
    for kind, text, _ in (outcomes[0], outcomes[2]):
        assert "PeerFailedError" == kind
        assert "worker 1" in text


def other_path(strategy):
    """Rank 1 never iterates."""
    options = tdi.InputOptions(timeout=1)
    dataset = strategy.distribute_dataset(range(8), global_batch_size=4, options=options)
    if strategy.worker_index == 0:
        list(dataset)


@pytest.mark.slow
def test_a_rank_on_another_path_is_named():
    """The handshake has a limit and names who did not come."""
    first, second = run_ranks_outcomes(other_path, 2)
    assert "PeerTimeoutError" in described(first)
    assert "worker 1 did not come" in described(first)
    assert second.error is None


# Torch raises it wherever the main thread is: as a rule while it waits for a result.
LOST = "The loader processes did not deliver|DataLoader worker .* killed"


def kill_loader(strategy):
    """A loader process dies: nothing may vanish silently."""

    class Deadly:
        def __init__(self, count=64):
            self.count = count

        def __len__(self):
            return self.count

        def __getitem__(self, index):
            if index == 40:
                os.kill(os.getpid(), signal.SIGKILL)
            return index

    dataset = strategy.distribute_dataset(Deadly(), global_batch_size=4, num_workers=2)
    iterator = iter(dataset)
    with pytest.raises((tdi.SourceError, RuntimeError), match=LOST):
        list(iterator)
    with pytest.raises((tdi.SourceError, RuntimeError)):  # not an end of data
        next(iterator)
    good = DataLoader(
        Deadly(40), batch_size=4, num_workers=1, persistent_workers=True, timeout=60
    )
    with iter(strategy.distribute_dataset(good)) as alive:
        assert [0, 1, 2, 3] == next(alive).tolist()
    bad = DataLoader(Deadly(64), batch_size=4, num_workers=1, persistent_workers=True)
    dataset = strategy.distribute_dataset(bad)
    for _ in range(2):  # processes that persist are started anew after a loss
        with pytest.raises((tdi.SourceError, RuntimeError), match=LOST):
            list(dataset)
    return True


@pytest.mark.slow
def test_a_killed_loader_process_is_an_error():
    """On the rank that lost it; the error stays an error."""
    assert [True] == run_ranks(kill_loader, 1)
