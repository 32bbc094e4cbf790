"""Token budgets over simulated workers: the same batches whoever reads them, each example once."""

from __future__ import annotations

import itertools
import threading
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import torch_distinput as tdi
from tests.conftest import LONG
from tests.distribute.budgets import (
    KINDS,
    by_tokens,
    fill_by_hand,
    length_of,
    list_batches,
    make_source,
    order_of,
)
from tests.distribute.mixtures import Rows
from tests.distribute.resumes import clusters, examples_of, in_order, run
from tests.distribute.street import Shards, one, options, play, stream_of, write_files
from torch_distinput.testing import assert_resumes_everywhere, simulate

some = settings(max_examples=300 if LONG else 15)
splits = st.sampled_from(["split", "even"])
budgets = st.integers(9, 30)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A new folder each time."""
    return (tmp_path_factory.mktemp("budget") for _ in itertools.count())


@pytest.mark.slow
@some
@given(
    st.sampled_from(KINDS),
    st.integers(2, 25),
    st.tuples(budgets, budgets),
    clusters,
    clusters,
    splits,
    st.data(),
)
def test_the_same_batches_on_any_cluster(folders, kind, count, sizes, cluster, other, rule, data):
    """C1 to C4 under DATA: a resume begins a batch where delivery stopped, with another budget."""
    order = order_of(kind, count)
    source = make_source(next(folders), kind, count)
    expected = fill_by_hand(order, sizes[0])
    steps = data.draw(st.integers(0, len(expected)))
    head, state = run(by_tokens(source, sizes[0], rebatch=rule), cluster, steps=steps)
    assert expected[:steps] == list_batches(head)
    rest = order[sum(map(len, expected[:steps])) :]
    again, _ = run(by_tokens(source, sizes[0], rebatch=rule), other, state=state)
    assert fill_by_hand(rest, sizes[0]) == list_batches(again)
    changed, _ = run(by_tokens(source, sizes[1]), other, state=state)
    assert fill_by_hand(rest, sizes[1]) == list_batches(changed)


@pytest.mark.slow
@some
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=6),
    st.tuples(budgets, budgets),
    st.tuples(clusters, clusters, clusters),
    splits,
    st.data(),
)
def test_files_are_dealt_out(folders, counts, sizes, sites, rule, data):
    """C1, C2 and C4 under FILE: each worker fills its own batches, and any cluster goes on."""
    numbers = iter(range(1000))
    files = [list(itertools.islice(numbers, count)) for count in counts]
    source = tdi.FileDataset(write_files(next(folders), files), split_files=True).map(int)
    kept = [by_tokens(source, size, policy="file", rebatch=rule) for size in sizes]
    whole, _ = run(kept[0], sites[0])
    assert examples_of(whole) == Counter(range(sum(counts)))
    assert len(set(map(len, whole))) == 1
    steps = data.draw(st.integers(0, len(whole[0])))
    head, state = run(kept[0], sites[0], steps=steps)
    assert [worker[:steps] for worker in whole] == head
    same, _ = run(kept[0], sites[0], state=state)
    assert [worker[steps:] for worker in whole] == same
    for make, site in ((kept[0], sites[1]), (kept[1], sites[0])):
        middle, later = run(make, site, state=state, steps=data.draw(st.integers(0, 3)))
        tail, _ = run(kept[0], sites[2], state=later)
        got = examples_of(head) + examples_of(middle) + examples_of(tail)
        assert got == Counter(range(sum(counts)))


def test_a_worker_plays_its_own_batches():
    """Under FILE: in as many steps as there are workers, cut for all replicas."""
    shards = Shards([[1, 2, 3, 4], [11, 12, 13]])  # lengths 7 4 1 8, and 7 4 1
    workers, _ = run(by_tokens(shards, 12, policy="file"), (2, 1))
    assert [[[1, 2]], [[3]], [[4]]] == workers[0]
    assert [[[11]], [[12, 13]], [[]]] == workers[1]  # rotated


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["shards", "windows", "interleaved", "stream", "dropped", "counted"]
)
def test_every_step_can_be_gone_on_from(tmp_path, kind):
    """C4 at every position, also in windows and in shards of the user's."""
    files = [list(range(start, start + 5)) for start in (0, 10, 20, 30)]
    source = tdi.FileDataset(write_files(tmp_path, files))
    if kind == "windows":
        source = source.map(int).shuffle(7)
    elif kind == "interleaved":
        source = source.interleave(2, 2).map(int).filter(lambda number: number % 3)
    elif kind == "dropped":
        source = source.map(int)
    elif kind == "counted":
        for number, file in enumerate(files):
            np.save(tmp_path / f"{number}.npy", np.array(file))
        source = tdi.FileDataset(str(tmp_path / "*.npy"), reader="npy")
    else:
        source = Shards(files) if kind == "shards" else stream_of([*itertools.chain(*files)])
    policy = "data" if kind in ("stream", "windows") else "file"
    elsewhere = () if kind in ("shards", "dropped") else ((1, 1), (3, 2))
    make = by_tokens(source, 17, policy=policy, drop_last=kind == "dropped")
    assert_resumes_everywhere(make, elsewhere=elsewhere)


