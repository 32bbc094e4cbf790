"""Streams of datasets 4.7 shift their seeds in place: epochs do not depend on those before."""

from __future__ import annotations

import itertools
import json

import pytest
from datasets import Dataset, interleave_datasets

import torch_distinput as tdi
from tests.distribute.street import options


def numbers(first=0, count=9):
    """A stream of two shards."""
    rows = Dataset.from_dict({"number": list(range(first, first + count))})
    return rows.to_iterable_dataset(num_shards=2)


def interleaved():
    """One of two streams by chance."""
    return interleave_datasets(
        [numbers(), numbers(100)],
        probabilities=[0.5, 0.5],
        seed=5,
        stopping_strategy="all_exhausted",
    )


def shuffled():
    """In a buffer."""
    return numbers(count=18).shuffle(seed=5, buffer_size=6)


CUTS = {"take": lambda stream: stream.take(14), "skip": lambda stream: stream.skip(2)}


@pytest.mark.parametrize("make", [interleaved, shuffled])
def test_a_stream_that_is_made_of_a_played_one_has_its_own_order(make):
    """Not one that depends on how often the other was played."""

    def play(stream, times=1):
        dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(
            stream, global_batch_size=2, options=options(auto_shard_policy="data")
        )
        return [[step["number"].tolist() for step in dataset] for _ in range(times)]

    played = CUTS["take"](make())
    play(played, times=2)
    assert play(CUTS["take"](make()).map(dict)) == play(played.map(dict))


@pytest.mark.parametrize("policy", ["data", "file"])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("make", [interleaved, shuffled])
def test_an_epoch_has_one_order(make, cut, policy):
    """Also behind take() and skip(), when it is played again, and when it is gone on with."""

    def distribute():
        return tdi.OneDeviceStrategy("cpu").distribute_dataset(
            CUTS[cut](make()), global_batch_size=2, options=options(auto_shard_policy=policy)
        )

    def play(dataset):
        return [step["number"].tolist() for step in dataset]

    whole = distribute()
    first, second = play(whole), play(whole)
    assert first != second
    whole.set_epoch(1)
    assert second == play(whole)
    whole.set_epoch(1)
    with iter(whole) as steps:
        head = [step["number"].tolist() for step in itertools.islice(steps, 3)]
        state = json.loads(json.dumps(whole.state_dict()))
    for dataset in (whole, distribute()):
        dataset.load_state_dict(state)
        assert second == head + play(dataset)


class Wrapper:
    """A source of the user's own over a stream."""

    def __init__(self, stream):
        self.stream = stream

    def __iter__(self):
        return iter(self.stream)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("wrap", [Wrapper, lambda stream: lambda: iter(stream)])
def test_an_epoch_has_one_order_behind_a_wrapper(wrap, cut):
    """What is told the epoch is also as it was when it began first."""

    def play(*epochs):
        dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(
            wrap(CUTS[cut](shuffled())), global_batch_size=2
        )
        for epoch in epochs:
            dataset.set_epoch(epoch)
            found = [step["number"].tolist() for step in dataset]
        return found

    assert play(2) == play(0, 1, 2) != play(1)
