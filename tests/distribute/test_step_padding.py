"""Rows of streams and files, padded to the longest of their step on any worker."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_distinput as tdi
from tests.conftest import LONG
from tests.distribute.resumes import clusters, rules
from tests.distribute.street import one, options, stream_of, write_files
from torch_distinput.testing import simulate

policies = st.sampled_from(["data", "file", "off"])
COLLATE = tdi.pad_collate({"ids": 0, "labels": -100}, mask="mask", longest_of="step")


def row_of(number):
    """A row of as many tokens as the last digit says, and one label more."""
    length = int(number) % 10
    ids = np.ones(length, dtype=np.int64)  # an empty list would not tell its type
    return {"n": int(number), "ids": ids, "labels": [int(number)] * (length + 1)}


def in_files(folder, numbers):
    """The numbers in four files."""
    folder.mkdir()
    return tdi.FileDataset(write_files(folder, [numbers[n::4] for n in range(4)]))


SOURCES = {
    "stream": lambda folder, numbers: stream_of(list(map(row_of, numbers))),
    "files": lambda folder, numbers: in_files(folder, numbers).map(row_of),
    "mixture": lambda folder, numbers: tdi.mix(
        {name: in_files(folder / name, numbers[start::2]).map(row_of)
         for start, name in enumerate("ab")}, weights=(1, 1), stop="all",
    ),
    "buckets": lambda folder, numbers: tdi.bucket(
        stream_of(list(map(row_of, numbers))), length="ids", boundaries=(3, 6), window=8
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A new folder each time."""
    return (tmp_path_factory.mktemp("padded") for _ in itertools.count())


def replicas_of(strategy, step):
    """The batches of a step."""
    return [
        {name: leaf[number] if isinstance(leaf, tdi.PerReplica) else leaf
         for name, leaf in step.items()}
        for number in range(strategy.topology.replicas_per_worker)
    ]  # fmt: skip


def play(source, size, cluster=(2, 1), *, collate=COLLATE, state=None, steps=None, **chosen):
    """Per worker the batches of each step, one behind the other, and a state."""

    def work(strategy):
        dataset = strategy.distribute_dataset(
            source, global_batch_size=size, collate_fn=collate, options=options(**chosen)
        )
        if state is not None:
            dataset.load_state_dict(state)
        played = [replicas_of(strategy, step) for step in itertools.islice(dataset, steps)]
        return played, dataset.state_dict()

    played, states = zip(*simulate(work, num_workers=cluster[0], replicas_per_worker=cluster[1]),
                         strict=True)  # fmt: skip
    return list(played), states[0]


def with_rows(workers):
    """The batches with rows; those without are as wide as the last ones before."""
    return [
        [[str(batch) for batch in step if len(batch["n"])] for step in worker] for worker in workers
    ]


@pytest.mark.slow
@settings(max_examples=100 if LONG else 8)
@given(st.sampled_from(sorted(SOURCES)), st.lists(st.integers(0, 9), min_size=8, max_size=20),
       st.integers(1, 7), clusters, rules, policies, st.data())  # fmt: skip