@pytest.mark.parametrize("kind", ["list", "stream"])
def test_a_number_of_examples_becomes_a_budget(kind):
    """And back: a place is an example of the order."""
    values = list(range(20))
    source = values if kind == "list" else stream_of(values)

    def by_number(strategy):
        return strategy.distribute_dataset(
            source, global_batch_size=3, options=options(auto_shard_policy="data")
        )

    _, state = run(by_number, (2, 1), steps=2)
    middle, state = run(by_tokens(source, 12), (3, 1), state=state, steps=2)
    batches = fill_by_hand(values[6:], 12)
    assert batches[:2] == list_batches(middle)
    tail, _ = run(by_number, (1, 1), state=state)
    assert list(itertools.chain(*batches[2:])) == in_order(tail)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("kind", ["list", "stream", "files"])
def test_the_last_batch_may_be_left_out(tmp_path, kind, drop_last):
    """If it is not full; what is full is kept."""
    source = make_source(tmp_path, kind, 20)
    played, _ = run(by_tokens(source, 12, drop_last=drop_last), (2, 1))
    batches = fill_by_hand(range(20), 12)
    assert sum(map(length_of, batches[-1])) < 12
    assert batches[: len(batches) - drop_last] == list_batches(played)
    full = 10 * length_of(1)  # of ten examples like the first
    make = by_tokens([1] * 20, full, drop_last=drop_last)
    assert [[1] * 10] * 2 == list_batches(run(make, (2, 1))[0])


def test_a_stream_goes_on_with_other_lengths():
    """Under DATA rows tell where it stands: a batch begins with the next one."""
    source = stream_of(range(40))
    head, state = run(by_tokens(source, 12), (2, 1), steps=4)

    def make(strategy):
        budget = tdi.TokenBudget(12, length=lambda value: 1)
        return strategy.distribute_dataset(source, global_batch_size=budget)

    tail, _ = run(make, (2, 1), state=state)
    assert list(range(40)) == in_order(head) + in_order(tail)


def test_each_epoch_has_an_order_of_its_own():
    """That of a number of examples."""
    values = list(range(20))
    budget = tdi.TokenBudget(12, length=length_of)
    (one_way,) = play(values, budget, epochs=2, shuffle=True)
    (other,) = play(values, 4, epochs=2, shuffle=True)
    assert in_order([other]) == in_order([one_way])


class Backwards:
    """A sampler: the last one first, and one less in each epoch."""

    epoch = 0

    def __init__(self, count):
        self.count = count

    def set_epoch(self, epoch):
        """Keep it."""
        self.epoch = epoch

    def __len__(self):
        return self.count

    def __iter__(self):
        return iter(range(self.count - 1 - self.epoch, -1, -1))


