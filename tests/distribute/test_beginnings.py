"""A source without a state that begins otherwise when it is read again: it is said."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import torch_distinput as tdi
from tests.distribute.example_sources import BATCHES, SHARDS, batches
from tests.distribute.resumes import make_of, run
from tests.distribute.stateful_sources import Late, Shuffled
from tests.distribute.street import one, stream_of
from torch_distinput.data.sources.examples import ExampleReader
from torch_distinput.plan.progress.route import Shard
from torch_distinput.testing import simulate

COUNT = 40
SAID = "begins with other examples"


class Drawn(IterableDataset):
    """It draws another order each time; seeded, as two draws may begin alike by chance."""

    def __iter__(self):
        return iter(random.sample(range(COUNT), COUNT))


def loader_of(_context):
    """Its order is of torch's generator."""
    return DataLoader(list(range(COUNT)), batch_size=4, shuffle=True)


def resumed(make, *, steps=3):
    """Play some steps, and the rest of the epoch from a state."""
    begun, left = make(one()), make(one())
    for _, _ in zip(range(steps), begun, strict=False):
        pass
    left.load_state_dict(json.loads(json.dumps(begun.state_dict())))
    return list(left)


RANDOM = {
    "examples": make_of(Drawn(), 4),
    "cycle": make_of(Drawn(), 4, rebatch="cycle"),
    "batches": make_of(DataLoader(Drawn(), batch_size=4), None),
    "a function": lambda strategy: strategy.distribute_datasets_from_function(loader_of),
    "mixed": make_of(
        tdi.mix({"a": Drawn(), "b": stream_of(range(9))}, weights={"a": 4, "b": 1}, stop="all"), 4
    ),
    "by a budget": lambda strategy: strategy.distribute_dataset(
        Drawn(), global_batch_size=tdi.TokenBudget(100, length=int)
    ),
}


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("name", RANDOM)
def test_another_order(name, steps, caplog):
    """Once, with what to do."""
    random.seed(0)
    torch.manual_seed(0)
    resumed(RANDOM[name], steps=steps)

    (said,) = [record.getMessage() for record in caplog.records if SAID in record.getMessage()]
    assert "set_epoch()" in said
    assert "load_state_dict()" in said


def test_a_source_that_has_become_shorter(caplog):
    """Than what it is compared by."""
    numbers = list(range(20))
    begun, left = (make_of(stream_of(numbers), 4)(one()) for _ in range(2))
    next(iter(begun))
    del numbers[3:]
    left.load_state_dict(begun.state_dict())

    assert list(left) == []
    assert SAID in caplog.text


def augmented():
    """Other values each time."""
    for number in range(COUNT):
        yield {"image": np.random.rand(2), "label": number % 2, "name": f"{number}.jpg"}


class Moved(IterableDataset):
    """Absolute paths of a folder that is another one each time."""

    folders = 0

    def __iter__(self):
        self.folders += 1
        return (Path(f"/{self.folders}/{number}") for number in range(COUNT))


