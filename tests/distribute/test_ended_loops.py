"""What is combined after a loop is of the same steps on all workers."""

from __future__ import annotations

import contextlib
import itertools
import threading

import pytest
import torch

import torch_distinput as tdi
from tests.distribute.street import options
from torch_distinput.testing import simulate


def distribute(strategy):
    return strategy.distribute_dataset(torch.arange(8), global_batch_size=2)


def play(steps, count=None):
    return sum(int(step.sum()) for step in itertools.islice(steps, count))


COMBINE = {
    "reduce": lambda strategy, seen: strategy.reduce("sum", seen),
    "gather": lambda strategy, seen: strategy.gather(torch.tensor([seen])),
    "in order": lambda strategy, seen: strategy.gather_in_order(
        torch.tensor([strategy.worker_index]), torch.tensor([seen])
    ),
    "in run": lambda strategy, seen: strategy.run(
        lambda: tdi.get_replica_context().all_reduce("sum", seen)  # type: ignore[union-attr]
    ),
}


@pytest.mark.parametrize("how", COMBINE)
def test_a_rank_that_left_its_loop_alone(how):
    """The others have seen more, and the total would be of neither."""

    def work(strategy):
        seen = play(distribute(strategy), 4 if strategy.worker_index else 2)  # nothing holds it
        with pytest.raises(tdi.MismatchError) as caught:
            COMBINE[how](strategy, seen)
        return str(caught.value)

    for said in simulate(work, num_workers=2):
        assert "over dataset 0 at" in said
        assert "got 2 steps of epoch 0 on worker 0 and 4 steps of epoch 0 on worker 1" in said


@pytest.mark.parametrize("how", COMBINE)
def test_a_rank_that_left_a_loop_in_which_the_others_combine_something(how):
    """What it combines behind the loop would be taken for what they combine in the next step."""

    def work(strategy):
        with pytest.raises(tdi.MismatchError) as caught:
            for number, step in enumerate(distribute(strategy), 1):
                COMBINE["reduce"](strategy, int(step.sum()))
                if number == 2 and strategy.worker_index == 0:
                    break
            COMBINE[how](strategy, 0)
        return str(caught.value)

    for said in simulate(work, num_workers=2):
        assert "2 steps of epoch 0 on worker 0 and 3 steps of epoch 0 on worker 1" in said


@pytest.mark.parametrize("how", COMBINE)
def test_each_rank_passes_over_a_step_of_its_own(how):
    """As of a loss that is not finite: what is combined next would be of two steps."""

    def work(strategy):
        with pytest.raises(tdi.MismatchError, match="pass over a step alone") as caught:
            for number, step in enumerate(distribute(strategy)):
                if number == strategy.worker_index:
                    continue
                COMBINE[how](strategy, int(step.sum()))
        return str(caught.value)

    for said in simulate(work, num_workers=2):
        assert "got 2 steps of epoch 0 on worker 0 and 1 steps of epoch 0 on worker 1" in said


def test_it_is_said_until_the_dataset_begins_anew():
    """What was added up does not become right by asking twice."""

    def work(strategy):
        dataset = distribute(strategy)
        start = dataset.state_dict()
        seen = play(dataset, 1 + strategy.worker_index)
        for _ in range(2):
            with pytest.raises(tdi.MismatchError):
                strategy.reduce("sum", seen)
        dataset.load_state_dict(start)
        none = strategy.reduce("sum", 0)
        return none.item(), strategy.reduce("sum", play(dataset)).item()

    assert [(0, 28)] * 2 == simulate(work, num_workers=2)


@pytest.mark.slow
def test_other_ways_out_of_a_loop():
    """Left behind the last step by some; open; an evaluation inside; another epoch."""

    def work(strategy):
        dataset, totals = distribute(strategy), []
        for _ in range(2):
            seen = play(dataset, None if strategy.worker_index else 4)
            totals.append(strategy.reduce("sum", seen).item())
        is_open = iter(dataset)
        if strategy.worker_index:
            next(is_open)  # the other one looks later
        totals.append(strategy.reduce("sum", play(distribute(strategy))).item())
        return totals

    assert [[28, 28, 28]] * 2 == simulate(work, num_workers=2)