def test_all_rows_of_a_step_have_one_length(folders, kind, digits, size, cluster, rule, policy,
                                            data):  # fmt: skip
    """That of the longest of them, over both columns; and what fills them up is padding."""
    if policy == "file" and kind in ("stream", "buckets"):
        policy = "data"
    folder = next(folders) / "own"
    if kind == "mixture":
        folder.mkdir()
    numbers = [10 * n + digit for n, digit in enumerate(digits)]
    source = SOURCES[kind](folder, numbers)
    if cluster[0] > 2:
        cluster = (2, cluster[1])
    whole, _ = play(source, size, cluster, rebatch=rule, auto_shard_policy=policy)
    seen = []
    for step in zip(*whole, strict=True):
        batches = [batch for worker in step for batch in worker if len(batch["n"])]
        own = [n for batch in batches for n in batch["n"].tolist()]
        width = 1 + max(n % 10 for n in own)
        seen += own
        for batch in batches:
            lengths = batch["n"][:, None] % 10
            places = np.arange(width)
            assert [(len(lengths), width)] * 3 == [
                tuple(batch[name].shape) for name in ("ids", "labels", "mask")
            ]
            assert ((places < lengths.numpy()) == batch["mask"].numpy()).all()
            assert (batch["mask"].long() == batch["ids"]).all()
            expected = np.where(places <= lengths.numpy(), batch["n"].numpy()[:, None], -100)
            assert (expected == batch["labels"].numpy()).all()
    assert sorted(numbers * (cluster[0] if policy == "off" else 1)) == sorted(seen)
    steps = data.draw(st.integers(0, len(whole[0])))
    keywords = {"rebatch": rule, "auto_shard_policy": policy}
    _, state = play(source, size, cluster, steps=steps, **keywords)
    tail, _ = play(source, size, cluster, state=state, **keywords)
    assert with_rows(worker[steps:] for worker in whole) == with_rows(tail)


@pytest.mark.parametrize("examples", [[[1] * n for n in (1, 5, 2, 3)],
                                      [([1] * n, n, [2.0] * 2) for n in (1, 5, 2, 3)]])  # fmt: skip
def test_examples_of_all_kinds(examples):
    """Sequences and tuples; numbers in them stay as they are, and lengths are multiples."""
    collate = tdi.pad_collate(7, longest_of="step", multiple_of=4)

    def work(strategy):
        source = stream_of(examples)
        (step,) = strategy.distribute_dataset(source, global_batch_size=4, collate_fn=collate)
        leaves = step if isinstance(step, tuple) else (step,)
        return [tuple(leaf.shape) for leaf in leaves], leaves[0][:, -1].tolist()

    shapes = [(2, 8), (2,), (2, 8)] if isinstance(examples[0], tuple) else [(2, 8)]
    assert [(shapes, [7, 7])] * 2 == simulate(work, num_workers=2)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_files_that_tell_their_lengths_vote(tmp_path, num_workers):
    """Also with loader processes; and a step is looked at again in its width."""
    for number in range(2):
        rows = np.arange(8)[:, None] * np.ones((1, 2 + 3 * number), dtype=np.int64)
        np.save(tmp_path / f"{number}.npy", rows)
    collate = tdi.pad_collate(-1, longest_of="step")

    def work(strategy):
        files = tdi.FileDataset(str(tmp_path / "*.npy"), reader="npy").map(tuple).map(list)
        dataset = strategy.distribute_dataset(
            files, global_batch_size=4, collate_fn=collate, num_workers=num_workers
        )
        state = dataset.state_dict()
        played = [batch.tolist() for batch in dataset]
        assert len(dataset) == len(played)
        if not num_workers:
            again = dataset.replay(state, 1).batches
            assert played[1] == again[strategy.worker_index].tolist()
        return [len(row) for batch in played for row in batch]

    assert [[5] * 8] * 2 == simulate(work, num_workers=2)


def test_one_worker_has_nobody_to_ask():
    source = stream_of([[1] * n for n in (1, 2, 5)])
    collate = tdi.pad_collate(longest_of="step")
    dataset = one(3).distribute_dataset(source, global_batch_size=3, collate_fn=collate)
    (step,) = dataset
    assert [(1, 5)] * 3 == [tuple(batch.shape) for batch in step.values]


@pytest.mark.parametrize("policy", ["data", "off"])
def test_workers_that_pad_by_other_rules_are_refused(policy):
    """One would ask in a vote for what the other does not send."""

    def work(strategy):
        longest_of = "step" if strategy.worker_index else "replica"
        strategy.distribute_dataset(
            stream_of([[1] * n for n in (1, 2, 5, 3)]),
            global_batch_size=2,
            collate_fn=tdi.pad_collate(longest_of=longest_of),
            options=options(auto_shard_policy=policy),
        ).__iter__()

    with pytest.raises(tdi.MismatchError, match="longest_of"):
        simulate(work, num_workers=2)
