"""Rows dealt by what they cost, over simulated workers: the same steps, in less time."""

from __future__ import annotations

import itertools
import json
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import torch_distinput as tdi
from tests.conftest import LONG
from tests.distribute.balances import (
    COSTS,
    COUNT,
    HAS_SIZE,
    INDEXED,
    STREAMS,
    cost_of,
    costs_in_steps,
    examples_in_steps,
    in_steps,
    pad_up,
    play,
    slowness,
)
from tests.distribute.resumes import clusters, examples_of, make_of, run
from tests.distribute.street import one, options, shown
from tests.distribute.tpus import on_tpus
from torch_distinput.testing import simulate

some = settings(max_examples=300 if LONG else 15)
SOURCES = {**INDEXED, **STREAMS}
rules = st.sampled_from(["split", "even"])
names = st.sampled_from(list(SOURCES))


@pytest.mark.slow
@some
@given(names, st.integers(1, 14), clusters, rules, st.booleans(), st.booleans(), st.booleans())
def test_the_same_steps_dealt_better(name, size, cluster, rule, shuffle, drop_last, is_padded):
    """C1 to C3; no step is slower than cut as it is; what is told of it is so, on all workers."""
    cost, add_up = (tdi.PaddedCost(cost_of), pad_up) if is_padded else (cost_of, sum)
    keywords = {"options": options(rebatch=rule)}
    if name in HAS_SIZE:
        size = None
    else:
        keywords |= {"drop_last": drop_last, "shuffle": shuffle and name in INDEXED}
    plain, told_nothing = play(SOURCES[name](), size, cluster, **keywords)
    dealt, told = play(SOURCES[name](), size, cluster, balance=cost, **keywords)
    assert examples_in_steps(plain) == examples_in_steps(dealt)
    before, after = costs_in_steps(plain, add_up), costs_in_steps(dealt, add_up)
    assert all(max(b) >= max(a) for b, a in zip(before, after, strict=True))
    for batches in in_steps(dealt):
        has = sum(map(len, batches))
        assert batches.count([]) == max(0, len(batches) - has)
    assert {None} == set(told_nothing)
    if sum(map(sum, after)):
        mean = sum(map(np.mean, costs_in_steps(dealt)))  # without padding
        expected = pytest.approx((sum(map(max, before)) / mean, sum(map(max, after)) / mean))
        assert all(expected == (stats.before, stats.after) for stats in told)


@pytest.mark.slow
@some
@given(names, st.integers(1, 9), st.integers(1, 9), clusters, clusters, st.data())
def test_resumes_at_every_step_on_any_cluster(name, size, other_size, cluster, other, data):
    """C4: each example once, with balance before, after, or both."""
    if name in HAS_SIZE:
        size = other_size = None
    expected = examples_of(run(make_of(SOURCES[name](), size), (1, 1))[0])
    first, second = data.draw(st.sampled_from([(1, 1), (1, 0), (0, 1)]))
    costs = {"balance": cost_of}
    make = make_of(SOURCES[name](), size, **(costs if first else {}))
    steps = data.draw(st.integers(0, 8))
    head, state = run(make, cluster, steps=steps)
    again = make_of(SOURCES[name](), other_size, **(costs if second else {}))
    tail, _ = run(again, other, state=state)
    assert expected == examples_of(head) + examples_of(tail)


def test_order_within_a_replica_is_that_of_the_global_batch():
    """Whoever gets the rows."""
    workers, _ = play(torch.arange(COUNT), 10, (2, 2), balance=COSTS)
    assert all(batch == sorted(batch) for step in in_steps(workers) for batch in step)


def table():
    """Two columns, of which one is the cost."""
    return {"x": torch.arange(COUNT), "n": torch.tensor(COSTS)}


