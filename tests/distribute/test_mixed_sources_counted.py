"""What steps are from, where each worker plays a mixture of its own: FILE, and OFF."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_distinput as tdi
from tests.conftest import LONG
from tests.distribute.resumes import clusters, rules
from tests.distribute.street import options, shown, stream_of, write_files
from torch_distinput.testing import simulate

NAMES = ("a", "b", "c")


def source_of(number):
    """Numbers tell their source by the hundred."""
    return NAMES[number // 100]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A new folder each time."""
    return (tmp_path_factory.mktemp("counted") for _ in itertools.count())


def make_source(folder, kind, stop):
    """A mixture of two sources, the second one a mixture."""
    numbers = {"a": range(7), "b": range(100, 111), "c": range(200, 205)}
    sources = {}
    for name, own in numbers.items():
        if kind == "files":
            (folder / name).mkdir()
            files = [list(own[start::4]) for start in range(4)]
            sources[name] = tdi.FileDataset(write_files(folder / name, files)).map(int)
        else:
            sources[name] = list(own) if kind == "index" else stream_of(own)
    return tdi.mix(sources, weights=(3, 2, 1), stop=stop)


def play(source, size, cluster, *, rule, policy, state=None, steps=None, budget=False):
    """Per worker what each step is said to be from, what it shows, the totals and a state."""
    batch = tdi.TokenBudget(3 * size, length=lambda number: 1 + number % 3) if budget else size

    def work(strategy):
        chosen = options(auto_shard_policy=policy, rebatch=rule)
        dataset = strategy.distribute_dataset(source, global_batch_size=batch, options=chosen)
        if state is not None:
            dataset.load_state_dict(json.loads(state))
        iterator = iter(dataset)
        told = [
            (dict(iterator.last_step.sources), shown(strategy, step))
            for step in itertools.islice(iterator, steps)
        ]
        stats = iterator.stats()
        return told, stats.sources, stats.repeats, json.dumps(dataset.state_dict())

    return simulate(work, num_workers=cluster[0], replicas_per_worker=cluster[1])


def check(workers):
    """Each step tells the same on all workers: what all of them show."""
    told = [[sources for sources, _ in worker[0]] for worker in workers]
    shown_steps = zip(*([step for _, step in worker[0]] for worker in workers), strict=True)
    expected = [
        Counter(source_of(x) for worker in step for replica in worker for x in replica)
        for step in shown_steps
    ]
    assert [expected] * len(workers) == [list(map(Counter, own)) for own in told]
    for _, total, repeats, _ in workers:
        assert sum(expected, Counter()) == Counter(total)
        assert workers[0][2] == repeats


@pytest.mark.slow
@settings(max_examples=200 if LONG else 8)
@given(st.sampled_from(["files", "index", "stream"]), st.sampled_from(["first", "all", "repeat"]),
       st.integers(1, 9), clusters, rules, st.booleans(), st.data())  # fmt: skip
def test_steps_tell_what_all_workers_have_in_them(folders, kind, stop, size, cluster, rule,
                                                 budget, data):  # fmt: skip
    policy = "file" if kind == "files" else "off"
    source = make_source(next(folders), kind, stop)
    keywords = {
        "rule": "split" if budget else rule, "policy": policy, "budget": budget
    }  # fmt: skip
    whole = play(source, size, cluster, **keywords)
    check(whole)
    steps = data.draw(st.integers(0, len(whole[0][0])))
    head = play(source, size, cluster, steps=steps, **keywords)
    tail = play(source, size, cluster, state=head[0][3], **keywords)
    check(tail)
    assert [worker[0] for worker in whole] == [
        one[0] + two[0] for one, two in zip(head, tail, strict=True)
    ]


@pytest.mark.parametrize("kind", ["index", "stream"])
def test_a_resume_in_the_middle_of_a_batch_counts_what_is_left(folders, kind):
    """Of a batch that each worker plays in as many steps as there are workers."""
    source = make_source(next(folders), kind, "all")
    head = play(source, 5, (2, 1), rule="even", policy="off", steps=1)
    tail = play(source, 5, (2, 1), rule="even", policy="off", state=head[0][3])
    check(tail)
    assert {"a": 14, "b": 22, "c": 10} == Counter(head[0][1]) + Counter(tail[0][1])


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1)])
def test_repeats_are_those_of_the_worker_with_most(folders, cluster):
    """Each worker plays its own files again and again."""
    folder = next(folders)
    for name, own in (("a", [[1], [2]]), ("b", [range(100, 107), range(107, 115)])):
        (folder / name).mkdir()
        write_files(folder / name, own)
    source = tdi.mix(
        {name: tdi.FileDataset(str(folder / name / "*.txt")).map(int) for name in "ab"},
        weights=(1, 1), stop="repeat",
    )  # fmt: skip
    workers = play(source, 4, cluster, rule="split", policy="file")
    check(workers)
    assert {"a": 7, "b": 0} == workers[0][2]