class ByEpoch(IterableDataset):
    """Another order in each epoch."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(random.Random(self.epoch).sample(range(COUNT), COUNT))


def augmented_batches():
    """The same as batches."""
    for number in range(9):
        yield torch.rand(4, 2), torch.arange(number, number + 4)


SAME = {
    "augmentation": make_of(stream_of(range(5)), 2),
    "augmented": make_of(augmented, 4),
    "augmented batches": make_of(augmented_batches, None),
    "moved": make_of(Moved(), 4, collate_fn=list),
    "by epoch": make_of(ByEpoch(), 4),
    "a state of its own": make_of(Shuffled(), 4),
    "two streams": make_of(tdi.mix({"a": augmented, "b": augmented}, weights={"a": 1, "b": 1}), 4),
}


@pytest.mark.parametrize("name", SAME)
def test_the_same_order(name, caplog):
    resumed(SAME[name])
    assert SAID not in caplog.text


@pytest.mark.parametrize(
    ("source", "size", "keywords"),
    [
        (SHARDS, 2, {"rebatch": "cycle"}),
        (SHARDS, 3, {"policy": "data"}),
        (ByEpoch(), 5, {}),
        (batches, None, {}),
        (BATCHES, None, {}),
    ],
)
def test_the_same_order_elsewhere(source, size, keywords, caplog):
    """On other workers, and with batches of another size."""
    _, state = run(make_of(source, size, **keywords), (2, 2), steps=2)
    _, state = run(make_of(source, size and size + 1, **keywords), (3, 1), state=state, steps=1)
    run(make_of(source, size, **keywords), (1, 1), state=state)
    assert '["mark", [' in state
    assert SAID not in caplog.text


def test_shards_in_another_order(caplog):
    """Whoever gets what worker 0 had begun says it."""
    shards = [list(range(k, 20, 4)) for k in range(4)]
    make = make_of(type(SHARDS)(shards), 4)
    _, state = run(make, (2, 1), steps=2)
    for shard in shards:
        shard.reverse()
    run(make, (1, 1), state=state)

    assert caplog.text.count(SAID) == 1


@pytest.mark.parametrize("policy", ["off", "file"])
def test_one_worker_marks_for_all(policy):
    """So that a state does not grow with the workers."""
    source = SHARDS if policy == "file" else stream_of(range(20))
    _, state = run(make_of(source, 4, policy=policy), (3, 1), steps=1)
    assert state.count("mark") == 1


@pytest.mark.parametrize("is_same", [False, True])
def test_a_source_that_tells_nothing_before_its_first_example(is_same, caplog):
    """In its second epoch, until it has told of a place; a new process would begin with another."""
    source, shard = Late(), Shard(epoch=1, marked=True)
    source.epoch = 1
    place = ExampleReader(source, shard).take(2).place
    again = Late()
    again.epoch = int(is_same)
    ExampleReader(again, shard, place.start).take(COUNT)
    assert is_same == (SAID not in caplog.text)


def test_a_state_without_a_mark(caplog):
    """Of an earlier release."""
    state = make_of(Drawn(), 4)(one()).state_dict()
    left = make_of(Drawn(), 4)(one())
    left.load_state_dict({**state, "steps": 1, "examples": 4, "rounds": 1, "rows": [4]})

    assert len(list(left)) == 9
    assert SAID not in caplog.text


class Epochs(IterableDataset):
    """Has a state, which it tells before it has begun: of the epoch before, if it counts epochs."""

    def __init__(self, *, counts):
        self.counts, self.epoch, self.position, self.is_resumed = counts, 0, 0, False

    def __iter__(self):
        if not self.is_resumed:
            self.epoch, self.position = self.epoch + self.counts, 0
        self.is_resumed = False
        order = random.Random(self.epoch).sample(range(COUNT), COUNT)
        while self.position < COUNT:
            self.position += 1
            yield order[self.position - 1]

    def state_dict(self):
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state):
        self.epoch, self.position, self.is_resumed = state["epoch"], state["position"], True


@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize("is_anew", [True, False])
@pytest.mark.parametrize("has_batches", [True, False])
def test_a_source_that_told_its_state_before_it_had_begun(counts, is_anew, has_batches, caplog):
    """It begins otherwise where it is put back there: in the process that has played it."""

    def distribute(strategy):
        source = Epochs(counts=counts)
        if has_batches:
            return strategy.distribute_dataset(DataLoader(source, batch_size=4))
        return strategy.distribute_dataset(source, global_batch_size=4)

    def work(strategy):
        dataset = distribute(strategy)
        steps = iter(dataset)
        played = [*next(steps).tolist(), *next(steps).tolist()]
        state = dataset.state_dict()
        steps.close()
        dataset = distribute(strategy) if is_anew else dataset
        dataset.load_state_dict(state)
        return played + [int(row) for batch in dataset for row in batch]

    rows = sorted(row for rows in simulate(work, num_workers=2) for row in rows)
    assert (rows == list(range(COUNT))) == (SAID not in caplog.text)
    if is_anew or not counts:
        assert SAID not in caplog.text