@pytest.mark.parametrize(
    "cost",
    [
        *("n", COSTS, np.array(COSTS), torch.tensor(COSTS)),
        *(lambda row: row["n"], lambda row: cost_of(row["x"])),
    ],
    ids=["column", "list", "array", "tensor", "function of a column", "function"],
)
def test_costs_of_any_kind(cost):
    """A column, an array or a function: the same numbers, the same steps."""

    def work(strategy, balance):
        dataset = strategy.distribute_dataset(table(), global_batch_size=12, balance=balance)
        return [shown(strategy, step["x"]) for step in dataset]

    expected = simulate(lambda strategy: work(strategy, COSTS), num_workers=3)
    assert expected == simulate(lambda strategy: work(strategy, cost), num_workers=3)


@pytest.mark.parametrize("ahead", [{"num_workers": 1}, {"num_threads": 2}])
def test_loader_processes_and_threads_change_nothing(ahead):
    """Steps are planned before they are fetched."""
    source = partial(SOURCES["dataset"])
    expected = play(source(), 9, (2, 1), balance=cost_of)
    assert expected == play(source(), 9, (2, 1), balance=cost_of, **ahead)


@pytest.mark.parametrize("name", ["tensor", "stream"])
def test_padded_batches_bound_the_rows(name):
    """As many rows as a share of a full batch, and less to do for the slowest all the same."""

    def work(strategy, **keywords):
        pad = options(partial_batch="pad")
        dataset = strategy.distribute_dataset(
            SOURCES[name](), global_batch_size=8, options=pad, **keywords
        )
        steps = [(batch.shape, batch[mask].tolist()) for batch, mask in dataset]
        return [[rows] for _, rows in steps], {shape for shape, _ in steps}

    plain, _ = zip(*simulate(work, num_workers=3), strict=True)
    dealt, shapes = zip(*simulate(partial(work, balance=cost_of), num_workers=3), strict=True)
    assert [{torch.Size([3])}] * 3 == list(shapes)
    assert examples_in_steps(plain) == examples_in_steps(dealt)
    assert slowness(costs_in_steps(dealt)) < slowness(costs_in_steps(plain))


@pytest.mark.parametrize("name", SOURCES)
def test_losses_and_audits_are_exact(name):
    """Rows are uneven over the replicas, and count one by one."""
    values = torch.arange(COUNT, dtype=torch.float64) ** 2

    def work(strategy):
        size = None if name in HAS_SIZE else 7
        dataset = strategy.distribute_dataset(
            SOURCES[name](), global_batch_size=size, balance=cost_of,
            options=options(audit=name != "sampler"),
        )  # fmt: skip
        return [
            (tdi.compute_average_loss(values[batch]).item(), batch.tolist()) for batch in dataset
        ]

    for parts in zip(*simulate(work, num_workers=3), strict=True):
        rows = [row for _, rows in parts for row in rows]
        assert values[rows].mean().item() == pytest.approx(sum(loss for loss, _ in parts))


def test_accumulated_gradients_are_those_of_one_large_batch():
    """Over steps and workers with any number of rows, the steps of the last group too."""
    values = torch.arange(COUNT, dtype=torch.float64) ** 2

    def work(strategy):
        dataset = strategy.distribute_dataset(
            torch.arange(COUNT), global_batch_size=7, balance=COSTS
        )
        return [
            [(step.average(values[step.batch]).item(), step.batch.tolist()) for step in group]
            for group in tdi.accumulate(dataset.steps(), 4)
        ]

    for groups in zip(*simulate(work, num_workers=3), strict=True):
        parts = list(itertools.chain(*groups))
        rows = [row for _, rows in parts for row in rows]
        assert values[rows].mean().item() == pytest.approx(sum(loss for loss, _ in parts))


def test_all_steps_of_a_tpu_have_one_shape():
    """Its batches are padded, also where a batch sampler has sizes of its own."""

    def work(strategy, name):
        size = None if name in HAS_SIZE else 6
        steps = strategy.distribute_dataset(
            SOURCES[name](), global_batch_size=size, balance=cost_of
        )
        return [(batch.shape, batch[mask].tolist()) for batch, mask in steps]

    for name in ("tensor", "stream"):
        workers = on_tpus(partial(work, name=name))
        assert {torch.Size([3])} == {shape for steps in workers for shape, _ in steps}
    workers = on_tpus(partial(work, name="sampler"))
    assert sorted([1, 2, 3, 4, 5, 6, 7, 40, 0, 9, 9, 9, 8]) == sorted(
        row for steps in workers for _, rows in steps for row in rows
    )


