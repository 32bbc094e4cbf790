"""C4: at every position, save and restore gives the same tail; on another cluster, nothing lost."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, WeightedRandomSampler

import torch_distinput as tdi
from tests.distribute.numbers_reader import BAD, Numbers, write_numbers
from tests.distribute.street import Shards, options, shown, stream_of
from torch_distinput.testing import assert_resumes_everywhere, simulate

pytestmark = pytest.mark.usefixtures("paths")


def run(make, cluster, *, state=None, steps=None):
    """Play some steps on simulated workers; per worker the steps, and the state after them."""

    def work(strategy):
        dataset = make(strategy)
        if state is not None:
            dataset.load_state_dict(json.loads(state))
            assert json.dumps(dataset.state_dict()) == state
        iterator = iter(dataset)
        played = [shown(strategy, step) for step in itertools.islice(iterator, steps)]
        return played, json.dumps(dataset.state_dict())

    results = simulate(work, num_workers=cluster[0], replicas_per_worker=cluster[1])
    states = {said for _, said in results}
    assert len(states) == 1, states
    return [played for played, _ in results], states.pop()


def examples_of(workers):
    """All delivered examples, as a multiset."""
    return collections.Counter(x for worker in workers for step in worker for b in step for x in b)


def in_order(workers):
    """Delivered examples in the global order, where that is what the replicas play."""
    return [x for step in zip(*workers, strict=True) for w in step for b in w for x in b]


def make_of(source, size, **keywords):
    """A function that distributes a source, or what a partial function makes for each worker."""
    rebatch = keywords.pop("rebatch", "split")
    policy = keywords.pop("policy", "auto")

    def make(strategy):
        chosen = options(rebatch=rebatch, auto_shard_policy=policy)
        own = source() if isinstance(source, partial) else source
        return strategy.distribute_dataset(
            own, global_batch_size=size, options=chosen, **keywords
        )

    return make


clusters = st.tuples(st.integers(1, 4), st.integers(1, 2))
rules = st.sampled_from(["split", "even", "cycle"])


@given(st.integers(0, 30), st.integers(1, 7), st.integers(1, 7), clusters, clusters, rules,
       st.booleans(), st.data())  # fmt: skip
def test_one_order(count, size, other_size, cluster, other, rebatch, indexed, data):
    """Indexed sources and shared streams go on at the same example, whatever the cluster."""
    source = torch.arange(count) if indexed else stream_of(range(count))
    keywords = {"shuffle": True, "seed": 3} if indexed else {}
    whole, _ = run(make_of(source, size, **keywords), (1, 1))
    steps = data.draw(st.integers(0, -(-count // size)))
    head, state = run(make_of(source, size, rebatch=rebatch, **keywords), cluster, steps=steps)
    tail, _ = run(make_of(source, other_size, **keywords), other, state=state)
    assert in_order(whole) == in_order(head) + in_order(tail)
    assert len(state) < 1024


recipes = st.sampled_from(["plain", "filter", "shuffle", "interleave", "take", "repeat", "all"])


def with_recipe(files, recipe):
    """A FileDataset with operations of every kind."""
    if recipe in ("interleave", "all"):
        files = files.interleave(2, 2)
    if recipe in ("filter", "all"):
        files = files.filter(lambda number: int(number) % 3 != 1)
    if recipe in ("shuffle", "all"):
        files = files.shuffle(4)
    if recipe in ("take", "all"):
        files = files.take(6)
    if recipe == "repeat":
        files = files.repeat(2)
    if recipe == "all":
        files = files.filter(lambda number: int(number) % 2 == 0).repeat(2)
    return files


@st.composite
def file_cases(draw):
    """Files, how they are read, and a recipe."""
    lengths = draw(st.lists(st.integers(0, 9), min_size=4, max_size=8))
    numbers = iter(range(1000))
    files = [[next(numbers) for _ in range(length)] for length in lengths]
    reader = Numbers(
        counted=draw(st.booleans()), addressable=draw(st.booleans()),
        records_per_part=draw(st.integers(1, 4)), late=draw(st.booleans()),
    )  # fmt: skip
    keywords = {"split_files": draw(st.booleans()), "shuffle_files": draw(st.booleans())}
    return files, reader, keywords, draw(recipes)


@given(file_cases(), st.integers(1, 6), clusters, clusters, clusters, rules, rules,
       st.sampled_from(["file", "data"]), st.data())  # fmt: skip
def test_files(tmp_path_factory, case, size, one, two, three, rule, other_rule, policy, data):
    """FILE: what is not delivered yet is delivered once; DATA: the order goes on; twice over."""
    files, reader, keywords, recipe = case
    pattern = write_numbers(tmp_path_factory.mktemp("files"), files)

    def make(rebatch, batch_size):
        source = with_recipe(tdi.FileDataset(pattern, reader=reader, **keywords), recipe)
        return make_of(source, batch_size, seed=5, rebatch=rebatch, policy=policy)

    whole, _ = run(make(rule, size), one)
    steps = data.draw(st.integers(0, len(whole[0])))
    head, state = run(make(rule, size), one, steps=steps)
    assert [worker[:steps] for worker in whole] == head
    same, _ = run(make(rule, size), one, state=state)
    assert [worker[steps:] for worker in whole] == same
    other_size = data.draw(st.integers(1, 6))
    more = data.draw(st.integers(0, 5))
    middle, later = run(make(other_rule, other_size), two, state=state, steps=more)
    tail, _ = run(make(rule, size), three, state=later)
    if policy == "data":
        assert in_order(whole) == in_order(head) + in_order(middle) + in_order(tail)
    assert examples_of(whole) == examples_of(head) + examples_of(middle) + examples_of(tail)


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("policy", ["file", "data"])
@pytest.mark.parametrize(
    "recipe", ["plain", "filter", "shuffle", "interleave", "take", "repeat", "all"]
)
def test_every_recipe(tmp_path, recipe, policy, counted):
    """At every position, on other clusters and back."""
    pattern = write_numbers(tmp_path, [range(5), range(10, 13), [], range(20, 27), range(30, 33)])
    files = with_recipe(tdi.FileDataset(pattern, reader=Numbers(counted=counted)), recipe)
    assert_resumes_everywhere(make_of(files, 3, policy=policy))


@pytest.mark.parametrize("recipe", ["plain", "filter", "shuffle", "interleave", "take", "repeat"])
def test_files_after_two_dealings(tmp_path, recipe):
    """Workers that read lanes of several generations note places in the right one of them."""
    sizes = [20, 0, 8, 3, 3, 0, 0, 8]
    numbers = itertools.count()
    files = [list(itertools.islice(numbers, size)) for size in sizes]
    source = with_recipe(tdi.FileDataset(write_numbers(tmp_path, files), reader=Numbers()), recipe)
    make = make_of(source, 2)
    whole, _ = run(make, (3, 1))
    first, state = run(make, (3, 1), steps=3)
    second, state = run(make, (2, 2), state=state, steps=2)
    third, end = run(make, (1, 1), state=state)
    assert examples_of(whole) == examples_of(first) + examples_of(second) + examples_of(third)
    assert [[]] == run(make, (1, 1), state=end)[0]
    for steps in range(len(third[0])):
        head, later = run(make, (1, 1), state=state, steps=steps)
        tail, _ = run(make, (1, 1), state=later)
        assert third == [head[0] + tail[0]]


class Counting(IterableDataset):
    """A stream that can say where it is, and go on there."""

    def __init__(self, count, seen=None):
        self.count, self.position, self.seen = count, 0, seen

    def __iter__(self):
        """From the position on."""
        while self.position < self.count:
            self.position += 1
            if self.seen is not None:
                self.seen.append(self.position - 1)
            yield self.position - 1
        self.position = 0

    def state_dict(self):
        """With something that JSON changes."""
        return {"position": self.position, "more": (1, torch.arange(2))}

    def load_state_dict(self, state):
        """Go on there."""
        assert state["more"][0] == 1
        self.position = state["position"]


def batches():
    """Global batches of several sizes, one without rows."""
    numbers = iter(range(100))
    for size in (5, 3, 0, 7, 1):
        yield np.array([next(numbers) for _ in range(size)], dtype=np.int64)


class Batches(Shards):
    """Shards whose elements are global batches."""

    def shard(self, num_shards, index):
        """Every num_shards-th list."""
        return Batches(self.shards[index::num_shards])


def in_shards(make):
    """Seven lists of things."""
    numbers = iter(range(100))
    return [[make(numbers, size) for size in range(1, k + 1)] for k in (3, 1, 2, 0, 1, 2, 1)]


NUMBERS: Any = range(13)
SHARDS = Shards(in_shards(lambda numbers, _: next(numbers)))
BATCHES = Batches(in_shards(lambda numbers, size: np.array([next(numbers) for _ in range(size)])))


@pytest.mark.parametrize(
    ("source", "size", "keywords"),
    [
        (torch.arange(23), 4, {"shuffle": True, "drop_last": True}),
        (list(range(7)), 3, {"num_workers": 2}),
        (DataLoader(NUMBERS, batch_size=4, shuffle=True), None, {}),
        (DataLoader(NUMBERS, 4, sampler=WeightedRandomSampler([1.0] * 13, 10)), None, {}),
        (DataLoader(NUMBERS, batch_sampler=[[1, 2], [3], [4, 5, 6], [], [0]]), None, {}),
        (stream_of(range(14)), 4, {}),
        (stream_of(range(7)), 4, {"num_workers": 2, "rebatch": "cycle"}),
        (partial(Counting, 14), 3, {"rebatch": "even"}),
        (partial(Counting, 8), 3, {"num_workers": 1}),
        (SHARDS, 2, {"rebatch": "cycle"}),
        (SHARDS, 3, {"policy": "data"}),
        (batches, None, {}),
        (batches, None, {"rebatch": "even", "num_workers": 1}),
        (BATCHES, None, {}),
        (BATCHES, None, {"policy": "data"}),
    ],
)
def test_every_source(source, size, keywords):
    """At every position, here and on other clusters."""
    assert_resumes_everywhere(make_of(source, size, **keywords), replicas_per_worker=2)


def test_an_order_that_is_not_a_table():
    """Of more examples than are permuted exactly."""
    make = make_of(np.arange(70_000), 9_999, shuffle=True, seed=2)
    whole, _ = run(make, (1, 1))
    head, state = run(make, (2, 2), steps=5)
    tail, _ = run(make, (3, 1), state=state)
    assert in_order(whole) == in_order(head) + in_order(tail)


@pytest.mark.parametrize("reader", [Numbers(), Numbers(counted=True), Numbers(late=True)])
@pytest.mark.parametrize("num_workers", [1, 3])
def test_files_with_loader_processes(tmp_path, reader, num_workers):
    """What is read ahead elsewhere is not delivered; a state does not know of processes."""
    pattern = write_numbers(tmp_path, [range(5), range(10, 19), [], range(30, 33), range(40, 47)])
    files = with_recipe(tdi.FileDataset(pattern, reader=reader), "filter")
    whole, _ = run(make_of(files, 4), (2, 1))
    for steps in range(0, len(whole[0]), 2):
        head, state = run(make_of(files, 4, num_workers=num_workers), (2, 1), steps=steps)
        tail, _ = run(make_of(files, 4), (2, 1), state=state)
        assert [a + b for a, b in zip(head, tail, strict=True)] == whole


def test_a_source_goes_on_from_its_own_state():
    """Nothing is read again but what was read ahead."""
    seen = []
    _, state = run(make_of(partial(Counting, 1000), 10), (2, 1), steps=90)
    assert "torch:" in state
    run(make_of(Counting(1000, seen), 10), (1, 1), state=state)
    assert min(seen) > 100  # not from the beginning
    assert set(range(900, 1000)) <= set(seen)


def test_a_source_that_was_left_starts_from_its_beginning():
    """Though it keeps its position on itself."""
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(Counting(9), global_batch_size=4)
    next(iter(dataset))
    for _ in range(2):
        assert [[0, 1, 2, 3], [4, 5, 6, 7], [8]] == [step.tolist() for step in dataset]


class BatchStream(Counting):
    """Batches, with a state."""

    def __init__(self, count, size):
        super().__init__(count)
        self.size = size

    def __iter__(self):
        """Of consecutive numbers."""
        for first in super().__iter__():
            yield torch.arange(first, first + self.size)


class Uneven(Numbers):
    """A reader that cannot count one of its files."""

    def parts(self, file):
        """Only the file of the second number is not counted."""
        parts = super().parts(file)
        if file.path.endswith("1.bin"):
            return [dataclasses.replace(part, num_records=None) for part in parts]
        return parts


@pytest.mark.parametrize("policy", ["file", "data"])
def test_places_do_not_depend_on_who_reads(tmp_path, policy):
    """A file with parts that are not all counted: by units here, by files there."""
    pattern = write_numbers(tmp_path, [range(12), range(20, 31), range(40, 49)])
    files = tdi.FileDataset(pattern, reader=Uneven(counted=True, late=True))
    whole, _ = run(make_of(files, 4, policy=policy), (1, 1))
    for steps in range(len(whole[0])):
        for before, after in ((0, 3), (3, 0)):
            make = make_of(files, 4, policy=policy, num_workers=before)
            head, state = run(make, (1, 1), steps=steps)
            tail, _ = run(make_of(files, 4, policy=policy, num_workers=after), (1, 1), state=state)
            assert whole == [head[0] + tail[0]]
    assert_resumes_everywhere(make_of(files, 4, policy=policy))


def test_bad_records_are_left_out_from_now_on(tmp_path):
    """Who raised may leave them out, and then rescale; who left them out cannot begin to raise."""
    pattern = write_numbers(tmp_path, [range(9), range(20, 27), [30, BAD, 31, 32], range(40, 45)])

    def make(on_error):
        files = tdi.FileDataset(pattern, reader=Numbers(counted=True), on_error=on_error)
        return make_of(files, 2, policy="file")

    for one, two in itertools.product(range(4), range(1, 4)):
        first, state = run(make("raise"), (2, 1), steps=one)
        second, later = run(make("skip"), (2, 1), state=state, steps=two)
        rest, _ = run(make("skip"), (1, 1), state=later)
        seen = examples_of(first) + examples_of(second) + examples_of(rest)
        assert set(seen.values()) == {1}
        assert {*range(9), *range(20, 27), *range(40, 45)} <= set(seen)
    with pytest.raises(tdi.ConfigurationError, match="on_error was 'another', and here .*'raise'"):
        run(make("raise"), (2, 1), state=later)


class Sized(IterableDataset):
    """Twenty examples for a DataLoader to batch."""

    def __iter__(self):
        """In order."""
        return iter(range(20))


def test_ready_batches_of_another_size():
    """What is delivered is counted in examples."""
    make = {size: make_of(DataLoader(Sized(), batch_size=size), None) for size in (2, 4)}
    for cluster in ((1, 1), (2, 1)):
        head, state = run(make[4], cluster, steps=2)
        tail, _ = run(make[2], cluster, state=state)
        assert list(range(20)) == in_order(head) + in_order(tail)


def test_asking_a_sampler_again():
    """len() asks for its length, a state for the epoch that runs: each is drawn once."""
    sampler = Moody(0)
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(
        DataLoader(NUMBERS, 2, sampler=sampler)
    )
    for epoch in range(3):
        for _ in dataset:
            len(dataset)
            dataset.state_dict()
        assert epoch + 1 == sampler.start


@dataclasses.dataclass
class Unhashable(IterableDataset):
    """As dataclasses are that can be compared."""

    position: int = 0

    def __iter__(self):
        """Three examples."""
        while self.position < 3:
            self.position += 1
            yield self.position
        self.position = 0

    state_dict = Counting.state_dict
    load_state_dict = Counting.load_state_dict


def test_a_source_that_has_no_hash():
    """It is known by what it is."""
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(Unhashable(), global_batch_size=2)
    for _ in range(2):
        assert [[1, 2], [3]] == [step.tolist() for step in dataset]


def test_the_spec_beside_a_position():
    """It takes no step from a running iterator, and needs none of a loaded epoch."""
    dataset = make_of(stream_of(range(4)), 2)(tdi.OneDeviceStrategy("cpu"))
    iterator = iter(dataset)
    assert torch.int64 is dataset.element_spec.dtype
    assert [[0, 1], [2, 3]] == [step.tolist() for step in iterator]
    other = make_of(stream_of(range(4)), 2)(tdi.OneDeviceStrategy("cpu"))
    other.load_state_dict(dataset.state_dict())
    assert torch.int64 is other.element_spec.dtype
    assert [] == list(other)


def each_workers_own(context):
    """A stream of replica batches for each worker."""
    start = 100 * context.input_pipeline_id
    return [np.arange(start + k, start + k + 2) for k in range(0, 10 + 4 * (start > 0), 2)]


def test_states_do_not_grow(tmp_path):
    """However far the epoch is; of a source with a state of its own, the last one known."""
    pattern = write_numbers(tmp_path, [range(900), range(1000, 1900), range(2000, 2900)])
    files = tdi.FileDataset(pattern, reader=Numbers(records_per_chunk=50)).shuffle(40)

    def of_a_function(strategy):
        return strategy.distribute_datasets_from_function(lambda _: BatchStream(1000, 4))

    for make in (make_of(files, 8), make_of(torch.arange(3000), 8), of_a_function):
        # Not before the streams of a function have told of their first states.
        sizes = [len(run(make, (3, 1), steps=steps)[1]) for steps in (90, 150, 230)]
        assert max(sizes) < sizes[0] + 60
        assert max(sizes) < 4096 or make is of_a_function  # whose streams' own states are large
    _, state = run(of_a_function, (3, 1), steps=230)
    assert all(batch > 230 - 3 * 64 for batch, *_ in json.loads(state)["streams"])


def test_replica_batches_of_a_function():
    """Each worker's stream is its own: only the same cluster goes on."""

    def make(strategy):
        return strategy.distribute_datasets_from_function(each_workers_own)

    assert_resumes_everywhere(make, num_workers=2, replicas_per_worker=2, elsewhere=())
    _, state = run(make, (2, 2), steps=1)
    with pytest.raises(tdi.ConfigurationError, match=r"from \(2 x 2\).*got 3 x 2. Start as many"):
        run(make, (3, 2), state=state)


