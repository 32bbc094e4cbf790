"""Votes ahead of use, over a pretend wire: what the verdicts do to queues, threads and memory."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

import pytest

import torch_distinput as tdi
from tests.distribute.street import options, play, shown, stream_of
from torch_distinput.cluster.agreement.agreement import Agreement
from torch_distinput.cluster.agreement.voted_steps import Agreed, Ending
from torch_distinput.plan.progress.delivered import DeliveryCounter
from torch_distinput.plan.progress.end_of_data import WINDOW, Outcome, Vote, VoterState
from torch_distinput.plan.progress.position import BatchLayout, ResumePoint, begin_epoch
from torch_distinput.testing import simulate
from torch_distinput.testing.simulated import SimulatedChannel, SimulatedCommunicator, _Wire

LIMIT = 60.0


@dataclass
class Step:
    """What a vote sees of a step."""

    num_rows: int
    mark: int = 0
    num_bytes: int = 1
    resume_point: ResumePoint | None = None
    num_touched: int = 0


def agree(strategy, steps, **keywords):
    """Start an agreement among simulated workers."""
    channel = strategy._session.communicator.open_channel(timeout=LIMIT)
    keywords = {"shared": False, "introduce": lambda step: step.num_rows, **keywords}
    layout = BatchLayout(
        num_workers=strategy.num_workers,
        replicas_per_worker=1,
        global_batch_size=4,
        rebatch="split",
    )
    before = begin_epoch(0, layout, 1 if keywords["shared"] else strategy.num_workers)
    keywords["counter"] = DeliveryCounter(
        before, strategy.num_workers, shared=keywords["shared"], steps_per_batch=1
    )
    return Agreement(iter(steps), channel, **keywords)


def drained(running):
    """All agreed steps, and the ending."""
    taken = []
    while isinstance(item := running.next(LIMIT), Agreed):
        taken.append((None if item.step is None else item.step.num_rows, item.num_examples))
    return taken, item


def test_the_longest_worker_decides():
    """Totals are sums; a worker that has ended gets steps without a part of its own."""

    def work(strategy):
        length = [3, 0, 200][strategy.worker_index]
        running = agree(strategy, [Step(2)] * length)
        assert [2, None, 2] == running.introductions(LIMIT)
        taken, ending = drained(running)
        assert Outcome.ENDED is ending.outcome
        assert running.join(LIMIT)
        return taken

    first, second, third = simulate(work, num_workers=3)
    assert [(2, 4)] * 3 + [(None, 2)] * 197 == first
    assert [(None, 4)] * 3 + [(None, 2)] * 197 == second
    assert [(2, 4)] * 3 + [(2, 2)] * 197 == third


def test_steps_without_examples_are_dropped_on_all_workers():
    """Only a step that somebody has something in is delivered."""

    def work(strategy):
        counts = ([0, 1, 0, 0], [0, 0, 0, 2])[strategy.worker_index]
        return drained(agree(strategy, map(Step, counts)))[0]

    assert [[(1, 1), (0, 2)], [(0, 1), (2, 2)]] == simulate(work, num_workers=2)


def test_steps_without_examples_make_room_for_others():
    """However many there are: nobody takes them, so the voter wakes the reader."""

    def work(strategy):
        return drained(agree(strategy, map(Step, [0] * 10 * WINDOW + [1])))[0]

    assert [[(1, 2)]] * 2 == simulate(work, num_workers=2)


@pytest.mark.parametrize(
    ("num_bytes", "enough", "most"), [(1, 2 * WINDOW - 1, 2 * WINDOW + 1), (40 << 20, 2, 3)]
)
def test_reading_ahead_is_bounded(num_bytes, enough, most):
    """By steps and by bytes (64 MiB); besides, one step is in the reader's hands."""

    def work(strategy):
        pulled = []
        stalled = threading.Event()

        def steps():
            for number in range(500):
                pulled.append(number)
                yield Step(1, num_bytes=num_bytes)
                if len(pulled) >= enough:
                    stalled.set()

        running = agree(strategy, steps())
        assert isinstance(running.next(LIMIT), Agreed)
        assert stalled.wait(LIMIT)
        held = len(pulled)
        running.close()
        assert running.join(LIMIT)
        return held

    for held in simulate(work, num_workers=2):
        assert held <= most + 1


