"""States by themselves: small, nobody else's, and refused where they mean nothing."""

from __future__ import annotations

import json

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import torch_distinput as tdi
from tests.distribute.numbers_reader import Numbers, write_numbers
from tests.distribute.resumes import make_of, run
from tests.distribute.stateful_sources import Counting
from tests.distribute.street import stream_of
from torch_distinput.testing import simulate


class BatchStream(Counting):
    """Batches, with a state."""

    def __init__(self, count, size):
        super().__init__(count)
        self.size = size

    def __iter__(self):
        """Of consecutive numbers."""
        for first in super().__iter__():
            yield torch.arange(first, first + self.size)


def test_asking_a_sampler_again():
    """len() asks for its length, a state for the epoch that runs: each is drawn once."""
    sampler = Moody(0)
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(
        DataLoader(range(13), 2, sampler=sampler)
    )
    for epoch in range(3):
        for _ in dataset:
            len(dataset)
            dataset.state_dict()
        assert epoch + 1 == sampler.start


def test_the_spec_beside_a_position():
    """It takes no step from a running iterator, and needs none of a loaded epoch."""
    dataset = make_of(stream_of(range(4)), 2)(tdi.OneDeviceStrategy("cpu"))
    iterator = iter(dataset)
    assert torch.int64 is dataset.element_spec.dtype
    assert [[0, 1], [2, 3]] == [step.tolist() for step in iterator]
    other = make_of(stream_of(range(4)), 2)(tdi.OneDeviceStrategy("cpu"))
    other.load_state_dict(dataset.state_dict())
    assert torch.int64 is other.element_spec.dtype
    assert [] == list(other)


@pytest.mark.slow
def test_states_do_not_grow(tmp_path):
    """However far the epoch is; of a source with a state of its own, the last one known."""
    pattern = write_numbers(tmp_path, [range(900), range(1000, 1900), range(2000, 2900)])
    files = tdi.FileDataset(pattern, reader=Numbers(records_per_chunk=50)).shuffle(40)

    def of_a_function(strategy):
        return strategy.distribute_datasets_from_function(lambda _: BatchStream(1000, 4))

    for make in (make_of(files, 8), make_of(torch.arange(3000), 8), of_a_function):
        # Not before the streams of a function have told of their first states.
        sizes = [len(run(make, (3, 1), steps=steps)[1]) for steps in (90, 150, 230)]
        assert max(sizes) < sizes[0] + 60
        assert max(sizes) < 4096 or make is of_a_function  # whose streams' own states are large
    _, state = run(of_a_function, (3, 1), steps=230)
    assert all(batch > 230 - 3 * 64 for batch, *_ in json.loads(state)["streams"])


class Moody:
    """A sampler that gives another order each time it is asked."""

    def __init__(self, start):
        self.start = start

    def __len__(self):
        return 6

    def __iter__(self):
        """Shifted by one more."""
        self.start += 1
        return iter([(self.start + k) % 6 for k in range(6)])


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (make_of(torch.arange(13), 4, shuffle=True), "number of examples was 12, and here .* 13"),
        (make_of(torch.arange(12), 4), "shuffle was True, and here it is False"),
        (make_of(torch.arange(12), 4, shuffle=True, seed=1), "seed was 0, and here it is 1"),
        (make_of(stream_of(range(12)), 4), "source was 'examples by index', and .*; shuffle was"),
    ],
)
def test_another_recipe_is_refused(other, difference):
    """What differs is named."""
    _, state = run(make_of(torch.arange(12), 4, shuffle=True), (2, 1), steps=1)
    with pytest.raises(tdi.ConfigurationError, match=difference):
        run(other, (2, 1), state=state)


def test_other_files_are_refused(tmp_path):
    """By name and size, wherever they lie; by reader, operations and splitting."""
    files = [range(5), range(8)]
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    here, there = (write_numbers(tmp_path / folder, files) for folder in ("one", "two"))
    make = make_of(tdi.FileDataset(here, reader=Numbers()).shuffle(3), 4)
    _, state = run(make, (2, 1), steps=1)
    moved = tdi.FileDataset(there, reader=Numbers()).shuffle(3)
    run(make_of(moved, 4), (2, 1), state=state)
    for other, difference in (
        (tdi.FileDataset(here, reader="text").shuffle(3), "reader was 'Numbers'"),
        (tdi.FileDataset(here, reader=Numbers()).shuffle(4), r"operations was .'shuffle.3.'., and"),
        (tdi.FileDataset(here, reader=Numbers(), split_files=True).shuffle(3), "split_files"),
    ):
        with pytest.raises(tdi.ConfigurationError, match=difference):
            run(make_of(other, 4), (2, 1), state=state)
    write_numbers(tmp_path / "two", [range(5), range(9)])
    with pytest.raises(tdi.ConfigurationError, match="files was '2 .names and sizes"):
        run(make_of(moved, 4), (2, 1), state=state)