@pytest.mark.parametrize("indexed", [True, False])
def test_everybody_plays_everything(indexed):
    """Under OFF a position belongs to its worker."""
    source = torch.arange(11) if indexed else stream_of(range(11))
    make = make_of(source, 4, policy="off")
    assert_resumes_everywhere(make, num_workers=3, elsewhere=() if indexed else ((3, 2),))
    _, state = run(make, (2, 1), steps=1)
    with pytest.raises(tdi.ConfigurationError, match="AutoShardPolicy.OFF each worker"):
        run(make, (1, 1), state=state)


class Moody:
    """A sampler that gives another order each time it is asked."""

    def __init__(self, start):
        self.start = start

    def __len__(self):
        return 6

    def __iter__(self):
        """Shifted by one more."""
        self.start += 1
        return iter([(self.start + k) % 6 for k in range(6)])


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (make_of(torch.arange(13), 4, shuffle=True), "number of examples was 12, and here .* 13"),
        (make_of(torch.arange(12), 4), "shuffle was True, and here it is False"),
        (make_of(torch.arange(12), 4, shuffle=True, seed=1), "seed was 0, and here it is 1"),
        (make_of(stream_of(range(12)), 4), "source was 'examples by index', and .*; shuffle was"),
    ],
)
def test_another_recipe_is_refused(other, difference):
    """What differs is named."""
    _, state = run(make_of(torch.arange(12), 4, shuffle=True), (2, 1), steps=1)
    with pytest.raises(tdi.ConfigurationError, match=difference):
        run(other, (2, 1), state=state)


