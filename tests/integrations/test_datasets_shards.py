"""Shards of Hugging Face streams: dealt out one by one, and again, from any place."""

from __future__ import annotations

import json
from functools import partial

import pytest

import torch_distinput as tdi
from tests.conftest import LONG
from tests.distribute.hugging_face_streams import (
    BY_SHARD,
    COUNT,
    EVERY_KIND,
    IN_PARTS,
    SIZES,
    distribute,
    of_generator,
    of_tables,
    play,
    rows_of,
)
from torch_distinput.data.user_sources.stages import has_exact_state, has_single_shards

LEGS = [(1, 1, 1), (2, 2, 2), (2, 3, 1), (3, 1, 2)]
pytestmark = [
    pytest.mark.with_frameworks,
    pytest.mark.filterwarnings("ignore:To copy construct:UserWarning"),  # in datasets
]


def whole(make, num_ranks, policy, epoch):
    """What an epoch has: a stream in parts may depend on their number."""
    return rows_of(play(make, num_ranks, policy=policy, epoch=epoch)[0])


def resume(make, legs, stop, again, **settings):
    """All rows of an epoch with two restarts."""
    first, state = play(make, legs[0], steps=stop, **settings)
    second, state = play(make, legs[1], state, steps=again, **settings)
    rest, _ = play(make, legs[2], state, **settings)
    return rows_of(first + second + rest)


@pytest.mark.parametrize(
    ("name", "legs", "epoch"),
    [
        *((name, (2, 3, 1), 2) for name in EVERY_KIND),
        *(
            (name, legs, 0)
            for name in ("generator", "batched map", "drawn")
            for legs in (LEGS if LONG or name == "generator" else [(2, 3, 1)])
        ),
    ],
)
def test_every_row_once_over_restarts(name, legs, epoch):
    """In the middle of shards, on the same workers and on others."""
    make = EVERY_KIND[name]
    legs = tuple(min(make().num_shards, workers) for workers in legs)
    expected = whole(make, legs[0], "file", epoch)
    for stop, again in ((1, 1), (4, 2)):
        assert expected == resume(make, legs, stop, again, epoch=epoch)


@pytest.mark.parametrize("name", EVERY_KIND)
def test_one_stream_for_all(name):
    """DATA: the same rows in the same order as the stream by itself, over restarts too."""
    make = EVERY_KIND[name]
    expected = [row["row"] for row in make()]
    assert sorted(expected) == resume(make, (2, 3, 1), 2, 1, policy="data")
    ((head,), state) = play(make, 1, steps=2, policy="data")
    ((tail,), _) = play(make, 1, state, policy="data")
    assert expected == head + tail


@pytest.mark.parametrize("name", ["torch", "batched map", "interleaved", "take of a skip"])
def test_loader_processes_change_nothing(name):
    """Neither the rows of a worker nor what follows a state."""
    make = EVERY_KIND[name]
    here, state = play(make, 2, steps=2)
    there, other = play(make, 2, steps=2, num_workers=2)
    assert here == there
    assert play(make, 2, other)[0] == play(make, 2, state, num_workers=2)[0]


@pytest.mark.parametrize("name", BY_SHARD)
def test_who_is_dealt_out_by_shard(name):
    """What all shards have together is what the whole has."""
    stream = BY_SHARD[name]()
    assert has_single_shards(stream)
    count = stream.num_shards
    shards = (stream.shard(num_shards=count, index=index) for index in range(count))
    rows = (row["row"] for shard in shards for row in shard)
    assert sorted(row["row"] for row in stream) == sorted(map(int, rows))


@pytest.mark.parametrize("name", IN_PARTS)
def test_who_is_not(name):
    """Something in it counts beyond the end of a shard."""
    assert not has_single_shards(IN_PARTS[name]())


def test_shards_that_nobody_has_touched_are_dealt_out_again():
    """Of seven shards two workers have begun one each; the others go to all three new ones."""
    first, state = play(of_generator, 2, steps=1)
    assert [3, 3] == list(map(len, first))
    rest, _ = play(of_generator, 3, state)
    assert list(range(COUNT)) == rows_of(first + rest)
    # What was begun is 5 + 6 rows less 6; of the other shards each new worker has some.
    assert all(len(rows) > 1 for rows in rest)
    begins = [sum(SIZES[:shard]) for shard in range(len(SIZES))]
    owners = {
        shard: {worker for worker, rows in enumerate(rest) if begins[shard] in rows}
        for shard in (3, 4, 5, 6)
    }
    assert 3 == len(set.union(*owners.values()))


