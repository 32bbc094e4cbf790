"""C4: at every position, save and restore gives the same tail; on another cluster, nothing lost."""

from __future__ import annotations

import dataclasses
import itertools
import json
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_distinput as tdi
from tests.conftest import LONG
from tests.distribute.numbers_reader import BAD, Numbers, write_numbers
from tests.distribute.resumes import (
    clusters,
    examples_of,
    in_order,
    make_of,
    rules,
    run,
    with_recipe,
)
from tests.distribute.street import stream_of
from torch_distinput.testing import assert_resumes_everywhere, simulate

pytestmark = pytest.mark.usefixtures("paths")

# The arithmetic of places is enumerated in tests/plan; here sources and readers take part.
some = settings(max_examples=1000 if LONG else 30)


@pytest.mark.slow
@some
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


@pytest.mark.slow
@some
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


# The others come at random positions in test_files, and where a recorded state goes on elsewhere.
ways = [("file", False), ("data", True), *([("file", True), ("data", False)] if LONG else [])]


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "counted"), ways)
@pytest.mark.parametrize(
    "recipe", ["plain", "filter", "shuffle", "interleave", "take", "repeat", "all"]
)
def test_every_recipe(tmp_path, recipe, policy, counted):
    """At every position; on fewer and on more workers, and back."""
    pattern = write_numbers(tmp_path, [range(5), range(10, 13), [], range(20, 27), range(30, 33)])
    files = with_recipe(tdi.FileDataset(pattern, reader=Numbers(counted=counted)), recipe)
    fewer, more = (1, 1), (3, 2)  # where records are counted, and where not
    elsewhere = (fewer, more) if LONG else (fewer,) if counted else (more,)
    assert_resumes_everywhere(make_of(files, 3, policy=policy), elsewhere=elsewhere)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["plain", "filter", "shuffle", "interleave", "take", "repeat"])
def test_files_after_two_reassignments(tmp_path, recipe):
    """Workers that read segments of several assignments note resume points in the right one."""
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


@pytest.mark.slow
def test_a_place_that_is_ahead_of_what_was_delivered(tmp_path):
    """Votes tell of steps to come, whose files may begin with rows that a filter leaves out."""
    num_files, num_read = 12, 3
    numbers = [[1000, 2 * file, 2 * file + 1] for file in range(2 * num_files)]
    pattern = write_numbers(tmp_path, numbers)

    def distribute(strategy, has_read=None):
        calls = itertools.count(1)

        def is_small(number):
            if has_read is not None and next(calls) == num_files * num_read:
                has_read.set()
            return number < 1000

        files = tdi.FileDataset(pattern, reader=Numbers()).interleave(1, 1).filter(is_small)
        return strategy.distribute_dataset(files, global_batch_size=2)

    def begin(strategy):
        has_read, played = threading.Event(), []
        dataset = distribute(strategy, has_read)
        for step in dataset:
            assert has_read.wait(60)  # so that a vote has many steps
            played.append((step.tolist(), dataset.state_dict()))
        return played

    played = simulate(begin, num_workers=2)
    for steps in range(1, len(played[0]) + 1):
        head = [x for worker in played for step, _ in worker[:steps] for x in step]
        tail, _ = run(distribute, (3, 1), state=json.dumps(played[0][steps - 1][1]))
        assert sorted([*head, *examples_of(tail)]) == list(range(4 * num_files)), steps


@pytest.mark.slow
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


class Uneven(Numbers):
    """A reader that cannot count one of its files."""

    def parts(self, file):
        """Only the file of the second number is not counted."""
        parts = super().parts(file)
        if file.path.endswith("1.bin"):
            return [dataclasses.replace(part, num_records=None) for part in parts]
        return parts


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["file", "data"])
def test_places_do_not_depend_on_who_reads(tmp_path, policy):
    """A file with parts that are not all counted: by units here, by files there."""
    pattern = write_numbers(tmp_path, [range(12), range(20, 31), range(40, 49)])
    files = tdi.FileDataset(pattern, reader=Uneven(counted=True, late=True))
    whole, _ = run(make_of(files, 4, policy=policy), (1, 1))
    for steps in range(0, len(whole[0]), 1 if LONG else 2):
        for before, after in ((0, 2), (2, 0)):
            make = make_of(files, 4, policy=policy, num_workers=before)
            head, state = run(make, (1, 1), steps=steps)
            tail, _ = run(make_of(files, 4, policy=policy, num_workers=after), (1, 1), state=state)
            assert whole == [head[0] + tail[0]]
    assert_resumes_everywhere(make_of(files, 4, policy=policy))


@pytest.mark.slow
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
