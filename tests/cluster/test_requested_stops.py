"""Requests to stop, over whole strategies: all workers stop at one step."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from itertools import islice

import pytest

import torch_distinput as tdi
from tests.distribute.street import options, stream_of
from torch_distinput.testing import simulate

LIMIT = 60.0


@pytest.mark.slow
@pytest.mark.parametrize("coupled", [True, False])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_request_reaches_all_workers(workers, known, coupled):
    """At the same step, over several datasets and epochs, before or after the first iter()."""
    source = range(40) if known else stream_of(range(40))

    def work(strategy):
        dataset = strategy.distribute_dataset(source, global_batch_size=4)
        steps = 0
        for _ in range(200):
            for _ in dataset:
                steps += 1
                if coupled:
                    strategy.reduce("sum", 1)
                if steps == 7 and strategy.worker_index == workers - 1:
                    strategy.request_stop()
                if strategy.stop_requested:
                    return steps
        return None

    steps = simulate(work, num_workers=workers)
    assert 1 == len(set(steps))
    assert steps[0] is not None
    assert steps[0] >= 7


def test_a_request_before_the_first_step():
    """It is seen after the first step; alone, at once."""

    def work(strategy):
        strategy.request_stop()
        if strategy.num_workers == 1:
            assert strategy.stop_requested
        for number, _ in enumerate(strategy.distribute_dataset(range(400), global_batch_size=1)):
            if strategy.stop_requested:
                return number
        return None

    assert [0] == simulate(work, num_workers=1)
    first, second = simulate(work, num_workers=2)
    assert first == second
    assert first is not None


def leave_at_different_steps(strategy, **keywords):
    """A dataset to play, after each worker has left an epoch of it at a step of its own."""
    dataset = strategy.distribute_dataset(range(3000), global_batch_size=3, **keywords)
    state = dataset.state_dict()
    for step, _ in enumerate(dataset):
        if step == 4 * strategy.worker_index:
            break
    dataset.load_state_dict(state)
    return dataset


@pytest.mark.slow
def test_workers_that_left_an_epoch_at_different_steps_stop_at_one():
    """Each iteration begins with one count of all workers, whatever they delivered before."""

    def work(strategy):
        for step, _ in enumerate(leave_at_different_steps(strategy)):
            strategy.reduce("sum", 1)
            if step == 5 and strategy.worker_index == 1:
                strategy.request_stop()
            if strategy.stop_requested:
                return step
        return None

    first, second = simulate(work, num_workers=2)
    assert first is not None
    assert first == second


class Broken:
    """The second half of 40 batches cannot be read by one of two workers."""

    def __len__(self):
        return 160

    def __getitem__(self, index):
        if index >= 80 and index % 4 > 1:
            raise ArithmeticError
        return index


@pytest.mark.slow
def test_an_error_that_all_have_caught_leaves_one_count():
    """In a loop inside, of which they have had different numbers of steps."""

    def work(strategy):
        training = strategy.distribute_dataset(range(9000), global_batch_size=3)
        evaluation = strategy.distribute_dataset(
            Broken(), global_batch_size=4, options=options(timeout=LIMIT)
        )
        inner = None
        for step, _ in enumerate(training):
            strategy.reduce("sum", 1)
            if step == 2:
                with pytest.raises((tdi.SourceError, tdi.PeerFailedError)):
                    for inner, _ in enumerate(evaluation):  # noqa: B007
                        pass
            if step == 5 and strategy.worker_index == 1:
                strategy.request_stop()
            if strategy.stop_requested:
                return inner, step
        return None

    (first_inner, first), (second_inner, second) = simulate(work, num_workers=2)
    assert first_inner != second_inner
    assert first == second


def test_a_loop_that_is_tried_again_and_again_stops():
    """Though the request is due in steps that no attempt reaches."""

    def work(strategy):
        broken = strategy.distribute_dataset(Broken(), global_batch_size=4)
        for attempt in range(6):
            with suppress(tdi.SourceError, tdi.PeerFailedError):
                for step, _ in enumerate(broken):
                    if (attempt, step) == (0, 15) and strategy.worker_index == 1:
                        strategy.request_stop()
                    if strategy.stop_requested:
                        return attempt
            broken.set_epoch(0)
        return "never"

    first, second = simulate(work, num_workers=2)
    assert first == second != "never"


def test_a_request_is_not_forgotten_by_an_error():
    strategy = tdi.OneDeviceStrategy("cpu")
    with pytest.raises(tdi.SourceError):
        for _ in strategy.distribute_dataset(Broken(), global_batch_size=4):
            strategy.request_stop()
    assert strategy.stop_requested


def test_who_has_left_after_the_end_of_data_has_left_nobody_alone():
    """Though another worker has delivered more steps before."""
    gone = threading.Event()

    def work(strategy):
        iterator = iter(leave_at_different_steps(strategy, options=options(timeout=LIMIT)))
        next(iterator)
        if strategy.worker_index == 0:
            assert 999 == sum(1 for _ in islice(iterator, 999))  # at the end it would wait
            strategy._session.heartbeat.close()
            gone.set()
            return 1000
        assert gone.wait(LIMIT)
        while strategy._session.heartbeat.peers.heard.steps_of_left == {}:
            strategy._session.heartbeat.listen()
        return 1 + sum(1 for _ in iterator)

    assert [1000, 1000] == simulate(work, num_workers=2)


@pytest.mark.slow
def test_who_has_left_need_not_answer():
    """A worker that ended in order takes no part; the others stop together."""
    gone = threading.Event()

    def work(strategy):
        limits = options(timeout=LIMIT)
        # It takes several times as long to sleep in each step as to hear of a request.
        dataset = strategy.distribute_dataset(range(15_000), global_batch_size=3, options=limits)
        iterator = iter(dataset)
        next(iterator)
        if strategy.worker_index == 1:
            assert 4999 == sum(1 for _ in islice(iterator, 4999))  # at the end it would wait
            strategy._session.heartbeat.close()
            gone.set()
            return None
        assert gone.wait(LIMIT)
        if strategy.worker_index == 0:
            strategy.request_stop()
        for _ in iterator:
            time.sleep(0.001)  # nothing is waited for: a thread of the same interpreter gets a turn
            if strategy.stop_requested:
                return iterator.last_step.index
        return "never"

    first, left, third = simulate(work, num_workers=3)
    assert left is None
    assert first == third
    assert first != "never"


@pytest.mark.slow
def test_a_worker_that_does_not_answer_is_named():
    """The wait for the votes has the limit of every wait."""

    def work(strategy):
        if strategy.worker_index == 1:
            strategy._session.heartbeat.stop.hear = lambda votes: None
        limits = options(timeout=2)
        dataset = strategy.distribute_dataset(range(100_000), global_batch_size=2, options=limits)
        iterator = iter(dataset)
        next(iterator)
        if strategy.worker_index == 0:
            strategy.request_stop()
            with pytest.raises(tdi.PeerTimeoutError, match="agree where to stop.*worker 1") as got:
                for _ in iterator:
                    pass
            asked.set()
            assert (1,) == got.value.workers
        else:
            assert asked.wait(LIMIT)

    asked = threading.Event()
    simulate(work, num_workers=2)


def test_signals_belong_to_the_main_thread():
    def work(strategy):
        with pytest.raises(tdi.UsageError, match="request_stop"):
            strategy.stop_on_signal()

    simulate(work, num_workers=1)


def test_a_second_request_changes_nothing():
    """Also of a single worker, and at the end of the data."""
    strategy = tdi.OneDeviceStrategy("cpu")

    def numbers():
        for number in range(8):
            if number == 3:
                strategy.request_stop()
            yield number
        strategy.request_stop()

    dataset = strategy.distribute_dataset(numbers, global_batch_size=2)
    assert [False, True, True, True] == [strategy.stop_requested for _ in dataset]
    assert strategy.stop_requested