@pytest.mark.parametrize("name", SOURCES)
def test_replay_shows_what_each_replica_got(name):
    """On one worker, from a state before it; ids too."""
    size = None if name in HAS_SIZE else 7
    make = make_of(SOURCES[name](), size, balance=cost_of)

    def work(strategy):
        dataset = make(strategy)
        iterator = iter(dataset)
        next(iterator)
        state = dataset.state_dict()
        played = [(shown(strategy, step), iterator.last_step.ids) for step in iterator]
        return played, state

    workers = simulate(work, num_workers=2, replicas_per_worker=2)
    here = make(one())
    for number in range(len(workers[0][0])):
        replayed = here.replay(workers[1][1], number + 1)
        batches = [batch for steps, _ in workers for batch in steps[number][0]]
        ids = [own.tolist() for steps, _ in workers for own in steps[number][1]]
        assert batches == [[] if b is None else b.tolist() for b in replayed.batches]
        assert ids == [[] if i is None else i.tolist() for i in replayed.ids]


def test_costs_that_are_drawn_are_the_same_on_all_workers():
    """And draw nothing from the generators that training draws from."""

    def work(strategy):
        drawn = DataLoader(list(range(COUNT)), batch_size=6)
        dataset = strategy.distribute_dataset(drawn, balance=lambda _: int(torch.randint(99, ())))
        return [shown(strategy, step) for step in dataset]

    torch.manual_seed(1)
    expected = torch.rand(())
    torch.manual_seed(1)
    workers = simulate(work, num_workers=3)
    assert expected == torch.rand(())
    assert dict.fromkeys(range(COUNT), 1) == examples_of(workers)


def test_costs_that_have_changed_are_refused():
    """By a resume, as lengths of other data; by a replay also where one has no costs at all."""
    dataset, changed, padded, without = (
        one().distribute_dataset(torch.arange(COUNT), global_batch_size=7, **keywords)
        for keywords in (
            *({"balance": cost} for cost in (COSTS, COSTS[::-1], tdi.PaddedCost(COSTS))), {}
        )
    )  # fmt: skip
    next(iter(dataset))
    state = dataset.state_dict()
    changed.load_state_dict(state)
    with pytest.raises(tdi.ConfigurationError, match=r"costs of examples was '\w+', and here it"):
        iter(changed)
    for other in (changed, padded, without):
        with pytest.raises(tdi.ConfigurationError, match=r"costs of examples was '\w+', and here"):
            other.replay(state, 3)
    next(iter(without))
    with pytest.raises(tdi.ConfigurationError, match="costs of examples was 'another', and here"):
        dataset.replay(without.state_dict(), 3)


def test_zero_rows_are_foreseen_where_there_will_be_some(caplog):
    """Cut as they are, 9 rows go to 5 of 8 replicas; dealt, to all of them."""
    for count, words in ((9, []), (7, ["in 1 of the 1 steps of epoch 0 some replicas have no"])):
        caplog.clear()
        rows = torch.arange(count)
        iter(one(8).distribute_dataset(rows, global_batch_size=9, balance=cost_of)).close()
        assert len(words) == len(caplog.messages)
        assert all(word in said for word, said in zip(words, caplog.messages, strict=True))


def test_stats_count_since_the_iterator_was_made():
    """A resumed one begins anew; before the first step there is nothing to tell."""
    dataset = one(3).distribute_dataset(torch.arange(COUNT), global_batch_size=6, balance=COSTS)
    iterator = iter(dataset)
    assert iterator.stats().balance is None
    played = [[shown(one(3), step)] for step in itertools.islice(iterator, 3)]
    costs = costs_in_steps([[step for (step,) in played]])
    assert iterator.stats().balance.after == pytest.approx(slowness(costs))
    state = json.loads(json.dumps(dataset.state_dict()))
    dataset.load_state_dict(state)
    rest = iter(dataset)
    played = [shown(one(3), step) for step in rest]
    assert rest.stats().balance.after == pytest.approx(slowness(costs_in_steps([played])))
