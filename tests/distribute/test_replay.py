"""A step of many replicas, looked at on one machine."""

from __future__ import annotations

import json
import threading
from functools import partial

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import torch_distinput as tdi
from tests.distribute.example_sources import BATCHES, NUMBERS, SHARDS
from tests.distribute.numbers_reader import Numbers, write_numbers
from tests.distribute.resumes import make_of
from tests.distribute.stateful_sources import Counting
from tests.distribute.street import options, shown, stream_of
from torch_distinput.testing import simulate


def test_a_beginning_whose_costs_were_not_measured():
    """Or were, and are not where it is replayed: nothing has been dealt by them before a step."""

    def make():
        return tdi.MirroredStrategy(["cpu"] * 2).distribute_dataset(
            [[row] * (1 + row * 7 % 5) for row in range(12)],
            global_batch_size=4,
            balance=len,
            collate_fn=lambda rows: torch.tensor([row[0] for row in rows]),
        )

    dataset = make()
    fresh = dataset.state_dict()
    iterator = iter(dataset)
    begun = dataset.state_dict()
    next(iterator)
    expected = [part.tolist() for part in next(iterator)]
    for state in (fresh, begun):
        for player in (make(), dataset):
            assert expected == [part.tolist() for part in player.replay(state, 1).batches]


def test_a_beginning_with_other_costs():
    """Which are known from the state: the step would be dealt otherwise."""

    def make(balance):
        return tdi.MirroredStrategy(["cpu"] * 2).distribute_dataset(
            [[row] * (1 + row % 5) for row in range(12)],
            global_batch_size=4,
            balance=balance,
            collate_fn=list,
        )

    dataset = make(len)
    iterator = iter(dataset)
    state = dataset.state_dict()
    for other in (None, lambda row: 9 - len(row)):
        with pytest.raises(tdi.ConfigurationError, match="costs of examples was"):
            make(other).replay(state, 1)
    del iterator


def files(tmp_path, **keywords):
    """Files of numbers with a recipe."""
    pattern = write_numbers(tmp_path, [range(9), range(20, 24), [], range(40, 55)])
    return tdi.FileDataset(pattern, reader=Numbers(**keywords)).interleave(2).shuffle(3)


