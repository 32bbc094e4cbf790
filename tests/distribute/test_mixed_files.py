"""Mixtures of files and shards, and states of every step of mixtures of all kinds."""

from __future__ import annotations

import itertools
from collections import Counter
from functools import partial

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_distinput as tdi
from tests.conftest import LONG
from tests.distribute.hugging_face_streams import of_tables
from tests.distribute.resumes import examples_of, make_of, run
from tests.distribute.street import Shards, one, options, stream_of, write_files
from torch_distinput.testing import assert_resumes_everywhere

some = settings(max_examples=300 if LONG else 15)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A new folder each time."""
    return (tmp_path_factory.mktemp("mixed") for _ in itertools.count())


@st.composite
def mixtures_of_files(draw):
    """Files of two sources, with enough of them for three workers; and how they are mixed."""
    files = [
        draw(st.lists(st.integers(1, 4), min_size=3, max_size=7)) for _ in range(2)
    ]
    weights = [draw(st.integers(1, 4)) for _ in range(2)]
    return files, weights, draw(st.sampled_from(["first", "all", "repeat"]))


@pytest.mark.slow
@some
@given(mixtures_of_files(), st.integers(1, 6), st.tuples(*[st.integers(1, 3)] * 3),
       st.integers(0, 3), st.booleans(), st.data())  # fmt: skip
def test_files_that_are_dealt_out(folders, case, size, workers, buffer, shuffle, data):
    """C1, C2 and C4 under FILE: what one cluster has not delivered two others deliver, in turn."""
    lengths, weights, stop = case
    folder, numbers, patterns = next(folders), itertools.count(), []
    for source, own in enumerate(lengths):
        (folder / str(source)).mkdir()
        files = [[next(numbers) for _ in range(length)] for length in own]
        patterns.append(write_files(folder / str(source), files))
    total = next(numbers)

    def source():
        recipes = (tdi.FileDataset(pattern) for pattern in patterns)
        if buffer:
            recipes = (recipe.shuffle(buffer) for recipe in recipes)
        mapped = dict(zip("ab", (recipe.map(int) for recipe in recipes), strict=True))
        return tdi.mix(mapped, weights=weights, stop=stop)

    make = make_of(partial(source), size, shuffle=shuffle, seed=3)
    whole, _ = run(make, (workers[0], 1))
    if stop == "all":
        assert Counter(range(total)) == examples_of(whole)
    if stop == "repeat":
        assert set(range(total)) == set(examples_of(whole))
    steps = data.draw(st.integers(0, len(whole[0])))
    head, state = run(make, (workers[0], 1), steps=steps)
    more = data.draw(st.integers(0, 3))
    middle, state = run(make, (workers[1], 1), state=state, steps=more)
    tail, _ = run(make, (workers[2], 1), state=state)
    assert examples_of(whole) == examples_of(head) + examples_of(middle) + examples_of(tail)
    assert all(len({len(worker) for worker in part}) == 1 for part in (head, middle, tail))


@pytest.mark.slow
@pytest.mark.parametrize("stop", ["first", "all", "repeat"])
@pytest.mark.parametrize("kind", ["index", "stream", "files"])
def test_a_state_of_every_step_goes_on_everywhere(tmp_path, kind, stop):
    """On the same cluster with the same batches, elsewhere with the same examples."""
    numbers = torch.arange(9)
    other = {"index": torch.arange(20, 25), "stream": stream_of(range(20, 25)), "files": None}[kind]
    if kind == "files":
        files = [[n, n + 100] for n in range(5)]
        other = tdi.FileDataset(write_files(tmp_path, files)).shuffle(3).map(int)

    def make(strategy):
        inner = tdi.mix({"c": torch.arange(50, 53), "d": other}, weights=(1, 2), stop=stop)
        source = tdi.mix({"a": numbers, "b": inner}, weights=(2, 1), stop="all")
        return strategy.distribute_dataset(source, global_batch_size=4)

    assert_resumes_everywhere(make)


def write_pairs(folder, files):
    """Files of two numbers each."""
    folder.mkdir()
    return write_files(folder, files)


@pytest.mark.slow
@pytest.mark.parametrize("weights", [(5, 1), (1, 5)])
def test_files_of_uneven_weights_are_dealt_out_again(tmp_path, weights):
    """A worker that is further in one source than in the other keeps what it touched of both."""
    first = write_pairs(tmp_path / "a", [[n, n + 100] for n in range(8)])
    second = write_pairs(tmp_path / "b", [[n, n + 100] for n in range(20, 28)])

    def make(strategy):
        sources = {name: tdi.FileDataset(files).map(int) for name, files in
                   (("a", first), ("b", second))}  # fmt: skip
        source = tdi.mix(sources, weights=weights, stop="all")
        return strategy.distribute_dataset(source, global_batch_size=4)

    assert_resumes_everywhere(make, elsewhere=((3, 1), (1, 1)))


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["data", "file"])
def test_files_are_shuffled_anew_in_each_pass(tmp_path, policy):
    """Also after a resume in a later pass."""
    files = write_pairs(tmp_path / "a", [range(6), range(10, 16)])
    long = write_pairs(tmp_path / "b", [range(100, 120), range(200, 220)])

    def make(strategy):
        sources = {"a": tdi.FileDataset(files).shuffle(6).map(int),
                   "b": tdi.FileDataset(long).map(int)}  # fmt: skip
        source = tdi.mix(sources, weights=(1, 1), stop="repeat")
        chosen = options(auto_shard_policy=policy)
        return strategy.distribute_dataset(source, global_batch_size=8, options=chosen)

    played = [value for step in make(one()) for value in step.tolist() if value < 100]
    passes = [tuple(played[start : start + 12]) for start in (0, 12, 24)]
    assert [sorted([*range(6), *range(10, 16)])] * 3 == [sorted(each) for each in passes]
    assert 3 == len(set(passes))
    assert_resumes_everywhere(make, num_workers=1, elsewhere=((2, 1),) if policy == "data" else ())


@pytest.mark.slow
def test_shards_are_dealt_out():
    """Shards of streams, each source by itself."""
    sources = {
        "a": Shards([[n, n + 10] for n in range(5)]),
        "b": Shards([[n, n + 10, n + 20] for n in range(100, 106)]),
    }

    def make(strategy):
        source = tdi.mix(sources, weights=(2, 3), stop="all")
        return strategy.distribute_dataset(source, global_batch_size=5)

    assert_resumes_everywhere(make, elsewhere=((3, 1), (1, 1)))


@pytest.mark.slow
def test_hugging_face_streams_are_dealt_out_in_an_order_of_the_epoch(tmp_path):
    """Shard by shard, beside files; a resume on other workers deals out what nobody has touched."""
    files = write_pairs(tmp_path / "files", [[100 + n, 110 + n] for n in range(4)])

    def make(strategy):
        rows = tdi.FileDataset(files).map(lambda line: {"row": int(line)})
        source = tdi.mix({"stream": of_tables(14), "files": rows}, weights=(2, 1), stop="all")
        return strategy.distribute_dataset(source, global_batch_size=4, shuffle=True, seed=1)

    assert_resumes_everywhere(make, elsewhere=((3, 1), (1, 1)))
    dataset = make(one())
    epochs = [[row for step in dataset for row in step["row"].tolist()] for _ in range(2)]
    assert epochs[0] != epochs[1]
    expected = sorted([*range(14), *range(100, 104), *range(110, 114)])
    assert [expected] * 2 == [sorted(epoch) for epoch in epochs]


@pytest.mark.slow
def test_hugging_face_datasets_of_both_kinds_are_mixed():
    """A table that has an index, and a stream that goes on by its own state."""
    table = datasets.Dataset.from_dict({"row": list(range(100, 109))})

    def make(strategy):
        source = tdi.mix({"table": table, "stream": of_tables(14)}, weights=(2, 1), stop="repeat")
        return strategy.distribute_dataset(source, global_batch_size=4)

    assert_resumes_everywhere(make, elsewhere=((1, 1), (3, 2)) if LONG else ((3, 2),))


@pytest.mark.slow
def test_files_that_tell_their_lengths(tmp_path):
    """What a worker has touched of them is told by the rows as they are read, not by arithmetic."""
    for number in range(4):
        np.save(tmp_path / f"{number}.npy", np.arange(5 * number, 5 * number + 5))

    def make(strategy):
        files = tdi.FileDataset(str(tmp_path / "*.npy"), reader="npy")
        more = tdi.FileDataset(str(tmp_path / "[123].npy"), reader="npy")
        return strategy.distribute_dataset(
            tdi.mix({"files": files, "more": more}, weights=(1, 1), stop="all"),
            global_batch_size=5,
            options=options(auto_shard_policy="file"),
        )

    assert_resumes_everywhere(make)


def fail_at_three(number):
    if number == 3:
        raise ValueError("the user's own words")
    return number, 0


def draw(number, rng):
    return number, int(rng.integers(1_000_000))


def beside_a_mixture(folder, operation, *, length=None):
    """Some files, a mixture whose ids are longer than those of files, and files instead of it."""
    write_files(folder, [list(range(5)), list(range(10, 15))])
    files, other = (tdi.FileDataset(str(folder / f"f000{number}*")).map(int) for number in (0, 1))
    files, other = files.map(operation), other.map(lambda number: (number, 0))
    inner = tdi.mix({"first": other, "second": other}, weights=(1, 1), stop="all")
    for beside in (other, inner):
        sources = {"files": files, "beside": beside}
        mixture = tdi.mix(sources, weights=(1, 1), stop="all", length=length)
        yield one().distribute_dataset(mixture, global_batch_size=2)


def test_an_error_is_told(tmp_path):
    for dataset in beside_a_mixture(tmp_path, fail_at_three):
        with pytest.raises(tdi.SourceError, match=r"ValueError at .*, record 3: the user's own"):
            list(dataset)


@pytest.mark.parametrize("is_measured", [False, True])
def test_what_is_drawn_for_a_record_does_not_depend_on_what_is_mixed_in(tmp_path, is_measured):
    """And what is measured is what is delivered."""
    measured = set()

    def length(example):
        measured.add(example)
        return 1

    found = [
        sorted(
            example
            for numbers, drawn in dataset
            for example in zip(numbers.tolist(), drawn.tolist(), strict=True)
            if example[0] < 5
        )
        for dataset in beside_a_mixture(tmp_path, draw, length=length if is_measured else None)
    ]
    assert found[0] == found[1]
    assert 5 == len({drawn for _, drawn in found[0]})
    assert not is_measured or {example for example in measured if example[0] < 5} == set(found[0])
