"""Mixtures of streams and files whose weights are shares of tokens: counted as they are read."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_distinput as tdi
from tests.conftest import LONG
from tests.distribute.resumes import clusters, examples_of, in_order, make_of, rules, run
from tests.distribute.street import one, options, play, stream_of, write_files
from torch_distinput.errors import SourceError
from torch_distinput.plan.assignment.mixing import TokenTurns, carry_dues, make_order
from torch_distinput.plan.assignment.shares import Shares, make_shares
from torch_distinput.testing import assert_resumes_everywhere, simulate

some = settings(max_examples=300 if LONG else 8)
STOPS = ("first", "all", "repeat")


def length_of(number):
    """Of a number its last digit: 0 tokens to 9."""
    return number % 10


def play_by_hand(values, weights, stop):
    """The examples of an epoch in order, one turn at a time."""
    names = range(len(values))
    shares = Shares(((0, make_shares(weights)),))
    left, played, had = [True] * len(values), [], [0] * len(values)
    order = make_order(shares)
    turns = TokenTurns(order, 0, (0,) * len(values))
    while any(left):
        source = turns.source
        if had[source] >= len(values[source]) and stop != "repeat":
            left[source] = False
            if stop == "first" or not any(left):
                break
            before = order.find_stretch(len(played)).counts
            order = make_order(shares, len(played), left)
            dues = carry_dues(turns.dues, before, order.find_stretch(len(played)).counts)
            turns = TokenTurns(order, len(played), dues)
            continue
        played.append(values[source][had[source] % len(values[source])])
        had[source] += 1
        turns.take(length_of(played[-1]))
        if stop == "repeat" and all(had[name] >= len(values[name]) for name in names):
            break
    return played


MAKERS = {"stream": stream_of, "list": list}


@st.composite
def mixtures(draw):
    """Numbers of two or three sources, one of them a stream, with a token each at least."""
    count = draw(st.integers(2, 3))
    digits = st.lists(st.integers(0, 9), min_size=1, max_size=9).filter(any)
    values = [
        [100 * source + 10 * row + digit for row, digit in enumerate(draw(digits))]
        for source in range(count)
    ]
    kinds = ["stream"] + [draw(st.sampled_from(sorted(MAKERS))) for _ in range(count - 1)]
    weights = [draw(st.integers(1, 5)) for _ in range(count)]
    return values, kinds, weights, draw(st.sampled_from(STOPS))


@pytest.mark.slow
@some
@given(mixtures(), st.integers(1, 7), st.integers(1, 7), clusters, clusters, rules, st.data())
def test_one_order_for_all_workers(case, size, other_size, cluster, other, rule, data):
    """C1 to C4 under DATA: as turn by turn, on any cluster, from any step on."""
    values, kinds, weights, stop = case
    pairs = enumerate(zip(kinds, values, strict=True))
    sources = {str(number): MAKERS[kind](own) for number, (kind, own) in pairs}
    source = partial(tdi.mix, sources, weights=weights, stop=stop, length=length_of)
    expected = play_by_hand(values, weights, stop)
    steps = data.draw(st.integers(0, -(-len(expected) // size)))
    make = make_of(source, size, rebatch=rule, policy="data")
    head, state = run(make, cluster, steps=steps)
    tail, _ = run(make_of(source, other_size, policy="data"), other, state=state)
    assert expected == in_order(head) + in_order(tail)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A new folder each time."""
    return (tmp_path_factory.mktemp("mixed") for _ in itertools.count())


@pytest.mark.slow
@some
@given(st.lists(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=3,
                         max_size=6), min_size=2, max_size=2),
       st.sampled_from(STOPS), st.integers(1, 6), st.tuples(*[st.integers(1, 3)] * 3),
       st.booleans(), st.data())  # fmt: skip