SOURCES = {
    "columns": (torch.arange(29), 4, {"shuffle": True}),
    "sampler": (DataLoader(NUMBERS, batch_sampler=[[1, 2], [3, 4, 5], [6], [0, 7, 8]]), None, {}),
    "stream": (stream_of(range(19)), 4, {"rebatch": "even"}),
    "own state": (partial(Counting, 19), 4, {}),
    "shards": (SHARDS, 3, {"rebatch": "cycle"}),
    "batches": (BATCHES, None, {}),
    "files": (files, 5, {"num_workers": 2}),
    "counted files": (partial(files, counted=True), 5, {"policy": "data"}),
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_step_from_every_state(tmp_path, name):
    """The batches and ids of all replicas, on one worker with one replica."""
    source, size, keywords = SOURCES[name]
    if "files" in name:
        source = source(tmp_path)

    def play(strategy):
        dataset = make_of(source, size, **keywords)(strategy)
        states, steps = [json.dumps(dataset.state_dict())], []
        iterator = iter(dataset)
        for step in iterator:
            steps.append((shown(strategy, step), [ids.tolist() for ids in iterator.last_step.ids]))
            states.append(json.dumps(dataset.state_dict()))
        return steps, states

    workers = simulate(play, num_workers=3, replicas_per_worker=2)
    here = make_of(source, size, **keywords)(tdi.OneDeviceStrategy("cpu"))
    num_steps = len(workers[0][0])
    for number, state in enumerate(workers[0][1][:-1]):
        for step in {number, (number + num_steps) // 2, num_steps - 1}:
            replayed = here.replay(json.loads(state), step)
            assert step == replayed.index
            batches = [batch for steps, _ in workers for batch in steps[step][0]]
            ids = [some for steps, _ in workers for some in steps[step][1]]
            assert batches == [[] if b is None else b.tolist() for b in replayed.batches]
            assert ids == [[] if i is None else i.tolist() for i in replayed.ids]
            assert replayed.num_examples == sum(map(len, batches))


def test_steps_that_are_not_there():
    """Before the state, after the end, of another recipe, of a function."""
    dataset = make_of(torch.arange(8), 4)(tdi.OneDeviceStrategy("cpu"))
    iterator = iter(dataset)
    next(iterator)
    state = dataset.state_dict()
    for step in (0, 2):
        with pytest.raises(ValueError, match=f"before step 1, got {step}"):
            dataset.replay(state, step)
    other = make_of(torch.arange(9), 4)(tdi.OneDeviceStrategy("cpu"))
    with pytest.raises(tdi.ConfigurationError, match="number of examples was 8, and here it is 9"):
        other.replay(state, 1)
    own = tdi.OneDeviceStrategy("cpu").distribute_datasets_from_function(lambda _: [[1]])
    with pytest.raises(tdi.UsageError, match="dataset_fn made on each worker"):
        own.replay(own.state_dict(), 0)


def test_replaying_leaves_the_files_to_be_looked_into(tmp_path):
    """One rank replays before all of them start an epoch."""
    source = files(tmp_path, counted=True)

    def work(strategy):
        chosen = options(auto_shard_policy="file")
        dataset = strategy.distribute_dataset(source, global_batch_size=5, options=chosen)
        if strategy.worker_index == 1:
            assert 5 == dataset.replay(dataset.state_dict(), 0).num_examples
        return [shown(strategy, step) for step in dataset]

    workers = simulate(work, num_workers=2)
    assert 28 == sum(len(batch) for steps in workers for step in steps for batch in step)


class Shifted(Dataset):
    """Numbers that depend on the epoch."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return 100 * self.epoch + index


def shifted(**keywords):
    """The numbers, distributed: two steps in each epoch."""
    one = tdi.OneDeviceStrategy("cpu")
    return one.distribute_dataset(Shifted(), global_batch_size=4, **keywords)


@pytest.mark.parametrize("keywords", [{}, {"num_threads": 2}, {"num_workers": 1}])
def test_a_dataset_is_told_the_epoch_of_the_step(keywords):
    """In another process, say, and after later epochs."""
    dataset = shifted()
    dataset.set_epoch(3)
    state = json.loads(json.dumps(dataset.state_dict()))
    _, last = dataset
    for later in (0, 1):
        other = shifted(**keywords)
        for _ in range(later):
            list(other)
        assert last.tolist() == other.replay(state, 1).batches[0].tolist()


def test_replaying_leaves_the_epoch_that_is_played():
    """Its next step, and the dataset, are at the epoch that an open iterator plays."""
    dataset = shifted()
    iterator = iter(dataset)
    state = dataset.state_dict()
    next(iterator)
    dataset.set_epoch(5)
    iterator = iter(dataset)
    assert [500, 501, 502, 503] == next(iterator).tolist()
    for _ in range(2):
        assert [4, 5, 6, 7] == dataset.replay(state, 1).batches[0].tolist()
    with pytest.raises(ValueError, match="got 9"):
        dataset.replay(state, 9)
    assert [504, 505, 506, 507] == next(iterator).tolist()


def test_threads_that_read_another_epoch_are_not_disturbed():
    """Any epoch may be looked at, while they read and when they have ended."""
    dataset = shifted(num_threads=2)
    before = dataset.state_dict()
    dataset.set_epoch(5)
    iterator = iter(dataset)
    state = dataset.state_dict()
    next(iterator)
    assert [500, 501, 502, 503] == dataset.replay(state, 0).batches[0].tolist()
    assert [0, 1, 2, 3] == dataset.replay(before, 0).batches[0].tolist()
    assert [504, 505, 506, 507] == next(iterator).tolist()
    assert [] == list(iterator)
    assert [0, 1, 2, 3] == dataset.replay(before, 0).batches[0].tolist()


def test_a_replay_beside_a_thread_that_reads():
    """One of them at a time is in the user's dataset: both may move one file to their places."""

    class Busy(Dataset):
        is_inside, overlaps = False, False
        entered, go_on = threading.Event(), threading.Event()

        def __len__(self):
            return 4

        def __getitem__(self, index):
            self.overlaps |= self.is_inside
            self.is_inside = True
            self.entered.set()
            assert self.overlaps or self.go_on.wait(60)
            self.is_inside = False
            return index

    busy = Busy()
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(busy, global_batch_size=4)
    state = dataset.state_dict()
    reads = threading.Thread(target=next, args=(iter(dataset),))
    replays = threading.Thread(target=dataset.replay, args=(state, 0))
    reads.start()
    assert busy.entered.wait(60)
    replays.start()
    replays.join(0.2)  # time to come into it, if it may
    busy.go_on.set()
    reads.join(60)
    replays.join(60)
    assert not busy.overlaps