class Broken(torch.utils.data.Dataset):
    """Some examples cannot be read."""

    def __init__(self, *broken):
        self.broken = broken

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index in self.broken:
            raise ValueError(index)
        return index


@pytest.mark.parametrize("how", COMBINE)
def test_an_error_that_one_rank_caught(how):
    """The others have not heard of it, and its values lack what it did not see."""

    def work(strategy):
        dataset, seen = strategy.distribute_dataset(Broken(7), global_batch_size=2), 0
        start = dataset.state_dict()
        with contextlib.suppress(tdi.SourceError):
            for step in itertools.islice(dataset, 4 if strategy.worker_index else 3):
                seen += int(step.sum())
        with pytest.raises(tdi.MismatchError, match=r"an error on worker 1.* 3 steps .* worker 0"):
            COMBINE[how](strategy, seen)
        dataset.load_state_dict(start)  # all know now, and may begin anew
        return strategy.reduce("sum", play(dataset, 3)).item()

    assert [15, 15] == simulate(work, num_workers=2)


class BrokenLater(Broken):
    """The last example cannot be read, once the other worker has delivered all of its steps."""

    def __init__(self, delivered):
        super().__init__(7)
        self.delivered = delivered

    def __getitem__(self, index):
        assert index not in self.broken or self.delivered.wait(60)
        return super().__getitem__(index)


@pytest.mark.slow
def test_an_error_behind_which_another_rank_would_have_ended():
    """It waits for all at the end, so that it saves no state of rows that never came."""
    delivered = threading.Event()

    def work(strategy):
        dataset = strategy.distribute_dataset(BrokenLater(delivered), global_batch_size=2)
        with pytest.raises((tdi.SourceError, tdi.PeerFailedError)) as caught:
            for number, _ in enumerate(dataset, 1):
                if number == 4:
                    delivered.set()
        return caught.type, dataset.state_dict()["steps"]

    assert [(tdi.PeerFailedError, 4), (tdi.SourceError, 3)] == simulate(work, num_workers=2)


@pytest.mark.slow
def test_one_of_many_leaves_behind_the_last_step(caplog):
    """Of so many nobody hears all the others; who has come hears that nobody is behind."""

    def work(strategy):
        chosen = options(timeout=60.0)
        dataset = strategy.distribute_dataset(range(34), global_batch_size=17, options=chosen)
        return len(list(itertools.islice(dataset, 2 if strategy.worker_index == 3 else None)))

    assert [2] * 17 == simulate(work, num_workers=17)
    assert "did not wait longer" not in caplog.text


def test_an_error_of_all():
    """Each worker has its error at its own step, and may tell the others of it."""

    def work(strategy):
        dataset, failed = strategy.distribute_dataset(Broken(2, 3), global_batch_size=2), 0
        try:
            play(dataset)
        except tdi.SourceError:
            failed = 1
        return strategy.reduce("sum", failed).item()

    assert [2, 2] == simulate(work, num_workers=2)


def test_a_thread_that_reads_ahead():
    """It is at another step on each worker when the loop is left, and so are its sums."""

    def work(strategy):
        dataset = distribute(strategy)
        ahead = threading.Thread(target=play, args=(dataset, 2 + strategy.worker_index))
        ahead.start()
        ahead.join()
        return strategy.reduce("sum", 1).item()

    assert [2, 2] == simulate(work, num_workers=2)


def test_iterators_that_are_let_go_of_at_other_times():
    """As one is that the garbage collector finds on one worker earlier than on the other."""

    def work(strategy):
        dataset, totals, kept = distribute(strategy), [], []
        for count in (2, 3):
            iterator = iter(dataset)
            seen = play(iterator, count)
            if strategy.worker_index:
                kept.append(iterator)
            del iterator
            totals.append(strategy.reduce("sum", seen).item())
        return totals

    assert [[6, 15]] * 2 == simulate(work, num_workers=2)