def test_a_vote_does_not_wait_to_fill_a_window():
    """A worker with one ready step can play it while its source is slow."""

    def work(strategy):
        more = threading.Event()

        def steps():
            yield Step(1)
            assert more.wait(LIMIT)
            yield Step(1)

        running = agree(strategy, steps())
        first = running.next(LIMIT)
        assert isinstance(first, Agreed)
        more.set()
        return drained(running)[0]

    assert [[(1, 2)]] * 2 == simulate(work, num_workers=2)


def test_closing_reaches_the_others():
    """They learn who left; nobody's threads stay."""

    def work(strategy):
        running = agree(strategy, [Step(1)] * 300)
        assert isinstance(running.next(LIMIT), Agreed)
        if strategy.worker_index == 1:
            running.close()
            ending = None
        else:
            ending = drained(running)[1]
        assert running.join(LIMIT)
        return ending

    first, _, third = simulate(work, num_workers=3)
    assert Ending(outcome=Outcome.LEFT, workers=(1,)) == first == third


def test_a_shared_stream_ends_for_all_at_once():
    """Where each worker has its own, the longest decides."""

    def work(strategy):
        steps = [Step(1)] * (3 + strategy.worker_index)
        return drained(agree(strategy, steps, shared=True))[1].outcome

    assert [Outcome.DIFFER] * 2 == simulate(work, num_workers=2)


def test_failures_travel_with_the_votes():
    """All deliver the good steps, then hear the same words."""

    def work(strategy):
        def steps():
            yield from [Step(1)] * 5
            if strategy.worker_index == 0:
                msg = "broken"
                raise KeyError(msg)
            yield from [Step(1)] * 100

        taken, ending = drained(agree(strategy, steps()))
        assert Outcome.FAILED is ending.outcome
        assert (0,) == ending.workers
        assert "KeyError: 'broken'" == ending.words[0]
        assert isinstance(ending.error, KeyError) == (strategy.worker_index == 0)
        return len(taken)

    assert [5, 5] == simulate(work, num_workers=2)


@pytest.mark.parametrize("introduce", [lambda step: step.missing, lambda _: lambda: None])
def test_a_step_that_cannot_be_introduced_ends_all(introduce):
    """Whether it has no spec or one that cannot be sent: before the first step, on all workers."""

    def work(strategy):
        own = introduce if strategy.worker_index == 1 else (lambda step: step.num_rows)
        running = agree(strategy, [Step(1)] * 5, introduce=own)
        taken, ending = drained(running)
        assert not taken
        assert running.introductions(LIMIT) is None
        assert running.join(LIMIT)
        return ending

    endings = simulate(work, num_workers=3)
    for worker, ending in enumerate(endings):
        assert (Outcome.FAILED, (1,)) == (ending.outcome, ending.workers)
        assert "" != ending.words[1] == endings[0].words[1]
        assert (ending.error is not None) == (worker == 1)


def test_a_step_without_a_size_is_a_failure():
    """What is asked of a step may raise too."""

    def work(strategy):
        broken = [] if strategy.worker_index == 0 else [object()]
        return drained(agree(strategy, [Step(1), *broken]))[1].outcome

    assert [Outcome.FAILED] * 2 == simulate(work, num_workers=2)


def test_a_vote_that_breaks_off_is_told_to_all(monkeypatch):
    """An error of the voter itself, on one worker, does not leave the others waiting for it."""
    gather = SimulatedChannel.gather_objects

    def broken_on_one(self, value):
        is_broken = isinstance(value, Vote) and self._rank == 1
        return divmod(1, 0) if is_broken else gather(self, value)

    monkeypatch.setattr(SimulatedChannel, "gather_objects", broken_on_one)
    heard = threading.Event()

    def work(strategy):
        iterator = iter(strategy.distribute_dataset(stream_of(range(40)), global_batch_size=4))
        with pytest.raises(tdi.DistinputError, match="ZeroDivisionError") as got:
            next(iterator)
        if strategy.worker_index == 0:
            heard.set()
        assert heard.wait(LIMIT)
        return type(got.value)

    assert [tdi.PeerFailedError, tdi.SourceError] == simulate(work, num_workers=2)