def reads_after(make, state, num_ranks=1):
    """How many examples are asked for after a restart, and how many are delivered."""
    read = []

    def counted():
        return make(read)

    rows, _ = play(counted, num_ranks, state)
    return len(read), len(rows_of(rows))


def watched(read, *, then=lambda stream: stream):
    """A stream of ten shards of 40 rows that tells what is read."""

    def rows(shards):
        for shard in shards:
            for row in range(40):
                read.append(shard)
                yield {"row": 40 * shard + row}

    stream = tdi_stream(rows, shards=list(range(10)))
    return then(stream)


def tdi_stream(function, **shards):
    """A stream of a generator function."""
    from datasets import IterableDataset

    return IterableDataset.from_generator(function, gen_kwargs=shards)


@pytest.mark.parametrize("policy", ["file", "data"])
def test_a_restart_opens_only_the_shard_it_is_in(policy):
    """Those before it are not read again."""
    read = []
    (_, state) = play(partial(watched, read), 1, steps=50, policy=policy)
    again = []
    ((rest,), _) = play(partial(watched, again), 1, state, policy=policy)
    assert 400 - 300 == len(rest)
    if has_exact_state(watched([])):
        assert {7, 8, 9} == set(again)  # row 300 is in shard 7
        assert len(again) <= 100 + 20 + 6  # HF passes over the rows of a generator
    elif policy == "file":
        assert {7, 8, 9} == set(again)


def test_states_stay_small():
    """However far the epoch is."""
    sizes = [len(play(partial(watched, []), 1, steps=steps)[1]) for steps in (4, 20, 60)]
    assert max(sizes) < min(sizes) + 40 < 4096


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_shuffled_shards(num_ranks):
    """An order that depends on the seed and the epoch; every row once, over restarts too."""

    def order(seed, epoch):
        return play(of_tables, num_ranks, epoch=epoch, shuffle=True, seed=seed)[0]

    assert list(range(COUNT)) == rows_of(order(0, 0))
    orders = {json.dumps(order(seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}
    assert 4 == len(orders)
    assert order(1, 1) == order(1, 1)
    legs = (num_ranks, 3, 1)
    assert list(range(COUNT)) == resume(of_tables, legs, 2, 1, shuffle=True, seed=3, epoch=1)


def test_shuffled_shards_that_each_worker_plays():
    """OFF: all of them, in one order."""
    one, other = play(of_tables, 2, policy="off", shuffle=True)[0]
    assert one == other != sorted(one)


@pytest.mark.parametrize(
    ("name", "settings", "cure"),
    [
        ("tables", {"policy": "data"}, "Use FILE"),
        ("buffer", {}, "leave its shuffle.. out"),
        ("take", {}, "Shuffle the stream itself"),
    ],
)
def test_streams_whose_shards_cannot_be_shuffled(name, settings, cure):
    """The message says what to do."""
    with pytest.raises(tdi.ConfigurationError, match=cure):
        distribute(tdi.OneDeviceStrategy("cpu"), EVERY_KIND[name], shuffle=True, **settings)


def test_ids_name_the_shard_and_the_row():
    """The same after a restart."""
    one = tdi.OneDeviceStrategy("cpu")
    dataset = distribute(one, of_generator)
    names = {}
    for _ in range(2):
        steps = iter(dataset)
        for step in steps:
            pairs = steps.last_step.ids.tolist()
            names |= dict(zip(step["row"].tolist(), pairs, strict=True))
            if len(names) == 12:
                break
        dataset = distribute(one, of_generator)
        dataset.load_state_dict(steps.state_dict())
    starts = [sum(SIZES[:shard]) for shard, _ in names.values()]
    rows = [start + row for start, (_, row) in zip(starts, names.values(), strict=True)]
    assert list(range(COUNT)) == list(names) == rows


@pytest.mark.parametrize("policy", ["auto", "data"])
@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize(("name", "call"), [("take of a skip", "take"), ("drawn", "interleave_d")])
def test_stages_that_count_in_each_part_are_named(name, call, num_ranks, policy, caplog):
    """Said once, where a stream is dealt out to several; nothing of streams without them."""
    for make in (EVERY_KIND[name], of_tables):
        play(make, num_ranks, policy=policy, steps=1)
    said = [message for message in caplog.messages if "which counts in the shards" in message]
    assert [call in message for message in said] == [True] * (num_ranks > 1 and policy == "auto")