def test_files_that_are_dealt_out(folders, files, stop, size, workers, shuffle, data):
    """C1, C2 and C4 under FILE: what one cluster has not delivered two others deliver, in turn."""
    folder, rows, patterns = next(folders), itertools.count(), []
    for source, own in enumerate(files):
        (folder / str(source)).mkdir()
        numbers = [[10 * next(rows) + digit for digit in lengths] for lengths in own]
        patterns.append(write_files(folder / str(source), numbers))

    def source():
        a, b = (tdi.FileDataset(pattern).map(int) for pattern in patterns)
        return tdi.mix({"a": a, "b": b}, weights=(2, 1), stop=stop, length=length_of)

    make = make_of(partial(source), size, shuffle=shuffle, seed=3)
    whole, _ = run(make, (workers[0], 1))
    if stop == "all":
        assert next(rows) == sum(examples_of(whole).values()) == len(examples_of(whole))
    steps = data.draw(st.integers(0, len(whole[0])))
    head, state = run(make, (workers[0], 1), steps=steps)
    middle, state = run(make, (workers[1], 1), state=state, steps=data.draw(st.integers(0, 3)))
    tail, _ = run(make, (workers[2], 1), state=state)
    assert examples_of(whole) == examples_of(head) + examples_of(middle) + examples_of(tail)
    assert all(len({len(worker) for worker in part}) == 1 for part in (head, middle, tail))


@pytest.mark.slow
def test_packed_rows_and_a_mixture_inside_go_on_from_every_step():
    """Sources of every kind tell what they hold when they are read."""
    documents = [{"input_ids": [7] * (1 + n * 5 % 7)} for n in range(8)]

    def tokens_of(row):
        kept = row["document_ids"] > 0
        return int(kept.sum())

    def make(strategy):
        packed = tdi.pack(stream_of(documents), length=8, window=4)
        inner = tdi.mix({"x": tdi.pack(documents[:4], length=8), "y": packed}, weights=(1, 2))
        rows = tdi.pack(stream_of(documents[::2]), length=8, window=3)
        source = tdi.mix({"in": inner, "z": rows}, weights=(1, 1), stop="all", length=tokens_of)
        return strategy.distribute_dataset(source, global_batch_size=3)

    assert_resumes_everywhere(make)


def test_shares_are_within_an_example_of_each_source():
    """Of tokens, in any beginning, where examples are uneven; of examples they are not."""
    short = [1 + n % 3 for n in range(3000)]
    long = [n % 10 for n in range(7, 3000)]
    source = tdi.mix(
        {"short": stream_of(short), "long": stream_of([100 + n for n in long])},
        weights=(1, 1),
        length=length_of,
    )
    played = [x for step in one().distribute_dataset(source, global_batch_size=64)
              for x in step.tolist()]  # fmt: skip
    had = [0, 0]
    for number in played:
        had[number >= 100] += length_of(number)
        assert abs(had[0] - had[1]) <= 3 + 9
    assert 1.5 < sum(n < 100 for n in played) / sum(n >= 100 for n in played)


def test_a_state_of_other_shares_is_refused():
    """A place in one order is none in the other, in both directions."""
    values = {"a": stream_of([11, 12, 13, 14]), "b": stream_of([21, 22, 23, 24])}

    def make(length):
        source = tdi.mix(values, weights=(1, 1), length=length)
        return one().distribute_dataset(source, global_batch_size=2)

    for before, after in ((None, length_of), (length_of, None)):
        dataset = make(before)
        next(iter(dataset))
        other = make(after)
        other.load_state_dict(json.loads(json.dumps(dataset.state_dict())))
        with pytest.raises(tdi.ConfigurationError, match="weights was"):
            iter(other)