def test_after_a_vote_that_broke_off_here_the_next_epoch_is_refused(monkeypatch):
    """Its first message would be taken for the vote that others wait for still."""
    gather, broken = SimulatedChannel.gather_objects, [ZeroDivisionError()]

    def broken_once_on_one(self, value):
        if isinstance(value, Vote) and self._rank == 1 and broken:
            raise broken.pop()
        return gather(self, value)

    monkeypatch.setattr(SimulatedChannel, "gather_objects", broken_once_on_one)

    def work(strategy):
        dataset = strategy.distribute_dataset(stream_of(range(40)), global_batch_size=4)
        with pytest.raises(tdi.DistinputError, match="ZeroDivisionError"):
            list(dataset)
        with pytest.raises(tdi.PeerFailedError, match="broke off in the middle of a vote"):
            list(dataset)
        return True

    assert [True] * 2 == simulate(work, num_workers=2)


def test_a_worker_that_vanishes_breaks_the_channel():
    """The others end with an error instead of waiting."""

    def work(strategy):
        if strategy.worker_index == 1:
            return None
        return drained(agree(strategy, [Step(1)] * 5))[1]

    ending, _ = simulate(work, num_workers=2)
    assert Outcome.LEFT is ending.outcome
    assert "worker 1 left" in str(ending.error)


def test_known_lengths_open_no_channel(monkeypatch):
    """Indexed sources never vote, whatever the policy."""
    monkeypatch.delattr(SimulatedCommunicator, "open_channel")

    def work(strategy, policy="data"):
        dataset = strategy.distribute_dataset(
            range(10), global_batch_size=4, options=options(auto_shard_policy=policy)
        )
        return [shown(strategy, step) for step in dataset]

    simulate(work, num_workers=3)
    simulate(lambda strategy: work(strategy, "off"), num_workers=3)


def num_exchanges(source, monkeypatch, **keywords):
    """What two workers send each other for a whole epoch, by whatever means."""
    shown = set()
    exchange = _Wire.exchange

    def counted(self, key, rank, *args):
        shown.add((key, rank))  # who waits long shows it again
        return exchange(self, key, rank, *args)

    with monkeypatch.context() as patched:
        patched.setattr(_Wire, "exchange", counted)
        play(source, 4, workers=2, **keywords)
    return len(shown)


@pytest.mark.parametrize("keywords", [{}, {"shuffle": True}, {"num_workers": 1}])
def test_known_lengths_need_no_collective_per_step(monkeypatch, keywords):
    """An epoch of a hundred steps sends as much as one of two: what iter() compares."""
    few = num_exchanges(range(8), monkeypatch, **keywords)

    assert 0 < few == num_exchanges(range(400), monkeypatch, **keywords)


def test_unknown_lengths_are_voted_on(monkeypatch):
    """What is counted above would be seen."""
    few = num_exchanges(stream_of(range(8)), monkeypatch)

    assert num_exchanges(stream_of(range(4000)), monkeypatch) > few


def test_votes_are_shared_by_many_steps(monkeypatch):
    """Far fewer collectives than steps, where the source is faster than the training."""
    calls = []
    gather = SimulatedChannel.gather_objects
    monkeypatch.setattr(
        SimulatedChannel, "gather_objects", lambda self, v: calls.append(1) or gather(self, v)
    )

    def work(strategy):
        dataset = strategy.distribute_dataset(stream_of(range(4000)), global_batch_size=4)
        iterator = iter(dataset)
        next(iterator)
        queue = iterator._run.feed._feed._agreement._queue
        steps = 1
        while True:
            # A slow training step: the reader fills its room meanwhile.
            while not queue._reader_waits and queue._state is VoterState.RUNNING:
                os.sched_yield()
            if next(iterator, None) is None:
                return steps
            steps += 1

    assert [1000, 1000] == simulate(work, num_workers=2)
    assert len(calls) / 2 < 1000 / 10
