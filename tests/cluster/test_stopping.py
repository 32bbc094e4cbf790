"""The protocol of the coordinated stop, in every order in which two threads may do its parts."""

from __future__ import annotations

import threading
import time
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

import torch_distinput as tdi
from tests.distribute.street import options, stream_of
from torch_distinput.cluster.liveness.coordinated_stop import CoordinatedStop
from torch_distinput.testing import simulate

LIMIT = 60.0


class Torn(CoordinatedStop):
    """A stop whose other thread comes in between: after a claim, and before it is read."""

    come_in = None
    _claimed = 0

    @property
    def claimed(self):
        claimed = self._claimed
        self._interrupt("read")
        return claimed

    @claimed.setter
    def claimed(self, step):
        self._claimed = step
        self._interrupt("claimed")

    def _interrupt(self, where):
        come_in, self.come_in = self.come_in, None
        if come_in is not None:
            come_in(where)


class Job:
    """Workers whose threads do one part at a time; ``coupled`` by a collective in each step."""

    def __init__(self, size, *, coupled):
        self.stops = [Torn() for _ in range(size)]
        self.votes = [None] * size
        self.has_claimed = [False] * size
        self.first_seen = [None] * size
        self.coupled = coupled

    def main(self, worker):
        """Up to the next step, and the user's look at the flag."""
        stop = self.stops[worker]
        others = [other.delivered for other in self.stops]
        if self.coupled and stop.delivered > min(others):
            return  # inside the collective of its last step
        if not self.has_claimed[worker]:
            self.has_claimed[worker] = True
            may_go = stop.claim()
        else:
            may_go = stop.may_go()
        if not may_go:
            return
        self.has_claimed[worker] = False
        stop.delivered += 1
        if stop.is_due and self.first_seen[worker] is None:
            self.first_seen[worker] = stop.delivered
        assert stop.is_due == (self.first_seen[worker] is not None)

    def heart(self, worker):
        """Hear the votes of the others and post the own one."""
        self.stops[worker].hear([v for w, v in enumerate(self.votes) if w != worker])
        self.votes[worker] = self.stops[worker].vote


@given(st.integers(2, 4), st.booleans(), st.data())
def test_all_workers_stop_at_one_step(size, coupled, data):
    """Whatever the order of the threads, the requests, and the collectives between the steps."""
    job = Job(size, coupled=coupled)
    parts = st.tuples(
        st.sampled_from(["main", "main", "heart", "torn main", "torn heart", "request"]),
        st.integers(0, size - 1),
    )
    for part, worker in data.draw(st.lists(parts, max_size=40)):
        stop = job.stops[worker]
        if part == "request":
            stop.is_requested = True
        elif part == "torn main":  # the heart comes in between the claim and the look
            stop.come_in = lambda where, w=worker: job.heart(w) if where == "claimed" else None
            job.main(worker)
        elif part == "torn heart":  # a step comes in between the question and the vote
            stop.come_in = lambda where, w=worker: job.main(w) if where == "read" else None
            job.heart(worker)
        else:
            getattr(job, part)(worker)
        stop.come_in = None
    job.stops[0].is_requested = True
    for _ in range(100):
        for worker in range(size):
            job.main(worker)
            job.heart(worker)
    assert None not in job.first_seen
    assert 1 == len(set(job.first_seen))


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