def test_other_files_are_refused(tmp_path):
    """By name and size, wherever they lie; by reader, operations and splitting."""
    files = [range(5), range(8)]
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    here, there = (write_numbers(tmp_path / folder, files) for folder in ("one", "two"))
    make = make_of(tdi.FileDataset(here, reader=Numbers()).shuffle(3), 4)
    _, state = run(make, (2, 1), steps=1)
    moved = tdi.FileDataset(there, reader=Numbers()).shuffle(3)
    run(make_of(moved, 4), (2, 1), state=state)
    for other, difference in (
        (tdi.FileDataset(here, reader="text").shuffle(3), "reader was 'Numbers'"),
        (tdi.FileDataset(here, reader=Numbers()).shuffle(4), r"operations was .'shuffle.3.'., and"),
        (tdi.FileDataset(here, reader=Numbers(), split_files=True).shuffle(3), "split_files"),
    ):
        with pytest.raises(tdi.ConfigurationError, match=difference):
            run(make_of(other, 4), (2, 1), state=state)
    write_numbers(tmp_path / "two", [range(5), range(9)])
    with pytest.raises(tdi.ConfigurationError, match="files was '2 .names and sizes"):
        run(make_of(moved, 4), (2, 1), state=state)


def test_a_sampler_that_gives_another_order_is_refused():
    """A position in an order that is gone means nothing."""
    strategy = tdi.OneDeviceStrategy("cpu")
    dataset = strategy.distribute_dataset(DataLoader(NUMBERS, 2, sampler=Moody(0)))
    next(iter(dataset))
    state = dataset.state_dict()
    dataset.load_state_dict(state)
    assert 2 == len(list(dataset))
    other = strategy.distribute_dataset(DataLoader(NUMBERS, 2, sampler=Moody(1)))
    other.load_state_dict(state)
    with pytest.raises(tdi.ConfigurationError, match="order of the sampler was"):
        iter(other)


