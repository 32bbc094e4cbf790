"""C4 for every kind of source: by number, of one stream, of shards, and of a state of its own."""

from __future__ import annotations

import dataclasses
import json
import random
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, WeightedRandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

import torch_distinput as tdi
from tests.conftest import LONG
from tests.distribute.example_sources import BATCHES, NUMBERS, SHARDS, batches
from tests.distribute.resumes import in_order, make_of, run
from tests.distribute.stateful_sources import Counting, Shuffled
from tests.distribute.street import stream_of
from torch_distinput.testing import assert_resumes_everywhere

pytestmark = pytest.mark.usefixtures("paths")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "size", "keywords"),
    [
        (torch.arange(23), 4, {"shuffle": True, "drop_last": True}),
        (list(range(5)), 3, {"num_workers": 2}),
        (DataLoader(NUMBERS, batch_size=4, shuffle=True), None, {}),
        (DataLoader(NUMBERS, 4, sampler=WeightedRandomSampler([1.0] * 13, 10)), None, {}),
        (DataLoader(NUMBERS, batch_sampler=[[1, 2], [3], [4, 5, 6], [], [0]]), None, {}),
        (stream_of(range(14)), 4, {}),
        (stream_of(range(7)), 4, {"num_workers": 2, "rebatch": "cycle"}),
        (partial(Counting, 14), 3, {"rebatch": "even"}),
        (partial(Counting, 5), 3, {"num_workers": 1}),
        (SHARDS, 2, {"rebatch": "cycle"}),
        (SHARDS, 3, {"policy": "data"}),
        (batches, None, {}),
        (batches, None, {"rebatch": "even", "num_workers": 1}),
        (BATCHES, None, {}),
        (BATCHES, None, {"policy": "data"}),
    ],
)
def test_every_source(source, size, keywords):
    """At every position, here and on other clusters; with loader processes on one, as they fork."""
    elsewhere = ((1, 1), (3, 2)) if LONG or "num_workers" not in keywords else ((1, 1),)
    make = make_of(source, size, **keywords)
    assert_resumes_everywhere(make, replicas_per_worker=2, elsewhere=elsewhere)


def test_an_order_that_is_not_a_table():
    """Of more examples than are permuted exactly."""
    make = make_of(np.arange(70_000), 9_999, shuffle=True, seed=2)
    whole, _ = run(make, (1, 1))
    head, state = run(make, (2, 2), steps=5)
    tail, _ = run(make, (3, 1), state=state)
    assert in_order(whole) == in_order(head) + in_order(tail)


def test_a_source_goes_on_from_its_own_state():
    """Nothing is read again but what was read ahead."""
    seen = []
    _, state = run(make_of(partial(Counting, 1000), 10), (2, 1), steps=90)
    assert "torch:" in state
    run(make_of(Counting(1000, seen), 10), (1, 1), state=state)
    assert min(seen) > 100  # not from the beginning
    assert set(range(900, 1000)) <= set(seen)


class Drawn(Shuffled):
    """Each process draws its first order, and keeps it in its state."""

    def __init__(self):
        self.epoch = random.getrandbits(30)


@pytest.mark.parametrize("stop", [1, 2, 5])
@pytest.mark.parametrize("is_ready", [False, True])
def test_an_order_that_each_process_draws(stop, is_ready):
    """It goes on from its first step, though another process begins in another order."""

    def distributed():
        source = StatefulDataLoader(Drawn(), batch_size=3) if is_ready else Drawn()
        size = None if is_ready else 3
        return tdi.OneDeviceStrategy("cpu").distribute_dataset(source, global_batch_size=size)

    dataset = distributed()
    whole = iter(dataset)
    for _ in range(stop):
        next(whole)
    other = distributed()
    other.load_state_dict(json.loads(json.dumps(dataset.state_dict())))
    for following in (whole, dataset):  # the rest of the epoch, and the next one
        assert [step.tolist() for step in following] == [step.tolist() for step in other]


def test_a_source_that_was_left_starts_from_its_beginning():
    """Though it keeps its position on itself."""
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(Counting(9), global_batch_size=4)
    next(iter(dataset))
    for _ in range(2):
        assert [[0, 1, 2, 3], [4, 5, 6, 7], [8]] == [step.tolist() for step in dataset]


class Sized(IterableDataset):
    """Twenty examples for a DataLoader to batch."""

    def __iter__(self):
        """In order."""
        return iter(range(20))


def test_ready_batches_of_another_size():
    """What is delivered is counted in examples."""
    make = {size: make_of(DataLoader(Sized(), batch_size=size), None) for size in (2, 4)}
    for cluster in ((1, 1), (2, 1)):
        head, state = run(make[4], cluster, steps=2)
        tail, _ = run(make[2], cluster, state=state)
        assert list(range(20)) == in_order(head) + in_order(tail)


@dataclasses.dataclass
class Unhashable(IterableDataset):
    """As dataclasses are that can be compared."""

    position: int = 0

    def __iter__(self):
        """Three examples."""
        while self.position < 3:
            self.position += 1
            yield self.position
        self.position = 0

    state_dict = Counting.state_dict
    load_state_dict = Counting.load_state_dict


def test_a_source_that_has_no_hash():
    """It is known by what it is."""
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(Unhashable(), global_batch_size=2)
    for _ in range(2):
        assert [[1, 2], [3]] == [step.tolist() for step in dataset]


def each_workers_own(context):
    """A stream of replica batches for each worker."""
    start = 100 * context.input_pipeline_id
    return [np.arange(start + k, start + k + 2) for k in range(0, 10 + 4 * (start > 0), 2)]


def test_replica_batches_of_a_function():
    """Each worker's stream is its own: only the same cluster goes on."""

    def make(strategy):
        return strategy.distribute_datasets_from_function(each_workers_own)

    assert_resumes_everywhere(make, num_workers=2, replicas_per_worker=2, elsewhere=())
    _, state = run(make, (2, 2), steps=1)
    with pytest.raises(tdi.ConfigurationError, match=r"from \(2 x 2\).*got 3 x 2. Start as many"):
        run(make, (3, 2), state=state)


@pytest.mark.slow
@pytest.mark.parametrize("indexed", [True, False])
def test_everybody_plays_everything(indexed):
    """Under OFF a position belongs to its worker."""
    source = torch.arange(11) if indexed else stream_of(range(11))
    make = make_of(source, 4, policy="off")
    assert_resumes_everywhere(make, num_workers=3, elsewhere=() if indexed else ((3, 2),))
    _, state = run(make, (2, 1), steps=1)
    with pytest.raises(tdi.ConfigurationError, match="AutoShardPolicy.OFF each worker"):
        run(make, (1, 1), state=state)