@pytest.mark.parametrize("policy", ["data", "file"])
@pytest.mark.parametrize("size", [2, 9])
def test_other_lengths_than_before_are_refused(tmp_path, policy, size):
    """Rows that were delivered could not be told from others."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    files = {
        name: write_files(tmp_path / name, [[base + n for n in range(1, 9)]])
        for name, base in (("a", 0), ("b", 50))
    }

    def make(length):
        source = tdi.mix(
            {name: tdi.FileDataset(own).map(int) for name, own in files.items()},
            weights=(1, 1), stop="all", length=length,
        )  # fmt: skip
        return one(3).distribute_dataset(
            source, global_batch_size=size, options=options(auto_shard_policy=policy)
        )

    dataset = make(length_of)
    next(iter(dataset))
    state = json.loads(json.dumps(dataset.state_dict()))
    assert 16 - size == sum(map(len, _rest(make(length_of), state)))
    with pytest.raises(SourceError, match="the lengths that they had"):
        _rest(make(lambda number: 10 - number % 10), state)


def _rest(dataset, state):
    dataset.load_state_dict(state)
    return [[number for own in step.values for number in own.tolist()] for step in dataset]


def test_workers_that_find_other_lengths_hear_of_it():
    """In any batch, not only the first ones."""

    def work(strategy):
        def draw(number):
            return 1 + strategy.worker_index * (number == 1050)

        sources = {"a": stream_of(range(400)), "b": stream_of(range(1000, 1400))}
        source = tdi.mix(sources, weights=(1, 1), length=draw)
        chosen = options(auto_shard_policy="data")
        dataset = strategy.distribute_dataset(source, global_batch_size=8, options=chosen)
        with pytest.raises(tdi.MismatchError):
            list(dataset)

    simulate(work, num_workers=2)


@pytest.mark.parametrize("stop", STOPS)
def test_a_source_without_tokens_is_refused(stop):
    """Its share would never be reached: it would be played over and over."""
    sources = {"empty": stream_of([10, 20, 30]), "full": stream_of([101] * 9)}
    source = tdi.mix(sources, weights=(1, 1), stop=stop, length=length_of)
    with pytest.raises(SourceError, match="Expected tokens in each source .* got none in 'empty'"):
        list(one().distribute_dataset(source, global_batch_size=2))


@pytest.mark.parametrize(
    ("length", "message"),
    [
        (lambda number: -number, "length of 'a' to give whole numbers from 0 on, got -1"),
        (lambda number: 1 // (number - 2), "ZeroDivisionError at length of 'a'= of example 1:"),
        ("text", "a column 'text'"),
    ],
)
def test_lengths_that_are_none_name_their_source(length, message):
    source = tdi.mix({"a": stream_of([1, 2, 3])}, weights=(1,), length=length)
    with pytest.raises(SourceError, match=message):
        list(one().distribute_dataset(source, global_batch_size=2))


def test_weights_of_tokens_follow_a_schedule():
    """From all of one source to all of the other, in tokens."""
    points = tdi.schedule({0: (1, 0), 100: (1, 0), 101: (0, 1)})
    sources = {"a": stream_of([3] * 500), "b": stream_of([109] * 500)}
    source = tdi.mix(sources, weights=points, length=length_of)
    played = itertools.islice(one().distribute_dataset(source, global_batch_size=50), 4)
    counts = [Counter(step.tolist()) for step in played]
    assert [{3: 50}, {3: 50}, {109: 50}] == counts[:2] + counts[3:]


@pytest.mark.long  # to start the processes takes a second
@pytest.mark.parametrize("num_workers", [1, 2])
def test_loader_processes_change_nothing(num_workers):
    sources = {"a": stream_of([11, 12, 13, 14, 15]), "b": stream_of([29, 28, 27, 26])}
    source = tdi.mix(sources, weights=(1, 2), stop="repeat", length=length_of)
    assert play(source, 3, 2) == play(source, 3, 2, num_workers=num_workers)


def test_sources_share_alike_when_a_large_one_has_ended():
    """A lead of some tokens is large beside a share of a thousandth, and small beside a half."""

    def stream(source, *sizes):
        return stream_of([(source, "x" * size) for size in sizes])

    sizes = {"a": [50, *[10] * 300], "b": [10] * 300, "c": [10] * 30}
    mixture = tdi.mix(
        {name: stream(name, *own) for name, own in sizes.items()},
        weights=(1, 1, 1000),
        stop="all",
        length=lambda example: len(example[1]),
    )
    dataset = one().distribute_dataset(
        mixture, global_batch_size=10, collate_fn=lambda examples: [name for name, _ in examples]
    )
    played = "".join(name for batch in dataset for name in batch)
    rest = played[played.rindex("c") + 1 :][:100]
    assert 44 <= rest.count("a") <= 50