def test_a_sampler_that_gives_another_order_is_refused():
    """A position in an order that is gone means nothing."""
    strategy = tdi.OneDeviceStrategy("cpu")
    dataset = strategy.distribute_dataset(DataLoader(range(13), 2, sampler=Moody(0)))
    next(iter(dataset))
    state = dataset.state_dict()
    dataset.load_state_dict(state)
    assert 2 == len(list(dataset))
    other = strategy.distribute_dataset(DataLoader(range(13), 2, sampler=Moody(1)))
    other.load_state_dict(state)
    with pytest.raises(tdi.ConfigurationError, match="order of the sampler was"):
        iter(other)


@pytest.mark.parametrize("plain", [list(range(13)), DataLoader(TensorDataset(torch.arange(13)), 2)])
def test_an_order_without_the_sampler_is_another_one(plain):
    strategy = tdi.OneDeviceStrategy("cpu")
    sampled = strategy.distribute_dataset(DataLoader(range(13), 2, sampler=Moody(0)))
    start, steps = sampled.state_dict(), sampled.steps()
    state = next(steps).state_dict()
    size = None if isinstance(plain, DataLoader) else 2
    other = strategy.distribute_dataset(plain, global_batch_size=size)
    other.load_state_dict(state)
    with pytest.raises(tdi.ConfigurationError, match="sampler was .*and here there is none"):
        iter(other)
    with pytest.raises(tdi.ConfigurationError, match="and here there is none"):
        other.replay(state, 1)
    other.load_state_dict(start)  # nothing of any order was delivered
    assert 7 == len(list(other))


@pytest.mark.parametrize(
    "state",
    [None, {}, {"version": 7}, {"version": 1}, {"version": 1, "recipe": 3}, ["version"]],
)
def test_what_is_no_state(state):
    """Refused before anything is touched."""
    dataset = make_of(torch.arange(12), 4)(tdi.OneDeviceStrategy("cpu"))
    whole = dataset.state_dict()
    with pytest.raises(ValueError, match="Expected (what|a whole state)"):
        dataset.load_state_dict(state)
    damaged = {**whole, "rounds": -1}
    with pytest.raises(ValueError, match="damaged one .*-1 is no count"):
        dataset.load_state_dict(damaged)
    assert whole == dataset.state_dict()


def test_what_comes_after_a_load():
    """The rest, then whole epochs; ``set_epoch`` of the same one keeps the place, others do not."""
    dataset = make_of(torch.arange(10), 4, shuffle=True)(tdi.OneDeviceStrategy("cpu"))
    epochs = [[step.tolist() for step in dataset] for _ in range(3)]
    iterator = iter(dataset)
    dataset.set_epoch(1)
    iterator = iter(dataset)
    next(iterator)
    state = iterator.state_dict()
    assert state == dataset.state_dict()
    assert (1, 1, 4) == (state["epoch"], state["steps"], state["examples"])
    with pytest.raises(tdi.UsageError, match="loaded into the dataset"):
        iterator.load_state_dict(state)
    for load in (lambda: None, lambda: dataset.set_epoch(1)):
        dataset.load_state_dict(state)
        assert 1 == dataset.epoch
        load()
        resumed = iter(dataset)
        assert state == resumed.state_dict() == dataset.state_dict()
        assert epochs[1][1:] == [step.tolist() for step in resumed]
        assert 2 == resumed.last_step.index
        assert epochs[2] == [step.tolist() for step in dataset]
    dataset.load_state_dict(state)
    dataset.set_epoch(0)
    assert epochs[0] == [step.tolist() for step in dataset]
    dataset.load_state_dict(dataset.state_dict())  # taken after the last step
    assert [] == list(dataset)
    assert epochs[1] == [step.tolist() for step in dataset]