@pytest.mark.parametrize(
    "state",
    [None, {}, {"version": 7}, {"version": 1}, {"version": 1, "recipe": 3}, ["version"]],
)
def test_what_is_no_state(state):
    """Refused before anything is touched."""
    dataset = make_of(torch.arange(12), 4)(tdi.OneDeviceStrategy("cpu"))
    whole = dataset.state_dict()
    with pytest.raises(ValueError, match="Expected (what|a whole state)"):
        dataset.load_state_dict(state)
    damaged = {**whole, "rounds": -1}
    with pytest.raises(ValueError, match="damaged one .*-1 is no count"):
        dataset.load_state_dict(damaged)
    assert whole == dataset.state_dict()


def test_what_comes_after_a_load():
    """The rest, then whole epochs; ``set_epoch`` of the same one keeps the place, others do not."""
    dataset = make_of(torch.arange(10), 4, shuffle=True)(tdi.OneDeviceStrategy("cpu"))
    epochs = [[step.tolist() for step in dataset] for _ in range(3)]
    iterator = iter(dataset)
    dataset.set_epoch(1)
    iterator = iter(dataset)
    next(iterator)
    state = iterator.state_dict()
    assert state == dataset.state_dict()
    assert (1, 1, 4) == (state["epoch"], state["steps"], state["examples"])
    with pytest.raises(tdi.UsageError, match="loaded into the dataset"):
        iterator.load_state_dict(state)
    for load in (lambda: None, lambda: dataset.set_epoch(1)):
        dataset.load_state_dict(state)
        assert 1 == dataset.epoch
        load()
        resumed = iter(dataset)
        assert state == resumed.state_dict() == dataset.state_dict()
        assert epochs[1][1:] == [step.tolist() for step in resumed]
        assert 2 == resumed.last_step.index
        assert epochs[2] == [step.tolist() for step in dataset]
    dataset.load_state_dict(state)
    dataset.set_epoch(0)
    assert epochs[0] == [step.tolist() for step in dataset]
    dataset.load_state_dict(dataset.state_dict())  # taken after the last step
    assert [] == list(dataset)
    assert epochs[1] == [step.tolist() for step in dataset]


