"""Streams of the real ``datasets``: every row once, and orders that only the epoch changes."""

from __future__ import annotations

import itertools
import json
from functools import partial

import datasets
import pytest
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import torch_distinput as tdi
from torch_distinput.data.user_sources.stream_settings import settings_of
from torch_distinput.testing import assert_resumes_everywhere, simulate

COUNT = 53
pytestmark = pytest.mark.with_frameworks


def stream(*, shuffled=True):
    """Rows in seven shards; each worker has a stream of its own, as in processes."""
    rows = datasets.Dataset.from_dict({"row": list(range(COUNT))})
    shards = rows.to_iterable_dataset(num_shards=7)
    return shards.shuffle(seed=5, buffer_size=8) if shuffled else shards


def distribute(strategy, *, policy="auto", num_workers=0, make=stream):
    """The stream, distributed."""
    return strategy.distribute_dataset(
        make(), global_batch_size=8, num_workers=num_workers,
        options=tdi.InputOptions(auto_shard_policy=policy),
    )  # fmt: skip


def rows_of(steps):
    """All rows, in order."""
    return [row for step in steps for row in step["row"].tolist()]


def orders(policy, num_ranks, num_workers=0):
    """Per rank the order of three epochs."""

    def work(strategy):
        dataset = distribute(strategy, policy=policy, num_workers=num_workers)
        return [rows_of(dataset) for _ in range(3)]

    return simulate(work, num_workers=num_ranks)


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("policy", ["auto", "data", "off"])
def test_every_epoch_has_an_order_of_its_own(policy, num_ranks):
    """And every row once (on each rank, where nothing is dealt out)."""
    ranks = orders(policy, num_ranks)
    for epoch in range(3):
        rows = [row for rank in ranks for row in rank[epoch]]
        assert sorted(rows) == sorted([*range(COUNT)] * (num_ranks if policy == "off" else 1))
    for rank in ranks:
        assert len({tuple(order) for order in rank}) == 3


@pytest.mark.parametrize("policy", ["auto", "data"])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_loader_processes_do_not_change_the_order(policy, num_workers):
    """Though ``datasets`` shuffles otherwise where torch says that there are processes."""
    assert orders(policy, 2) == orders(policy, 2, num_workers)


@pytest.mark.parametrize(("before", "after"), [(0, 1), (1, 0), (0, 2)])
@pytest.mark.parametrize("epoch", [0, 1])
def test_states_do_not_know_of_loader_processes(before, after, epoch):
    """Here and there, in the first epoch and the second."""
    one = tdi.OneDeviceStrategy("cpu")
    whole = distribute(one)
    whole.set_epoch(epoch)
    expected = rows_of(whole)
    dataset = distribute(one, num_workers=before)
    dataset.set_epoch(epoch)
    head = rows_of(itertools.islice(dataset, 4))
    state = json.dumps(dataset.state_dict())
    dataset = distribute(one, num_workers=after)
    dataset.load_state_dict(json.loads(state))
    assert expected == head + rows_of(dataset)


@pytest.mark.parametrize("policy", ["auto", "data"])
def test_every_position(policy):
    """On the same cluster and on others."""
    assert_resumes_everywhere(partial(distribute, policy=policy))


@pytest.mark.parametrize("policy", ["auto", "file", "data"])
def test_a_stream_that_is_split_is_refused(policy):
    """Each rank would read a part of its part; the message has the cure."""
    split = partial(split_dataset_by_node, stream(), rank=1, world_size=2)
    one = tdi.OneDeviceStrategy("cpu")
    with pytest.raises(tdi.ConfigurationError, match="part 1 of 2 .*without the split"):
        distribute(one, policy=policy, make=split)
    with pytest.raises(tdi.ConfigurationError, match="part 1 of 2"):
        one.distribute_dataset(DataLoader(split(), batch_size=4))
    assert 0 < len(rows_of(distribute(one, policy="off", make=split))) < COUNT