@pytest.mark.parametrize("loads", [True, False])
def test_a_state_is_nobody_elses(tmp_path, loads):
    """What the caller does with its dict changes nothing here, and the other way round."""
    (tmp_path / "a.txt").write_text("0\n1\n2\n3\n4\n5\n")
    files = tdi.FileDataset(str(tmp_path / "*.txt")).interleave(2, 1).shuffle(4).take(5)
    dataset = make_of(files, 2)(tdi.OneDeviceStrategy("cpu"))
    next(iter(dataset))
    state = dataset.state_dict()
    expected = json.dumps(state)
    if loads:
        dataset.load_state_dict(state)
    for own in (state, dataset.state_dict()):
        for name in own:
            spoil(own[name])
    assert expected == json.dumps(dataset.state_dict())


def spoil(value):
    """Empty all lists of a state."""
    if isinstance(value, list):
        for item in value:
            spoil(item)
        value.clear()


@pytest.mark.parametrize(("name", "count"), [("examples", 13), ("examples", 10**30)])
def test_a_state_behind_the_end_is_refused(name, count):
    """On all workers; the last one that is not continues with an empty rest."""

    def work(strategy):
        dataset = make_of(torch.arange(12), 4)(strategy)
        dataset.load_state_dict({**dataset.state_dict(), name: 12})
        assert [] == list(dataset)
        dataset.load_state_dict({**dataset.state_dict(), name: count})
        with pytest.raises(tdi.ConfigurationError, match=f"12 examples, got one after {count}"):
            iter(dataset)

    simulate(work, num_workers=2)


def test_ranks_that_load_different_states():
    """A rank that did not load, or loaded another state, is named on all ranks."""
    _, state = run(make_of(torch.arange(12), 4), (2, 1), steps=1)

    def work(strategy):
        dataset = make_of(torch.arange(12), 4)(strategy)
        if strategy.worker_index == 1:
            dataset.load_state_dict(json.loads(state))
        with pytest.raises(tdi.MismatchError, match="same position .*0 steps.*1 steps.*worker 1"):
            iter(dataset)

    simulate(work, num_workers=2)


def loaded_after_one_step(source):
    """A dataset of four steps that goes on behind the first, in epoch 2."""
    dataset = make_of(source, 2)(tdi.OneDeviceStrategy("cpu"))
    dataset.set_epoch(2)
    next(iter(dataset))
    dataset.load_state_dict(dataset.state_dict())
    return dataset


@pytest.mark.parametrize("source", [range(8), stream_of(range(8))])
def test_a_loaded_position_is_used_up_by_a_step_alone(source):
    """Some trainers make an extra ``iter()`` to look at a loader, or fail in the first step."""
    dataset = loaded_after_one_step(source)
    state = dataset.state_dict()
    for _ in range(2):
        iter(dataset)
        assert (2, state) == (dataset.epoch, dataset.state_dict())
    assert [[2, 3], [4, 5], [6, 7]] == [step.tolist() for step in dataset]
    assert 3 == dataset.epoch
    assert 4 == len(list(dataset))


def test_an_end_uses_a_loaded_position_up():
    """Where no step was left of the epoch, too."""
    dataset = loaded_after_one_step(range(2))
    assert [] == list(dataset)
    assert (3, 1) == (dataset.epoch, len(list(dataset)))


def test_a_position_that_was_given_back_may_be_left_for_another_epoch(caplog):
    """As one that was loaded: it is said."""
    dataset = loaded_after_one_step(range(8))
    iter(dataset)
    dataset.set_epoch(2)
    assert [] == caplog.messages
    dataset.set_epoch(3)
    assert ["set_epoch(3) drops the position that was loaded, 1 steps into epoch 2."] == (
        caplog.messages
    )
    assert (3, 4) == (dataset.epoch, len(list(dataset)))


def test_what_is_set_aside_keeps_a_position_that_was_given_back(caplog):
    """It is played to its end inside, and still there afterwards."""
    dataset = loaded_after_one_step(range(8))
    iter(dataset)
    with dataset.set_aside():
        assert 4 == len(list(dataset))
    assert (2, 3) == (dataset.epoch, len(list(dataset)))
    assert [] == caplog.messages


@pytest.mark.parametrize("epoch", [2, 3])
def test_an_epoch_that_is_set_while_another_is_played(epoch):
    """A state is of the epoch that was set, until the one under way delivers again."""
    dataset = loaded_after_one_step(range(8))
    iterator = iter(dataset)
    next(iterator)
    dataset.set_epoch(epoch)
    assert (epoch, 0) == tuple(dataset.state_dict()[key] for key in ("epoch", "steps"))
    next(iterator)
    assert iterator.state_dict() == dataset.state_dict()
    assert (2, 3) == tuple(dataset.state_dict()[key] for key in ("epoch", "steps"))
    assert (epoch, 4) == (dataset.epoch, len(list(dataset)))
