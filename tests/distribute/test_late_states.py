"""Loaders and nodes that tell for a while where they were before, after they were started."""

from __future__ import annotations

import itertools
import json

import pytest
from torch.utils.data import IterableDataset
from torchdata import nodes
from torchdata.stateful_dataloader import StatefulDataLoader

import torch_distinput as tdi
from tests.distribute.stateful_sources import Shuffled


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("stops", [[3, 1, 9], [4, 2, 9], [1] * 9])
def test_a_loader_with_processes_is_restarted_before_all_of_them_have_yielded(stops, every):
    """Its own state, then, has forgotten where some of them are, or is of no new place at all."""
    one = tdi.OneDeviceStrategy("cpu")

    def make():
        return StatefulDataLoader(
            Shuffled(), batch_size=4, num_workers=2, snapshot_every_n_steps=every
        )

    whole = [step.tolist() for step in one.distribute_dataset(make())]
    found, state = [], None
    for count in stops:
        dataset = one.distribute_dataset(make())
        if state is not None:
            dataset.load_state_dict(json.loads(state))
        with iter(dataset) as steps:
            found += [step.tolist() for step in itertools.islice(steps, count)]
            state = json.dumps(dataset.state_dict())
    assert whole[: sum(stops)] == found


def prefetched(source):
    """A node that notes the state of what it reads in every third item only."""
    return nodes.Prefetcher(nodes.IterableWrapper(source), 4, snapshot_frequency=3)


def taken_apart(source):
    """A node that tells the state from before the batch that it takes apart."""
    return nodes.Unbatcher(nodes.Batcher(nodes.IterableWrapper(source), 4, drop_last=False))


def weighted(source):
    """A node of two, one of which gives nothing for long."""
    parts = {"often": nodes.IterableWrapper(source), "rarely": nodes.IterableWrapper(Shuffled())}
    return nodes.MultiNodeWeightedSampler(
        parts,
        {"often": 10.0, "rarely": 1.0},
        rank=0,
        world_size=1,
        stop_criteria="ALL_DATASETS_EXHAUSTED",
    )


def taken_apart_of_two(source):
    """The sampler inside marks in the state that it has loaded who has ended."""
    del source
    parts = {"few": nodes.IterableWrapper(range(4)), "more": nodes.IterableWrapper(range(100, 108))}
    mixed = nodes.MultiNodeWeightedSampler(
        parts,
        {"few": 1.0, "more": 1.0},
        rank=0,
        world_size=1,
        seed=3,
        stop_criteria="ALL_DATASETS_EXHAUSTED",
    )
    return nodes.Unbatcher(nodes.Batcher(mixed, 5, drop_last=False))


class Silent(IterableDataset):
    """A stream that does not tell where it is."""

    def __iter__(self):
        return iter(range(40))


def counted_inside(source):
    """A loader that would pass over twice what it has counted, in a node."""
    del source
    return nodes.Unbatcher(nodes.IterableWrapper(StatefulDataLoader(Silent(), batch_size=1)))


@pytest.mark.parametrize(
    ("make", "stops"),
    [
        *itertools.product(
            [prefetched, taken_apart, weighted], [[3, 1, 1, 9], [14, 2, 3, 9], [1] * 20]
        ),
        (taken_apart_of_two, [7, 3, 2]),
        (counted_inside, [5, 3, 8]),
    ],
)
def test_a_node_is_restarted_before_it_has_noted_where_its_generator_is(make, stops):
    """Which is true only when that has begun to run."""
    one = tdi.OneDeviceStrategy("cpu")
    played = one.distribute_dataset(make(Shuffled()), global_batch_size=1)
    whole = [[step.item() for step in played] for _ in range(3)]
    found, state = [], None
    for count in stops:
        dataset = one.distribute_dataset(make(Shuffled()), global_batch_size=1)
        if state is not None:
            dataset.load_state_dict(json.loads(state))
        end = len(found) + count
        while len(found) < end:
            with iter(dataset) as steps:
                found += [step.item() for step in itertools.islice(steps, end - len(found))]
                state = json.dumps(dataset.state_dict())
    assert list(itertools.chain(*whole))[: sum(stops)] == found


def test_a_source_that_was_resumed_cannot_be_rewound_without_a_word(caplog):
    """A state of the very first beginning holds nothing: a new source is there by itself."""
    one = tdi.OneDeviceStrategy("cpu")
    first = one.distribute_dataset(Shuffled(), global_batch_size=1)
    beginning = first.state_dict()
    whole = [step.item() for step in first]
    with iter(first) as steps:
        next(steps)
        next(steps)
        state = first.state_dict()
    resumed = one.distribute_dataset(Shuffled(), global_batch_size=1)
    resumed.load_state_dict(state)
    list(resumed)
    assert not caplog.records
    resumed.load_state_dict(beginning)
    assert whole != [step.item() for step in resumed]
    assert "Distribute a new one for the first epoch" in caplog.text
