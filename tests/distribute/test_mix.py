"""Mixtures over simulated workers: one order under DATA, each example as often as said."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_distinput as tdi
from tests.conftest import LONG
from tests.distribute.mixtures import (
    INDEXED,
    Rows,
    make_sources,
    make_values,
    mixtures,
    play_by_hand,
)
from tests.distribute.resumes import clusters, in_order, make_of, rules, run
from tests.distribute.street import one, options, play, stream_of
from torch_distinput.testing import assert_resumes_everywhere, simulate

some = settings(max_examples=300 if LONG else 25)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A new folder each time."""
    return (tmp_path_factory.mktemp("mixed") for _ in itertools.count())


@pytest.mark.slow
@some
@given(mixtures(), st.integers(1, 7), st.integers(1, 7), clusters, clusters, rules, st.data())
def test_one_order_for_all_workers(folders, case, size, other_size, cluster, other, rule, data):
    """C1 to C4 under DATA: found by reading or by arithmetic, on any cluster, from any step on."""
    kinds, lengths, weights, stop = case
    source = partial(
        tdi.mix, make_sources(next(folders), kinds, lengths), weights=weights, stop=stop
    )
    expected, _ = play_by_hand(make_values(kinds, lengths), weights, stop)
    steps = data.draw(st.integers(0, -(-len(expected) // size)))
    make = make_of(source, size, rebatch=rule, policy="data")
    head, state = run(make, cluster, steps=steps)
    tail, _ = run(make_of(source, other_size, policy="data"), other, state=state)
    assert expected == in_order(head) + in_order(tail)


@pytest.mark.slow
@some
@given(mixtures(INDEXED), st.integers(1, 7), clusters, clusters, st.booleans(), st.data())
def test_each_source_is_shuffled_by_itself(folders, case, size, cluster, other, drop_last, data):
    """The order of sources stays; a pass has each example once; a resume goes on in it."""
    kinds, lengths, weights, stop = case
    source = partial(
        tdi.mix, make_sources(next(folders), kinds, lengths), weights=weights, stop=stop
    )
    plain, sources = play_by_hand(make_values(kinds, lengths), weights, stop)
    count = len(plain) - len(plain) % size * drop_last
    keywords = {"shuffle": True, "seed": 5, "drop_last": drop_last}
    whole, _ = run(make_of(source, size, **keywords), (1, 1))
    got = in_order(whole)
    assert sources[:count].tolist() == [number // 100 for number in got]
    for number, length in enumerate(lengths):
        own = [value for value in got if value // 100 == number]
        for start in range(0, len(own), length):
            assert len(own[start : start + length]) == len(set(own[start : start + length]))
    steps = data.draw(st.integers(0, len(whole[0])))
    head, state = run(make_of(source, size, **keywords), cluster, steps=steps)
    tail, _ = run(make_of(source, size, **keywords), other, state=state)
    assert got == in_order(head) + in_order(tail)


def columns(start, count):
    """Examples of two columns."""
    return {"x": torch.arange(start, start + count), "y": [f"{n}" for n in range(count)]}


def test_shares_hold_at_every_step():
    """Within one example of the weights, whatever the global batch size is."""
    sources = {name: torch.arange(1000) for name in ("web", "code", "math")}
    mixture = tdi.mix(sources, weights={"math": 0.1, "web": 0.7, "code": 0.2})
    iterator = iter(one().distribute_dataset(mixture, global_batch_size=13))
    had = Counter()
    for index, _ in enumerate(itertools.islice(iterator, 100), 1):
        had.update(iterator.last_step.sources)
        shares = [had[name] / (13 * index) for name in sources]
        assert np.abs(np.array(shares) - (0.7, 0.2, 0.1)).max() < 1 / (13 * index)


@pytest.mark.parametrize("kind", ["index", "stream"])
@pytest.mark.parametrize("rebatch", ["split", "cycle"])
@pytest.mark.parametrize("buffer_size", [0, 2])
def test_steps_tell_what_they_are_from(kind, rebatch, buffer_size):
    """Of the whole global batch, on each worker; also where it gets no rows of it."""
    a = torch.arange(7) if kind == "index" else stream_of(range(7))

    def work(strategy):
        source = tdi.mix({"a": a, "b": torch.arange(100, 102)}, weights=(1, 1), stop="repeat")
        chosen = options(rebatch=rebatch, per_replica_buffer_size=buffer_size)
        dataset = strategy.distribute_dataset(source, global_batch_size=5, options=chosen)
        iterator = iter(dataset)
        sources = [iterator.last_step.sources for _ in iterator]
        stats = iterator.stats()
        again = [step.sources for step in dataset.steps()]
        return sources, stats.sources, stats.repeats, again

    for sources, total, repeats, again in simulate(work, num_workers=3):
        assert [{"a": 3, "b": 2}, {"a": 2, "b": 3}, {"a": 2, "b": 1}] == sources == again
        assert ({"a": 7, "b": 6}, {"a": 0, "b": 2}) == (total, repeats)


@pytest.mark.parametrize("kind", ["index", "stream"])
def test_repeats_are_those_since_the_epoch_began(kind):
    """Also after a resume behind which the source that was repeated does not come again."""
    a = torch.arange(2) if kind == "index" else stream_of(range(2))
    source = tdi.mix({"a": a, "b": torch.arange(9)}, weights=(1, 2), stop="repeat")

    def make():
        return one().distribute_dataset(source, global_batch_size=1)

    before, after = make(), make()
    list(itertools.islice(before, 12))
    after.load_state_dict(before.state_dict())
    iterator = iter(after)
    list(iterator)
    assert {"a": 0, "b": 1} == iterator.stats().sources
    assert {"a": 1, "b": 0} == iterator.stats().repeats


def test_steps_of_one_source_tell_nothing():
    iterator = iter(one().distribute_dataset(torch.arange(4), global_batch_size=2))
    next(iterator)
    assert iterator.last_step.sources is None
    assert {} == iterator.stats().sources


def test_weights_follow_a_schedule():
    """By steps as by examples; a short one has a stair for each example."""
    sources = {"a": torch.arange(500), "b": torch.arange(500)}
    by_step = tdi.schedule({0: (1, 0), 2: (1, 0), 4: (0, 1)}, unit="steps")
    by_example = tdi.schedule({0: {"a": 1, "b": 0}, 20: {"b": 0, "a": 3}, 40: {"a": 0, "b": 1}})
    played = []
    for weights in (by_step, by_example):
        mixture = tdi.mix(sources, weights=weights)
        iterator = iter(one().distribute_dataset(mixture, global_batch_size=10))
        played.append([iterator.last_step.sources["a"] for _ in itertools.islice(iterator, 6)])
    assert [10, 10, 8, 2, 0, 0] == played[0] == played[1]


@pytest.mark.slow
def test_a_schedule_goes_on_after_a_resume():
    """The place in it is the place in the order."""
    points = tdi.schedule({0: (4, 1), 30: (1, 1), 60: (1, 4)})

    def make(strategy):
        sources = {"a": torch.arange(80), "b": stream_of(range(100, 180))}
        return strategy.distribute_dataset(
            tdi.mix(sources, weights=points, stop="all"), global_batch_size=24
        )

    assert_resumes_everywhere(make, elsewhere=((3, 1),))


@pytest.mark.parametrize("kind", ["index", "stream"])
def test_a_step_can_be_looked_at_again(kind):
    """As all replicas got it, on one rank, with the same names."""
    a = torch.arange(9) if kind == "index" else stream_of(range(9))

    def work(strategy):
        source = tdi.mix({"a": a, "b": torch.arange(50, 53)}, weights=(2, 1), stop="repeat")
        dataset = strategy.distribute_dataset(source, global_batch_size=4)
        state = dataset.state_dict()
        played = [(step.batch.tolist(), step.ids.tolist()) for step in dataset.steps()]
        again = dataset.replay(state, 2)
        return played[2], [batch.tolist() for batch in again.batches], [
            ids.tolist() for ids in again.ids
        ]

    for number, (played, *again) in enumerate(simulate(work, num_workers=2)):
        assert played == (again[0][number], again[1][number])


class Told(Rows):
    """Examples that depend on the epoch."""

    epoch = None

    def set_epoch(self, epoch):
        """Keep it."""
        self.epoch = epoch

    def __getitem__(self, index):
        return 1000 * self.epoch + self.numbers[index]


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", ["index", "stream"])
def test_all_sources_are_told_the_epoch(kind, num_workers):
    """In loader processes, too, and beside a stream."""
    other = stream_of(range(3)) if kind == "stream" else list(range(3))
    source = tdi.mix({"a": Told(range(3)), "b": other}, weights=(1, 1))
    (steps,) = play(source, 6, epochs=2, num_workers=num_workers)
    assert [[[0, 0, 1, 1, 2, 2]], [[1000, 0, 1001, 1, 1002, 2]]] == steps


def test_a_mean_loss_is_that_of_the_whole_batch():
    """C5: the shares of all replicas add up to what one process would have computed."""

    def work(strategy):
        source = tdi.mix({"a": torch.arange(7.0), "b": torch.arange(50.0, 53.0)}, weights=(2, 1))
        dataset = strategy.distribute_dataset(source, global_batch_size=4)
        return [float(step.average(step.batch**2)) for step in dataset.steps()]

    alone, *shared = (
        [sum(step) for step in zip(*simulate(work, num_workers=workers), strict=True)]
        for workers in (1, 2, 3)
    )
    assert [pytest.approx(alone)] * 2 == shared


def test_a_loop_that_is_left_leaves_nothing():
    """C6: the next epoch has every example, and no thread stays."""
    before = set(threading.enumerate())

    def work(strategy):
        source = tdi.mix({"a": stream_of(range(9)), "b": torch.arange(9, 12)}, weights=(2, 1),
                         stop="all")  # fmt: skip
        dataset = strategy.distribute_dataset(source, global_batch_size=4)
        for _ in dataset:
            break
        with iter(dataset) as iterator:
            return [value for step in iterator for value in step.tolist()]

    workers = simulate(work, num_workers=2)
    assert list(range(12)) == sorted(value for worker in workers for value in worker)
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize("kind", ["index", "stream"])
def test_loader_processes_change_nothing(kind, num_workers):
    """They fetch, map and collate rows of several sources."""
    a = list(range(9)) if kind == "index" else stream_of(range(9))
    mixture = tdi.mix({"a": a, "b": list(range(20, 29))}, weights=(2, 1), stop="all")
    (steps,) = play(mixture, 4, num_workers=num_workers)
    expected, _ = play_by_hand([[*range(9)], [*range(20, 29)]], (2, 1), "all")
    assert expected == [value for step in steps for batch in step for value in batch]


@pytest.mark.parametrize("kind", ["index", "stream"])
def test_a_collate_fn_gets_the_examples_of_all_sources(kind):
    """At once and in order: it may pad all to one length."""
    lengths = [[3], [1, 1]], [[2, 2, 2], [5]]
    sources = dict(zip("ab", lengths, strict=True))
    if kind == "stream":
        sources["a"] = stream_of(lengths[0])
    source = tdi.mix(sources, weights=(1, 1))

    def pad(rows):
        longest = max(map(len, rows))
        return torch.tensor([row + [0] * (longest - len(row)) for row in rows])

    (steps,) = play(source, 4, collate_fn=pad)
    assert [[[[3, 0, 0], [2, 2, 2], [1, 1, 0], [5, 0, 0]]]] == steps


def test_columns_of_all_kinds_are_merged():
    """Tensors, lists of strings, in dicts whose keys come in another order."""
    one_way, other = columns(0, 3), columns(100, 3)
    sources = {"a": one_way, "b": {"y": np.array(other["y"]), "x": other["x"].numpy()}}
    sources["a"] = {"x": one_way["x"], "y": np.array(one_way["y"])}
    (batch,) = one().distribute_dataset(tdi.mix(sources, weights=(1, 1)), global_batch_size=6)
    assert [0, 100, 1, 101, 2, 102] == batch["x"].tolist()
    assert list("001122") == batch["y"].tolist()
