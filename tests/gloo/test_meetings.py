"""A worker that will not come to where all meet is named at once, with its words."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

import torch_distinput as tdi
from tests.gloo.jobs import LONG_TIMEOUT, SOON
from torch_distinput.testing import run_ranks, run_ranks_outcomes, simulate


class Rotten:
    """Examples of which the last one raises on one worker."""

    def __init__(self, is_rotten):
        self.is_rotten = is_rotten

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if self.is_rotten and index == 7:
            msg = "rotten record"
            raise ArithmeticError(msg)
        return torch.tensor(index)


def stream():
    yield from map(torch.tensor, range(8))


def play(place, strategy):
    """Two epochs, of which worker 1 does not come to the second; what worker 0 hears, and when."""
    is_victim = strategy.worker_index == 1
    source = {"source": Rotten(is_victim), "audit": range(8)}.get(place, stream)
    options = tdi.InputOptions(timeout=LONG_TIMEOUT, audit=place == "audit")
    dataset = strategy.distribute_dataset(source, global_batch_size=4, options=options)
    began = time.monotonic()
    try:
        iterator = iter(dataset)
        for _ in range(2):
            next(iterator)
            began = time.monotonic()
        if is_victim and place in {"last step", "audit"}:
            msg = "rotten record"
            raise ArithmeticError(msg)
        assert next(iterator, None) is None
        if is_victim and place == "between epochs":
            msg = "rotten record"
            raise ArithmeticError(msg)
        if is_victim and place == "exit":
            os._exit(3)
        if is_victim and place == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if is_victim and place == "return":
            return None
        began = time.monotonic()
        next(iter(dataset))
    except tdi.PeerFailedError as error:
        return str(error), time.monotonic() - began
    return "played on", 0.0


class Interrupted:
    """A sampler that is interrupted on one worker, when it is asked for its order."""

    def __init__(self, is_interrupted):
        self.is_interrupted = is_interrupted

    def __len__(self):
        return 8

    def __iter__(self):
        if self.is_interrupted:
            raise KeyboardInterrupt
        return iter(range(8))


@pytest.mark.slow
def test_an_interrupt_before_the_handshake_is_heard_though_the_worker_stays():
    heard = threading.Event()

    def work(strategy):
        sampler = Interrupted(strategy.worker_index == 1)
        loader = torch.utils.data.DataLoader(range(8), sampler=sampler, batch_size=4)
        options = tdi.InputOptions(timeout=LONG_TIMEOUT)
        dataset = strategy.distribute_dataset(loader, options=options)
        if strategy.worker_index == 1:
            with pytest.raises(KeyboardInterrupt):
                iter(dataset)
            return heard.wait(SOON)
        with pytest.raises(tdi.PeerFailedError, match="worker 1: it failed.*KeyboardInterrupt"):
            iter(dataset)
        heard.set()
        return True

    assert [True, True] == simulate(work, num_workers=2)


PLACES = ["last step", "source", "between epochs", "audit"]


@pytest.mark.parametrize("place", PLACES)
def test_a_worker_that_raises_is_heard_at_the_next_call(place):
    """Not when the time is up: in the simulation, where the error is in the one process."""
    heard = []
    with pytest.raises((ArithmeticError, tdi.SourceError), match="rotten record"):
        simulate(lambda strategy: heard.append(play(place, strategy)), num_workers=2)
    ((words, seconds),) = heard
    assert "worker 1" in words
    assert "ArithmeticError" in words
    assert "rotten record" in words
    assert seconds < SOON


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_a_rank_that_raises_is_heard_at_the_next_call(place):
    first, second = run_ranks_outcomes(partial(play, place), 2)
    assert isinstance(second.error, ArithmeticError | tdi.SourceError)
    words, seconds = first.result
    assert "worker 1" in words
    assert "ArithmeticError" in words
    assert "rotten record" in words
    assert seconds < SOON


@pytest.mark.slow
@pytest.mark.parametrize("place", ["exit", "kill", "return"])
def test_a_rank_that_ends_without_a_word_is_heard_at_the_next_call(place):
    first, _ = run_ranks_outcomes(partial(play, place), 2)
    words, seconds = first.result
    assert "worker 1 will not come" in words
    assert ("left after 2 steps" if place == "return" else "its process has ended") in words
    assert seconds < SOON


class Alternating:
    """Whole numbers for one worker and fractions for the other."""

    def __len__(self):
        return 10**7

    def __getitem__(self, index):
        return index + 0.5 if index % 2 else index


def play_until_told(strategy):
    options = tdi.InputOptions(timeout=LONG_TIMEOUT)
    dataset = strategy.distribute_dataset(Alternating(), global_batch_size=2, options=options)
    for _ in dataset:
        pass


@pytest.mark.slow
def test_ranks_whose_first_batches_are_of_other_types_name_each_other():
    """The one that comes later says it, and the other hears of it."""
    errors = [outcome.error for outcome in run_ranks_outcomes(play_until_told, 2)]
    assert {tdi.MismatchError, tdi.PeerFailedError} == set(map(type, errors))
    for error in errors:
        for words in ("int64", "float64", "worker 0", "worker 1"):
            assert words in str(error)


def count_keys(strategy):
    store = torch.distributed.distributed_c10d._get_default_store()
    dataset = strategy.distribute_dataset(torch.arange(2), global_batch_size=2)
    counts = []
    for _ in range(90):
        for _ in dataset:
            pass
        counts.append(store.num_keys())
    return counts[70], counts[-1]


@pytest.mark.slow
def test_what_ranks_show_of_their_first_batches_does_not_pile_up():
    """It is deleted after a while; some keys come and go with the phase of an epoch."""
    for earlier, later in run_ranks(count_keys, 2):
        assert later - earlier < 10


class RottenLater(Rotten):
    """It raises when the other worker has delivered its last step."""

    def __getitem__(self, index):
        if self.is_rotten and index == 7:
            torch.distributed.distributed_c10d._get_default_store().wait(["delivered"])
        return super().__getitem__(index)


def play_to_the_end(strategy, *, is_rotten=None):
    """Of two ranks the second one fails, when the first one has delivered all steps."""
    source = RottenLater(strategy.worker_index == 1 if is_rotten is None else is_rotten)
    for number, _ in enumerate(strategy.distribute_dataset(source, global_batch_size=4), 1):
        if number == 2:
            torch.distributed.distributed_c10d._get_default_store().set("delivered", "")


@pytest.mark.slow
def test_a_rank_that_is_ahead_does_not_end_before_another_fails():
    """Though nobody asks the others in an epoch whose length is known."""
    errors = [outcome.error for outcome in run_ranks_outcomes(play_to_the_end, 2)]
    assert [tdi.PeerFailedError, tdi.SourceError] == list(map(type, errors))
    assert "rotten record" in str(errors[0])


def zip_to_the_end(strategy):
    """The same where another loop ends first, in which nobody fails."""
    source = RottenLater(strategy.worker_index == 1)
    failing = strategy.distribute_dataset(source, global_batch_size=4)
    fine = strategy.distribute_dataset(torch.arange(4), global_batch_size=4)
    for _ in zip(failing, fine, strict=False):
        torch.distributed.distributed_c10d._get_default_store().set("delivered", "")


@pytest.mark.slow
def test_nor_does_one_that_zips_what_fails_with_what_does_not():
    """Rank 0 has had the second step of the one when the other has no second step."""
    errors = [outcome.error for outcome in run_ranks_outcomes(zip_to_the_end, 2)]
    assert [tdi.PeerFailedError, tdi.SourceError] == list(map(type, errors))
    assert "rotten record" in str(errors[0])


def go_on_after_a_failure(strategy):
    """Rank 0 holds the loop that rank 1 failed in, and both play another one."""
    source = Rotten(strategy.worker_index == 1)
    held = iter(strategy.distribute_dataset(source, global_batch_size=4))
    next(held)
    if strategy.worker_index == 1:
        with pytest.raises(tdi.SourceError):
            list(held)
    num_steps = 0
    for _ in strategy.distribute_dataset(torch.arange(8), global_batch_size=4):
        num_steps += 1
        strategy._session.heartbeat.listen()
    return num_steps


def go_on_after_a_start_that_fails(strategy):
    """Inside of a loop another one does not begin, on both ranks, which go on without it."""
    num_steps = 0
    for _ in strategy.distribute_dataset(torch.arange(8), global_batch_size=4):
        num_steps += 1
        differing = torch.arange(8) + 100 * strategy.worker_index
        with pytest.raises(tdi.MismatchError):
            iter(strategy.distribute_dataset([*differing], global_batch_size=4))
        strategy._session.heartbeat.listen()
    return num_steps


@pytest.mark.slow
@pytest.mark.parametrize("work", [go_on_after_a_failure, go_on_after_a_start_that_fails])
def test_a_failure_that_all_have_gone_on_from_ends_no_other_loop(work):
    assert [2, 2] == run_ranks(work, 2)


def play_to_the_end_on_a_mesh(strategy):
    """The same where both ranks get the same, and each reads for itself."""
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    alike = tdi.MultiWorkerMirroredStrategy(["cpu"], device_mesh=mesh)
    play_to_the_end(alike, is_rotten=strategy.worker_index == 1)


@pytest.mark.slow
def test_nor_does_one_that_shares_its_data():
    errors = [outcome.error for outcome in run_ranks_outcomes(play_to_the_end_on_a_mesh, 2)]
    assert [tdi.PeerFailedError, tdi.SourceError] == list(map(type, errors))


def meet_in_two_threads(strategy):
    """A thread of rank 0 waits at a topic while both ranks come to others."""
    communicator, found = strategy._session.communicator, []

    def come():
        found.append(communicator.join("early", "x", "".join, timeout=LONG_TIMEOUT))

    early = threading.Thread(target=come)
    if strategy.worker_index == 0:
        early.start()
        while not communicator._meeting._store.add("early/come", 0):
            os.sched_yield()
    for topic in "abcd":
        communicator.join(topic, "", "".join, timeout=LONG_TIMEOUT)
    if strategy.worker_index == 1:
        early.start()
    early.join(LONG_TIMEOUT)
    return found


def test_what_a_thread_waits_for_is_not_deleted_by_another():
    assert [["xx"]] * 2 == run_ranks(meet_in_two_threads, 2)
