"""Buckets over simulated workers: each example once, one order under DATA, resumed anywhere."""

from __future__ import annotations

import itertools
from collections import Counter
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_distinput as tdi
from tests.conftest import LONG
from tests.distribute.mixtures import MAKERS, Rows, make_values
from tests.distribute.resumes import clusters, examples_of, in_order, make_of, rules, run
from tests.distribute.street import Shards, one, options, play, stream_of, write_files
from torch_distinput.plan.assignment.bucketing import find_buckets, round_window, sort_window
from torch_distinput.testing import assert_resumes_everywhere, simulate

some = settings(max_examples=300 if LONG else 15)
BOUNDARIES = (2, 4)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A new folder each time."""
    return (tmp_path_factory.mktemp("buckets") for _ in itertools.count())


def length_of(number):
    """From 1 to 6, in no order."""
    return 1 + int(number) * 5 % 6


def sort_by_hand(numbers, size, window):
    """What is played without a shuffle."""
    window, found = round_window(window, size), []
    for first in range(0, len(numbers), window):
        own = np.array(numbers[first : first + window])
        buckets = find_buckets(np.array([length_of(number) for number in own]), BOUNDARIES)
        found += own[sort_window(buckets, size, key=None)].tolist()
    return found


def bucketed(source, window):
    """A source in buckets."""
    return tdi.bucket(source, length=length_of, boundaries=BOUNDARIES, window=window)


@some
@given(st.sampled_from(sorted(MAKERS)), st.integers(2, 30), st.integers(1, 6), st.integers(1, 15),
       clusters, clusters, rules, st.data())  # fmt: skip
def test_one_order_for_all_workers(folders, kind, count, size, window, cluster, other, rule, data):
    """C1 to C4 under DATA: by index as by reading, on any cluster, from any step on."""
    folder = next(folders)
    inner = MAKERS[kind](folder / "files", list(range(count)))
    ((*numbers,),) = make_values([kind], [count])
    expected = sort_by_hand(numbers, size, window)
    make = make_of(partial(bucketed, inner, window), size, rebatch=rule, policy="data")
    steps = data.draw(st.integers(0, -(-count // size)))
    head, state = run(make, cluster, steps=steps)
    tail, _ = run(make, other, state=state)
    assert expected == in_order(head) + in_order(tail)


@some
@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 15), st.booleans(), clusters, clusters,
       st.data())  # fmt: skip
def test_a_shuffle_is_sorted(count, size, window, drop_last, cluster, other, data):
    """Windows of the plain shuffle with the same examples; the same on any cluster."""
    keywords = {"shuffle": True, "seed": 5, "drop_last": drop_last}
    plain, _ = run(make_of(torch.arange(count), size, **keywords), (1, 1))
    make = make_of(bucketed(torch.arange(count), window), size, **keywords)
    whole, _ = run(make, (1, 1))
    got, before = in_order(whole), in_order(plain)
    window = round_window(window, size)
    for first in range(0, len(got), window):
        assert sorted(before[first : first + window]) == sorted(got[first : first + window])
    steps = data.draw(st.integers(0, len(whole[0])))
    head, state = run(make, cluster, steps=steps)
    tail, _ = run(make, other, state=state)
    assert got == in_order(head) + in_order(tail)


def test_epochs_have_orders_of_their_own():
    """The batches come in another order, also of files whose rows are not shuffled."""
    dataset = one().distribute_dataset(
        bucketed(torch.arange(60), 30), global_batch_size=3, shuffle=True
    )
    epochs = [[n for batch in dataset for n in batch.tolist()] for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert [list(range(60))] * 2 == [sorted(epoch) for epoch in epochs]


@st.composite
def cases_of_files(draw):
    """Files with enough of them for three workers, and what is done with their rows."""
    files = draw(st.lists(st.integers(0, 5), min_size=3, max_size=8))
    recipe = draw(st.sampled_from(["plain", "shuffle", "filter", "interleave"]))
    return files, recipe


def with_recipe(files, recipe):
    """A FileDataset of numbers; those without a filter are counted beforehand."""
    if recipe == "shuffle":
        files = files.shuffle(3)
    if recipe == "filter":
        files = files.filter(lambda line: int(line) % 3 != 1)
    if recipe == "interleave":
        files = files.interleave(2, 2)
    return files.map(int)


@some
@given(cases_of_files(), st.integers(1, 6), st.integers(1, 12), st.tuples(*[st.integers(1, 3)] * 3),
       st.booleans(), st.booleans(), st.data())  # fmt: skip
def test_files_that_are_dealt_out(folders, case, size, window, workers, shuffle, split, data):
    """C1, C2 and C4 under FILE: what one cluster has not delivered two others deliver, in turn."""
    lengths, recipe = case
    numbers = itertools.count()
    pattern = write_files(next(folders), [[next(numbers) for _ in range(n)] for n in lengths])
    expected = [n for n in range(next(numbers)) if recipe != "filter" or n % 3 != 1]

    def source():
        files = tdi.FileDataset(pattern, split_files=split)
        return bucketed(with_recipe(files, recipe), window)

    make = make_of(partial(source), size, shuffle=shuffle, seed=3)
    whole, _ = run(make, (workers[0], 1))
    assert Counter(expected) == examples_of(whole)
    steps = data.draw(st.integers(0, len(whole[0])))
    head, state = run(make, (workers[0], 1), steps=steps)
    middle, state = run(make, (workers[1], 1), state=state, steps=data.draw(st.integers(0, 3)))
    tail, _ = run(make, (workers[2], 1), state=state)
    assert Counter(expected) == examples_of(head) + examples_of(middle) + examples_of(tail)
    assert all(len({len(worker) for worker in part}) == 1 for part in (head, middle, tail))


def make_kind(kind, folder):
    """A source of 23 numbers of some kind."""
    if kind == "files":
        files = [range(9), range(9, 14), range(14, 23)]
        return tdi.FileDataset(write_files(folder, files)).map(int)
    if kind == "mixed files":
        sources = {}
        for name, start in (("a", 0), ("b", 14)):
            (folder / name).mkdir()
            files = [range(start + 3 * number, start + 3 * number + 3) for number in range(3)]
            sources[name] = tdi.FileDataset(write_files(folder / name, files)).map(int)
        return tdi.mix(sources, weights=(2, 1), stop="all")
    if kind == "shards":
        return Shards([list(range(9)), list(range(9, 14)), list(range(14, 23))])
    if kind == "mixture":
        sources = {"a": torch.arange(15), "b": stream_of(range(15, 23))}
        return tdi.mix(sources, weights=(2, 1), stop="all")
    return {"index": torch.arange(23), "stream": stream_of(range(23))}[kind]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["index", "stream", "files", "shards", "mixture", "mixed files"])
def test_a_state_of_every_step_goes_on_everywhere(tmp_path, kind):
    """On the same cluster with the same batches, elsewhere with the same examples."""
    source = bucketed(make_kind(kind, tmp_path), 8)

    def make(strategy):
        return strategy.distribute_dataset(source, global_batch_size=3)

    assert_resumes_everywhere(make)


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "split"), [("data", False), ("file", True)])
def test_files_that_tell_their_lengths_go_on_everywhere(tmp_path, policy, split):
    """Where nothing is read to find a place; also of files and batches in orders of the epoch."""
    for number, (start, stop) in enumerate([(0, 9), (9, 14), (14, 16), (16, 28)]):
        np.save(tmp_path / f"{number}.npy", np.arange(start, stop))
    files = tdi.FileDataset(str(tmp_path / "*.npy"), reader="npy", split_files=split)
    source = bucketed(files, 9)
    dealt = options(auto_shard_policy=policy)

    def make(strategy):
        return strategy.distribute_dataset(source, global_batch_size=3, shuffle=True, options=dealt)

    assert_resumes_everywhere(make, elsewhere=((3, 1),))
    dataset = make(one())
    epochs = [[n for batch in dataset for n in batch.tolist()] for _ in range(2)]
    assert [list(range(28))] * 2 == [sorted(epoch) for epoch in epochs]


@pytest.mark.parametrize(("drop_last", "num_steps"), [(False, 6), (True, 5)])
def test_files_that_tell_their_lengths_have_a_len_from_any_step_on(tmp_path, drop_last, num_steps):
    """Though workers vote, to compare what they have measured."""
    np.save(tmp_path / "a.npy", np.arange(23))
    source = bucketed(tdi.FileDataset(str(tmp_path / "*.npy"), reader="npy"), 8)

    make = make_of(source, 4, drop_last=drop_last, policy="data")

    def play_on(strategy, state=None):
        dataset = make(strategy)
        if state is not None:
            dataset.load_state_dict(state)
        iterator = iter(dataset)  # it looks into the files
        lens, states = [len(dataset)], []
        for _ in iterator:
            lens.append(len(dataset))
            states.append(dataset.state_dict())
        return lens, states

    ((lens, states), _) = simulate(play_on, num_workers=2)
    assert [num_steps] * (num_steps + 1) == lens
    for number, state in enumerate(states, 1):
        for lens, _ in simulate(partial(play_on, state=state), num_workers=3):
            assert [num_steps] * (num_steps + 1 - number) == lens


def test_the_windows_of_a_file_are_shuffled_each_by_itself(tmp_path):
    """A place holds the number of its window: the batches of another come in another order."""
    np.save(tmp_path / "a.npy", np.arange(320))
    files = tdi.FileDataset(str(tmp_path / "*.npy"), reader="npy")
    filtered = bucketed(files.filter(lambda rows: rows >= 0), 160)

    def make(strategy):
        return strategy.distribute_dataset(filtered, global_batch_size=8, shuffle=True)

    dataset = make(one())
    turns = [
        tuple(np.argsort([batch.tolist()[0] for batch in own]))
        for epoch in (list(dataset), list(dataset))
        for own in (epoch[:20], epoch[20:])
    ]
    assert 4 == len(set(turns))
    head, state = run(make, (1, 1), steps=23)
    tail, _ = run(make, (1, 1), state=state)
    whole, _ = run(make, (1, 1))
    assert whole == [head[0] + tail[0]]


@pytest.mark.parametrize("num_workers", [1, 3])
@pytest.mark.parametrize("kind", ["index", "stream", "files"])
def test_loader_processes_change_nothing(tmp_path, kind, num_workers):
    source = bucketed(make_kind(kind, tmp_path), 8)
    assert play(source, 3) == play(source, 3, num_workers=num_workers)


@pytest.mark.parametrize("policy", ["data", "off"])
def test_an_audit_finds_each_example_once(tmp_path, policy):
    """Also after a resume in the middle of a window, of a stream and of files."""
    for kind in ("stream", "files", "index"):
        (tmp_path / kind).mkdir()
        source = bucketed(make_kind(kind, tmp_path / kind), 8)
        chosen = options(audit=True, auto_shard_policy=policy)

        def make(strategy, source=source, chosen=chosen):
            return strategy.distribute_dataset(source, global_batch_size=3, options=chosen)

        head, state = run(make, (2, 1), steps=1)
        tail, _ = run(make, (2, 1), state=state)
        times = 2 if policy == "off" else 1
        assert Counter(dict.fromkeys(range(23), times)) == examples_of(head) + examples_of(tail)


@pytest.mark.parametrize("kind", ["stream", "counted files", "mixture"])
def test_lengths_that_differ_between_workers_are_found_in_any_batch(tmp_path, kind):
    """Examples would be lost, and others come twice."""
    np.save(tmp_path / "a.npy", np.arange(60))
    source = stream_of(range(60))
    if kind == "counted files":
        source = tdi.FileDataset(str(tmp_path / "*.npy"), reader="npy")

    def work(strategy):
        def measure(number):
            number = int(number)
            return 1 + (number + strategy.worker_index * (number >= 40)) % 2

        def make_tokens():
            for number in range(60):
                yield [number] * measure(number)

        own = tdi.bucket(source, length=measure, boundaries=(1,), window=20)
        if kind == "mixture":
            packed = tdi.pack(make_tokens, length=2, tokens=None, window=20)
            own = tdi.mix({"packed": packed}, weights=(1,))
        chosen = options(auto_shard_policy="data")
        dataset = strategy.distribute_dataset(own, global_batch_size=4, options=chosen)
        with pytest.raises(tdi.MismatchError, match="read the same stream"):
            list(dataset)
        assert kind != "counted files" or 15 == len(dataset)
        return True

    assert [True, True] == simulate(work, num_workers=2)


def test_ids_are_those_of_the_examples():
    """In a stream the number of an example, by index its index."""
    for source in (torch.arange(10), stream_of(range(10))):
        dataset = one().distribute_dataset(bucketed(source, 10), global_batch_size=2)
        for step in dataset.steps():
            assert step.batch.tolist() == step.ids.tolist()


@pytest.mark.parametrize("keywords", [{}, {"num_threads": 2}, {"num_workers": 2}])
def test_rows_of_a_window_are_finished_as_ever(tmp_path, keywords):
    """A list column is a jagged tensor, and packed text stays packed."""
    rows = [[number] * (1 + number * 5 % 6) for number in range(12)]
    for number in range(0, 12, 4):
        table = pa.table({"ids": rows[number : number + 4], "text": list("abcd")})
        pq.write_table(table, tmp_path / f"{number:02}.parquet")
    files = tdi.FileDataset(str(tmp_path / "*"), reader="parquet", strings="packed")
    source = tdi.bucket(files, length="ids", boundaries=BOUNDARIES, window=12)
    (batches,) = [list(one().distribute_dataset(source, global_batch_size=4, **keywords))]
    got = [row.tolist() for batch in batches for row in batch["ids"].unbind()]
    assert [rows[number] for number in sort_by_hand(range(12), 4, 12)] == got
    expected = ["abcd"[row[0] % 4] for row in got]
    assert expected == [text for batch in batches for text in batch["text"].to_list()]


class Told(Rows):
    """Examples that there are none of before the epoch is told."""

    epoch = None

    def set_epoch(self, epoch):
        """Keep it."""
        self.epoch = epoch

    def __getitem__(self, index):
        return self.numbers[index] + 0 * self.epoch


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_dataset_is_told_an_epoch_before_it_is_measured(num_workers):
    """Its examples are asked for when it is distributed, in this process."""
    source = bucketed(Told(list(range(8))), 8)
    (steps,) = play(source, 8, num_workers=num_workers)
    assert [[list(range(8))]] == steps


def test_bad_records_are_counted(tmp_path):
    """Of the windows that were read."""
    (tmp_path / "a.jsonl").write_text('{"x": 1}\nnonsense\n{"x": 2}\n{"x": 3}\n')
    files = tdi.FileDataset(str(tmp_path / "a.jsonl"), reader="jsonl", on_error="skip")
    source = tdi.bucket(files, length="x", boundaries=(2,), window=2)
    iterator = iter(one().distribute_dataset(source, global_batch_size=1))
    assert [1, 2, 3] == [int(batch["x"]) for batch in iterator]
    assert [1] == list(iterator.stats().skipped.values())