@pytest.mark.parametrize("loads", [True, False])
def test_a_state_is_nobody_elses(tmp_path, loads):
    """What the caller does with its dict changes nothing here, and the other way round."""
    (tmp_path / "a.txt").write_text("0\n1\n2\n3\n4\n5\n")
    files = tdi.FileDataset(str(tmp_path / "*.txt")).interleave(2, 1).shuffle(4).take(5)
    dataset = make_of(files, 2)(tdi.OneDeviceStrategy("cpu"))
    next(iter(dataset))
    state = dataset.state_dict()
    expected = json.dumps(state)
    if loads:
        dataset.load_state_dict(state)
    for own in (state, dataset.state_dict()):
        for name in own:
            spoil(own[name])
    assert expected == json.dumps(dataset.state_dict())


def spoil(value):
    """Empty all lists of a state."""
    if isinstance(value, list):
        for item in value:
            spoil(item)
        value.clear()


@pytest.mark.parametrize(("name", "count"), [("examples", 13), ("examples", 10**30)])
def test_a_state_behind_the_end_is_refused(name, count):
    """On all workers; the last one that is not continues with an empty rest."""

    def work(strategy):
        dataset = make_of(torch.arange(12), 4)(strategy)
        dataset.load_state_dict({**dataset.state_dict(), name: 12})
        assert [] == list(dataset)
        dataset.load_state_dict({**dataset.state_dict(), name: count})
        with pytest.raises(tdi.ConfigurationError, match=f"12 examples, got one after {count}"):
            iter(dataset)

    simulate(work, num_workers=2)


def test_ranks_that_load_different_states():
    """A rank that did not load, or loaded another state, is named on all ranks."""
    _, state = run(make_of(torch.arange(12), 4), (2, 1), steps=1)

    def work(strategy):
        dataset = make_of(torch.arange(12), 4)(strategy)
        if strategy.worker_index == 1:
            dataset.load_state_dict(json.loads(state))
        with pytest.raises(tdi.MismatchError, match="same position .*0 steps.*1 steps.*worker 1"):
            iter(dataset)

    simulate(work, num_workers=2)