def test_a_split_for_another_number_of_workers():
    """As for all ranks of a mesh: half of the rows would be nobody's."""
    split = partial(split_dataset_by_node, stream(), rank=1, world_size=4)

    def work(strategy):
        with pytest.raises(tdi.ConfigurationError, match="2 parts, .* got one split into 4"):
            distribute(strategy, policy="off", make=split)
        with pytest.raises(tdi.ConfigurationError, match="2 parts, .* got one split into 4"):
            strategy.distribute_datasets_from_function(lambda _: DataLoader(split(), batch_size=2))

    simulate(work, num_workers=2)


def test_a_split_into_one_part_is_none():
    """As a script has it that is run in one process."""
    split = partial(split_dataset_by_node, stream(), rank=0, world_size=1)
    dataset = distribute(tdi.OneDeviceStrategy("cpu"), make=split)
    assert list(range(COUNT)) == sorted(rows_of(dataset))


def test_streams_with_other_shards_on_other_ranks():
    """Their numbers are compared."""

    def work(strategy):
        rows = datasets.Dataset.from_dict({"row": list(range(COUNT))})
        shards = rows.to_iterable_dataset(num_shards=7 + strategy.worker_index)
        with pytest.raises(tdi.MismatchError, match="7 .*8 .*worker 1"):
            iter(distribute(strategy, make=lambda: shards))

    simulate(work, num_workers=2)


@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
@pytest.mark.parametrize("processes", [0, 2])
def test_loaders_over_a_stream(kind, processes):
    """They are told the epoch; a state does not forget what is in the buffer of a shuffle."""
    one = tdi.OneDeviceStrategy("cpu")

    def make():
        return one.distribute_dataset(kind(stream(), batch_size=4, num_workers=processes))

    dataset = make()
    epochs = [rows_of(dataset) for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert [list(range(COUNT))] * 2 == [sorted(epoch) for epoch in epochs]
    dataset = make()
    dataset.set_epoch(1)
    head = rows_of(itertools.islice(dataset, 3))
    other = make()
    other.load_state_dict(dataset.state_dict())
    assert epochs[1] == head + rows_of(other)


def unseeded(_):
    """Each rank draws an order of shards of its own."""
    return stream(shuffled=False).shuffle(buffer_size=4)


def a_part(worker):
    """The shards that a rank has picked itself."""
    return stream(shuffled=False).shard(2, worker)


def halves(worker):
    """Told by numbers of rows."""
    rows = stream(shuffled=False)
    return rows.skip(26) if worker else rows.take(26)


@pytest.mark.parametrize("policy", ["file", "data"])
@pytest.mark.parametrize("make", [unseeded, a_part, halves])
def test_streams_that_each_rank_makes_otherwise(make, policy):
    """Rows would be lost and repeated: refused before the first step."""

    def work(strategy):
        dataset = distribute(
            strategy, policy=policy, make=partial(make, strategy.worker_index)
        )
        with pytest.raises(tdi.MismatchError, match="same (seeds and shards|files)"):
            iter(dataset)

    simulate(work, num_workers=2)


def test_a_state_of_another_order_is_refused():
    """That of a stream that is shuffled without a seed; it has another order in each process."""
    alone = tdi.OneDeviceStrategy("cpu")
    dataset = distribute(alone, make=partial(unseeded, 0))
    next(iter(dataset))
    other = distribute(alone, make=partial(unseeded, 0))
    other.load_state_dict(dataset.state_dict())
    with pytest.raises(tdi.ConfigurationError, match="seeds and shards of the stream was"):
        iter(other)


def test_a_state_without_the_settings_loads():
    """Those of the first release lack them."""
    alone = tdi.OneDeviceStrategy("cpu")
    dataset = distribute(alone)
    first = rows_of([next(iter(dataset))])
    state = dataset.state_dict()
    state["recipe"] = [fact for fact in state["recipe"] if "seeds" not in fact[0]]
    other = distribute(alone)
    other.load_state_dict(state)
    assert list(range(COUNT)) == sorted(first + rows_of(other))


def test_settings_do_not_change_as_a_stream_is_read():
    """A state of a later epoch must be that of the same stream."""
    source = stream()
    before = settings_of(source)
    for epoch in range(2):
        source.set_epoch(epoch)
        assert COUNT == len(list(source))
    assert before == settings_of(source) == settings_of(stream())