def test_the_order_of_a_sampler_is_cut():
    """Of a DataLoader that makes no batches; and so is a shuffle of ours."""
    loader = DataLoader(Rows(range(20)), batch_size=None, sampler=Backwards(20))
    head, state = run(by_tokens(loader, 12), (2, 1), steps=3)
    tail, _ = run(by_tokens(loader, 12), (3, 1), state=state)
    expected = fill_by_hand(range(19, -1, -1), 12)
    assert expected == list_batches(head) + list_batches(tail)
    dataset = by_tokens(loader, 12)(one())
    for epoch in range(3):
        batches = fill_by_hand(range(19 - epoch, -1, -1), 12)
        assert batches == [step.tolist() for step in dataset]
    shuffled = DataLoader(Rows(range(20)), batch_size=None, shuffle=True)
    ours, _ = run(by_tokens(Rows(range(20)), 12, shuffle=True), (2, 1))
    assert ours == run(by_tokens(shuffled, 12), (2, 1))[0]


@pytest.mark.parametrize("kind", ["list", "stream"])
def test_a_mean_loss_is_that_of_the_whole_batch(kind):
    """C5: the shares of all replicas add up to what one process would have computed."""
    values = [float(number) for number in range(20)]
    source = values if kind == "list" else stream_of(values)

    def work(strategy):
        dataset = by_tokens(source, 12)(strategy)
        return [float(step.average(step.batch**2)) for step in dataset.steps()]

    alone, *shared = (
        [sum(step) for step in zip(*simulate(work, num_workers=workers), strict=True)]
        for workers in (1, 2, 3)
    )
    assert [pytest.approx(alone)] * 2 == shared


@pytest.mark.parametrize("kind", ["list", "stream"])
def test_a_step_can_be_looked_at_again(kind):
    """As all replicas got it; also with another budget than the dataset has now."""
    values = list(range(20))
    source = values if kind == "list" else stream_of(values)

    def work(strategy):
        dataset = by_tokens(source, 12)(strategy)
        state = dataset.state_dict()
        played = [step.batch.tolist() for step in dataset.steps()]
        again = by_tokens(source, 25)(strategy).replay(state, 2)
        return played[2], [[] if b is None else b.tolist() for b in again.batches]

    for number, (played, again) in enumerate(simulate(work, num_workers=2)):
        assert played == again[number]


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("kind", ["list", "stream"])
def test_loader_processes_change_nothing(kind, num_workers):
    """They fetch, or read and measure."""
    source = list(range(20)) if kind == "list" else stream_of(range(20))
    played, _ = run(by_tokens(source, 12, num_workers=num_workers), (1, 1))
    assert fill_by_hand(range(20), 12) == list_batches(played)


def test_a_loop_that_is_left_leaves_nothing():
    """C6: the next epoch has every example, and no thread stays."""
    before = set(threading.enumerate())

    def work(strategy):
        dataset = by_tokens(stream_of(range(20)), 12)(strategy)
        for _ in dataset:
            break
        with iter(dataset) as iterator:
            return [value for step in iterator for value in step.tolist()]

    workers = simulate(work, num_workers=2)
    assert list(range(20)) == sorted(value for worker in workers for value in worker)
    left = set(threading.enumerate()) - before
    for thread in left:
        thread.join(timeout=60.0)
    assert not any(thread.is_alive() for thread in left)


def test_every_worker_plays_everything_under_off():
    """Each of its batches in as many steps as there are workers."""
    played, _ = run(by_tokens(list(range(20)), 12, policy="off"), (2, 1))
    assert [Counter(range(20))] * 2 == [examples_of([worker]) for worker in played]


def test_an_audit_finds_nothing():
    """Every example once, as the plan says; a stream was the same on all workers."""
    for source in (list(range(20)), stream_of(range(20))):

        def work(strategy, source=source):
            chosen = options(auto_shard_policy="data", audit=True)
            budget = tdi.TokenBudget(12, length=length_of)
            dataset = strategy.distribute_dataset(source, global_batch_size=budget, options=chosen)
            return sum(len(step) for step in dataset)

        assert 20 == sum(simulate(work, num_workers=2))
